//! How much memory a replay may take: what the machine, the container and the process leave it.

use std::fs;

/// Where nothing says how much there is, bytes.
const UNKNOWN: u64 = 8 << 30;

/// Bytes that requests may take: three quarters of the least that anything allows. The rest is for the engines' caches.
pub(super) fn limit() -> u64 {
    let read = |path: &str| fs::read_to_string(path).ok();
    let group = read("/proc/self/cgroup").and_then(|text| group(&text).map(str::to_owned));
    let of_group = |name: &str| {
        group
            .as_ref()
            .and_then(|group| read(&format!("/sys/fs/cgroup{group}/{name}")))
    };
    let bounds = [
        read("/proc/meminfo").and_then(|text| available(&text)),
        read("/proc/self/limits").and_then(|text| address_space(&text)),
        of_group("memory.max").and_then(|text| text.trim().parse().ok()),
        read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok()),
    ];
    bounds.into_iter().flatten().min().unwrap_or(UNKNOWN) / 4 * 3
}

/// `MemAvailable:   12345 kB`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// `Max address space         3072000000           unlimited            bytes`: the first number counts.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `0::/a/b`: the path of the group.
fn group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_memory_is_read() {
        let meminfo = "MemTotal:       16000000 kB\nMemFree:   1 kB\nMemAvailable:    2000 kB\n";
        assert_eq!(available(meminfo), Some(2_048_000));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max address space         3072000000           unlimited            bytes\n";
        assert_eq!(address_space(limits), Some(3_072_000_000));
        assert_eq!(address_space(&limits.replace("3072000000", "unlimited")), None);
        assert_eq!(group("0::/pod/one\n"), Some("/pod/one"));
        assert!(limit() > 0);
    }
}
