//! `ghostfleet ctl` as a process.

use std::process::{Command, Output};

use serde_json::Value;

use crate::admin::Admin;

/// Exit code, what it says as JSON (`Null`: nothing), and what it complains of.
pub(crate) fn ctl(admin: &Admin, args: &[&str]) -> (i32, Value, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .args(["ctl", "--json"])
        .args(args)
        .env("GHOSTFLEET_ADMIN_URL", &admin.url)
        .env_remove("GHOSTFLEET_ADMIN_TOKEN")
        .output()
        .unwrap();
    (
        status.code().unwrap(),
        serde_json::from_slice(&stdout).unwrap_or(Value::Null),
        String::from_utf8(stderr).unwrap(),
    )
}
