//! The workers to load, as discovery knows them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ghostfleet::transport::discovery::record::{EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{Discovery, DiscoveryConfig, EndpointName, EtcdOptions, FileOptions};
use ghostfleet::transport::request_plane::Codec;
use ghostfleet::types::InstanceId;

/// Kind of discovery store.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Store {
    /// Etcd at `ETCD_ENDPOINTS`.
    Etcd,
    /// The directory `DYN_FILE_KV`.
    File,
}

/// One worker.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) instance: InstanceId,
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) codec: Codec,
}

/// Waits until at least `count` workers serve `endpoint`; returns all there are, by instance id.
pub(crate) async fn find(
    store: Store,
    endpoint: &EndpointName,
    count: usize,
    patience: Duration,
) -> Result<Vec<Target>> {
    let discovery = Discovery::connect(&config(store)).await?;
    let prefix = format!(
        "{INSTANCES}{}/{}/{}/",
        endpoint.namespace(),
        endpoint.component(),
        endpoint.endpoint()
    );
    let deadline = Instant::now() + patience;
    loop {
        let records = discovery.list(&prefix).await?;
        if records.len() >= count.max(1) {
            let mut targets: Vec<Target> = records
                .iter()
                .map(|record| target(&record.value).with_context(|| format!("record {}", record.key)))
                .collect::<Result<_>>()?;
            targets.sort_by_key(|target| target.instance);
            return Ok(targets);
        }
        ensure!(
            Instant::now() < deadline,
            "{} of {count} workers of {endpoint} registered after {patience:?}; start them, or raise --wait",
            records.len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn config(store: Store) -> DiscoveryConfig {
    match store {
        Store::Etcd => {
            let mut options = EtcdOptions::default();
            if let Ok(endpoints) = std::env::var("ETCD_ENDPOINTS") {
                options.endpoints = endpoints.split(',').map(|part| part.trim().to_owned()).collect();
            }
            DiscoveryConfig::Etcd(options)
        }
        Store::File => {
            let mut options = FileOptions::default();
            if let Some(root) = std::env::var_os("DYN_FILE_KV") {
                options.root = PathBuf::from(root);
            }
            DiscoveryConfig::File(options)
        }
    }
}

fn target(record: &[u8]) -> Result<Target> {
    let worker = EndpointInstance::decode(record)?;
    let (address, path) = match &worker.address {
        RequestAddress::Tcp(address) => address.split_once('/').context("address without a path")?,
        RequestAddress::Nats(subject) => {
            bail!("worker is reached over NATS ({subject}); start it on the TCP request plane")
        }
    };
    Ok(Target {
        instance: worker.instance,
        address: address.parse().with_context(|| format!("address {address:?}"))?,
        path: path.to_owned(),
        codec: worker.codec.unwrap_or(Codec::Json),
    })
}
