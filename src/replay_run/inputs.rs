//! Files that a replay reads.

use std::path::Path;

use crate::cli::ReplayArgs;
use crate::config::EngineDocument;
use crate::distinct_files::DistinctFiles;
use crate::router::RouterConfig;

use super::plan;
use super::planner;

/// Takes in the files and directories that the flags name; whether they can be read is for their readers to tell.
pub(crate) fn inputs(args: &ReplayArgs, files: &mut DistinctFiles) {
    for path in &args.trace_files {
        files.reads("the trace", path);
    }
    let engines = [
        ("--extra-engine-args", &args.extra_engine_args),
        ("--prefill-engine-args", &args.prefill_engine_args),
        ("--decode-engine-args", &args.decode_engine_args),
    ];
    for (flag, document) in engines {
        let Some(document) = document else { continue };
        files.reads(flag, Path::new(document));
        let profile = EngineDocument::read(flag, document).ok().and_then(|read| read.profile);
        if let Some(profile) = profile {
            files.reads("the profile", &profile);
        }
    }
    let router = args.router_config.as_deref().map(RouterConfig::parse);
    let router = router.and_then(Result::ok).unwrap_or_default();
    if let Some(path) = plan::policy_file(args, &router) {
        files.reads("the router policy file", &path);
    }
    if let Some(config) = &args.planner_config {
        files.reads("--planner-config", Path::new(config));
        for file in planner::files_of_program(config) {
            files.reads("a file of the planner's command", &file);
        }
    }
    for path in &args.html_compare {
        files.reads("--html-compare", path);
    }
}
