//! The AIC performance model in settings: what turns it on, what it replaces, and what does not go together.

use crate::scene::{Scene, assert_refused, line, said};

const ON: [&str; 3] = ["--aic-perf-model", "--aic-systems-path", "/srv/systems"];

#[test]
fn with_the_model_the_number_of_blocks_is_only_there_when_it_is_given() {
    let scene = Scene::new();
    assert!(line(&scene.printed(&[]), "num_gpu_blocks_override").contains("16384"));
    let measured = scene.printed(&ON);
    assert!(!measured.contains("num_gpu_blocks_override"), "{measured}");
    let given = [&ON[..], &["--num-gpu-blocks-override", "77"]].concat();
    assert!(line(&scene.printed(&given), "num_gpu_blocks_override").contains("77  # flag"));
    // What is printed is a config file again.
    let again = said(&scene.with_file(&measured, &[]));
    assert!(!again.contains("num_gpu_blocks_override"), "{again}");
}

#[test]
fn both_spellings_the_environment_and_files_name_the_measurements() {
    let scene = Scene::new()
        .set("AICONFIGURATOR_SYSTEMS_PATH", "/srv/theirs")
        .set("GHOSTFLEET_AIC_SYSTEM", "l40s");
    let printed = scene.printed(&["--ais-perf-model", "--ais-tp-size", "2"]);
    for (key, value) in [
        (
            "aic_systems_path",
            "\"/srv/theirs\"  # environment AICONFIGURATOR_SYSTEMS_PATH",
        ),
        ("aic_system", "\"l40s\"  # environment GHOSTFLEET_AIC_SYSTEM"),
        ("aic_tp_size", "2  # flag"),
    ] {
        assert_eq!(line(&printed, key), format!("{key} = {value}"));
    }
    let ours = scene.set("GHOSTFLEET_AIC_SYSTEMS_PATH", "/srv/ours");
    assert!(line(&ours.printed(&["--aic-perf-model"]), "aic_systems_path").contains("/srv/ours"));
    let scene = Scene::new();
    let file = "aic_perf_model = true\naic_systems_path = \"systems\"\naic_model_path = \"./model\"\n";
    let printed = said(&scene.with_file(file, &[]));
    let beside = scene.directory.path().display();
    assert!(
        line(&printed, "aic_systems_path").contains(&format!("\"{beside}/systems\"")),
        "{printed}"
    );
    assert!(
        line(&printed, "aic_model_path").contains(&format!("\"{beside}/./model\"")),
        "{printed}"
    );
}

#[test]
fn data_parallel_attention_is_that_of_the_worker_unless_the_worker_says() {
    let scene = Scene::new();
    let attention = [&ON[..], &["--aic-attention-dp-size", "2"]].concat();
    let ranks =
        |flags: &[&str]| line(&scene.printed(&[&attention[..], flags].concat()), "data_parallel_size").to_owned();
    assert_eq!(ranks(&[]), "data_parallel_size = 2  # flag");
    assert_eq!(ranks(&["--data-parallel-size", "4"]), "data_parallel_size = 4  # flag");
    assert_eq!(ranks(&["--semantics", "1.4.2"]), "data_parallel_size = 1  # default");
    let config = [
        "--ais-perf-config",
        r#"{"attention_dp": 3}"#,
        "--ais-systems-path",
        "/srv/systems",
    ];
    let printed = scene.printed(&config);
    assert!(
        line(&printed, "data_parallel_size").starts_with("data_parallel_size = 3"),
        "{printed}"
    );
}

#[test]
fn what_says_the_model_twice_or_another_timing_is_refused() {
    let scene = Scene::new();
    let config = r#"{"model": "m", "tp": 2}"#;
    let external = r#"{"type": "external", "provider": "ais", "config": {"tp": 2}}"#;
    let systems = ["--aic-systems-path", "/srv/systems"];
    for (flags, words) in [
        (
            &["--ais-perf-config", config, "--ais-tp-size", "2"][..],
            &["--aic-tp-size 2", "cannot be combined with --ais-perf-config"][..],
        ),
        (
            &["--timing-model", external, "--aic-system", "l40s"],
            &["--aic-system l40s", "cannot be combined with --timing-model"],
        ),
        (
            &["--timing-model", external, "--aic-tp-size", "4"],
            &["--aic-tp-size 4", "another size than the 2 of --timing-model"],
        ),
        (
            &["--timing-model", external, "--aic-perf-model"],
            &["--timing-model", "a second time"],
        ),
        (
            &["--aic-perf-model", "--timing-model", r#"{"type": "polynomial"}"#],
            &["--timing-model", "--aic-perf-model", "choose one timing provider"],
        ),
        (
            &["--ais-perf-config", config, "--planner-profile-data", "p.npz"],
            &[
                "--ais-perf-config",
                "--planner-profile-data",
                "choose one timing provider",
            ],
        ),
        (
            &["--ais-perf-config", "/no/such/file.yaml"],
            &["--ais-perf-config", "/no/such/file.yaml", "JSON or YAML"],
        ),
        (
            &["--aic-perf-model", "--gpu-memory-utilization", "0"],
            &["share of GPU memory of 0", "above 0"],
        ),
        (
            &["--ais-perf-config", r#"{"nextn": 2}"#, "--aic-nextn", "3"],
            &["nextn 2", "aic_nextn is 3"],
        ),
        (
            &["--extra-engine-args", r#"{"aic_backend": "llama"}"#],
            &["`aic_backend` llama", "vllm, sglang or trtllm"],
        ),
    ] {
        assert_refused(&scene.run(&[&systems[..], flags].concat()), words);
    }
}

#[test]
fn what_only_the_model_reads_is_told_without_it() {
    let scene = Scene::new();
    for (flags, words) in [
        (
            &["--aic-system", "l40s"][..],
            Some("--aic-system l40s has no effect here: it needs --aic-perf-model"),
        ),
        (
            &["--gpu-memory-utilization", "0.5"],
            Some("it needs --aic-perf-model of backend vllm"),
        ),
        (
            &["--aic-perf-model", "--mem-fraction-static", "0.5"],
            Some("it needs --aic-perf-model of backend sglang"),
        ),
        (
            &[
                "--aic-perf-model",
                "--gpu-memory-utilization",
                "0.5",
                "--num-gpu-blocks-override",
                "9",
            ],
            Some("without --num-gpu-blocks-override"),
        ),
        (
            &[
                "--aic-perf-model",
                "--gpu-memory-utilization",
                "0.5",
                "--aic-system",
                "l40s",
            ],
            None,
        ),
    ] {
        let scene = scene.run(&[&["--aic-systems-path", "/srv/systems"], flags].concat());
        said(&scene);
        let told = String::from_utf8_lossy(&scene.stderr).into_owned();
        let own = told
            .lines()
            .filter(|line| line.contains("has no effect") && !line.contains("--aic-systems-path"));
        match words {
            Some(words) => assert!(own.clone().count() == 1 && told.contains(words), "{flags:?}: {told}"),
            None => assert_eq!(own.count(), 0, "{told}"),
        }
    }
}
