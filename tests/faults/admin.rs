//! A fleet with an admin server, and a client of it.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::Value;

use crate::scene::Scene;

pub(crate) struct Admin {
    pub(crate) scene: Scene,
    pub(crate) url: String,
    agent: ureq::Agent,
}

impl Admin {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let flags: Vec<&str> = ["--admin-port", "0"].iter().chain(flags).copied().collect();
        let scene = Scene::start(&flags);
        let url = format!("http://{}", scene.cluster.facts().admin.unwrap());
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        Self { scene, url, agent }
    }

    fn read(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
        let mut response = response.unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (
            response.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        Self::read(self.agent.get(format!("{}{path}", self.url)).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send(path, &body.to_string())
    }

    /// Posts a body as it is.
    pub(crate) fn send(&self, path: &str, body: &str) -> (u16, Value) {
        let request = self.agent.post(format!("{}{path}", self.url));
        Self::read(request.send(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.agent.put(format!("{}{path}", self.url));
        Self::read(request.send(body.to_string()))
    }

    pub(crate) fn delete(&self, path: &str) -> (u16, Value) {
        Self::read(self.agent.delete(format!("{}{path}", self.url)).call())
    }

    /// Adds one fault by its line; its number.
    pub(crate) fn fault(&self, line: &str) -> u64 {
        let (status, added) = self.post("/v1/faults", &Value::from(line));
        assert_eq!(status, 200, "{added}");
        added[0]["id"].as_u64().unwrap()
    }

    /// Follows the live changes; each is its name and its data.
    pub(crate) fn live(&self, query: &str) -> impl Iterator<Item = (String, Value)> + use<> {
        let response = self.agent.get(format!("{}/v1/live?{query}", self.url)).call().unwrap();
        assert_eq!(response.status().as_u16(), 200);
        let mut lines = BufReader::new(response.into_body().into_reader()).lines();
        let mut name = String::new();
        std::iter::from_fn(move || {
            loop {
                let line = lines.next()?.ok()?;
                if let Some(event) = line.strip_prefix("event: ") {
                    event.clone_into(&mut name);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    return Some((name.clone(), serde_json::from_str(data).unwrap()));
                }
            }
        })
    }
}
