//! The examples of the README and the manifest for Kubernetes do what they say.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use tempfile::TempDir;

use super::{json, root, succeed};

/// Commands in the console blocks of a section of the README.
fn commands(section: &str) -> Vec<Vec<String>> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, after) = readme.split_once(&format!("\n## {section}\n")).unwrap();
    let text = after.split("\n## ").next().unwrap();
    let blocks = text.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap().replace("\\\n", " "));
    let lines: Vec<String> = blocks
        .flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let commands = lines.iter().filter_map(|line| line.strip_prefix("$ ghostfleet "));
    commands.map(|line| words(line.split(" #").next().unwrap())).collect()
}

/// Words of a command line; single quotes keep theirs together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn the_examples_of_the_readme_run_in_their_order() {
    let directory = TempDir::new().unwrap();
    copy(&root().join("config/predict"), &directory.path().join("config/predict"));
    let mut ran = 0;
    for section in ["Replay without waiting", "Predict and recommend"] {
        for command in commands(section) {
            let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
            succeed(directory.path(), &arguments);
            ran += 1;
        }
    }
    assert!(ran >= 9, "{ran}");
    for made in [
        "report.json",
        "both.html",
        "prediction/prediction.json",
        "best/recommendation.csv",
    ] {
        assert!(directory.path().join(made).exists(), "{made}");
    }
}

#[test]
fn the_jobs_of_the_kubernetes_manifest_make_one_recommendation() {
    let directory = TempDir::new().unwrap();
    let (config, results) = (directory.path().join("config"), directory.path().join("results"));
    fs::create_dir_all(&config).unwrap();
    let manifest = fs::read_to_string(root().join("config/kubernetes/recommend-job.yaml")).unwrap();
    let documents = serde_norway::Deserializer::from_str(&manifest);
    let documents = documents.map(|document| serde_json::Value::deserialize(document).unwrap());
    let mut jobs = Vec::new();
    for document in documents {
        match document["kind"].as_str().unwrap() {
            "ConfigMap" => {
                for (file, text) in document["data"].as_object().unwrap() {
                    fs::write(config.join(file), text.as_str().unwrap()).unwrap();
                }
            }
            "Job" => jobs.push(document),
            other => assert_eq!(other, "PersistentVolumeClaim"),
        }
    }
    for job in &jobs {
        let spec = &job["spec"];
        let container = &spec["template"]["spec"]["containers"][0];
        for index in 0..spec["completions"].as_u64().unwrap_or(1) {
            let arguments = container["args"].as_array().unwrap().iter().map(|argument| {
                let argument = argument.as_str().unwrap();
                let argument = argument.replace("$(JOB_COMPLETION_INDEX)", &index.to_string());
                let argument = argument.replace("/config", config.to_str().unwrap());
                argument.replace("/results", results.to_str().unwrap())
            });
            let arguments: Vec<String> = arguments.collect();
            succeed(
                directory.path(),
                &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
    }
    let found = json(&results.join("recommendation.json"));
    assert_eq!((jobs.len(), found["trials"]["completed"].as_u64()), (2, Some(16)));
    assert!(!found["recommendations"].as_array().unwrap().is_empty());
}
