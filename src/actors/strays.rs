//! Requests that come to the address of an instance that is gone.

use std::sync::Arc;

use super::plan::GroupPlan;
use crate::faults::Journal;
use crate::faults::journal::Addressee;
use crate::transport::request_plane::endpoint::EndpointTable;
use crate::types::InstanceId;

/// Notes them for whoever follows requests; paths begin with the instance id in hexadecimal. They are seen only where
/// somebody still listens: behind a listener that workers share, or one that a later incarnation has opened anew.
pub fn note<'a>(endpoints: &EndpointTable, groups: impl Iterator<Item = &'a GroupPlan>, journal: Arc<Journal>) {
    let without_id = |path: &str| path.split_once('/').map(|(_, rest)| rest.to_owned());
    let served: Vec<String> = groups
        .filter_map(|group| without_id(&group.endpoint.request_path(InstanceId(0))))
        .collect();
    endpoints.watch_strays(move |path| {
        let path = std::str::from_utf8(path).ok().and_then(|path| path.split_once('/'));
        if let Some((id, rest)) = path
            && served.iter().any(|name| name == rest)
            && let Ok(instance) = u64::from_str_radix(id, 16)
        {
            journal.note_arrival(Addressee::Gone(instance), "");
        }
    });
}
