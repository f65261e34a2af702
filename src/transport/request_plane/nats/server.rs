//! The endpoints of one connection: a task for each, and one for each service that is asked about.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::QUEUE_GROUP;
use super::service::{self, EndpointStats, Question};
use crate::transport::date;
use crate::transport::discovery::EndpointName;
use crate::transport::nats::NatsLink;
use crate::transport::request_plane::endpoint::{self, Endpoint};
use crate::transport::request_plane::plane::Ready;
use crate::transport::request_plane::tcp::frame::Ack;
use crate::types::InstanceId;

/// Time for the server to take a subscription before it is asked again.
const SUBSCRIBE_PATIENCE: Duration = Duration::from_secs(2);

/// Time for a reply to be taken; the caller has given up by then.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// Pause after a subscription that failed.
const RETRY: Duration = Duration::from_millis(500);

/// The endpoints behind one NATS connection. Dropping it ends them as [`Self::crash`] does.
pub struct NatsServer {
    link: NatsLink,
    runtime: Handle,
    served: Arc<Mutex<Served>>,
}

/// What is being served.
#[derive(Default)]
struct Served {
    /// By subject.
    endpoints: BTreeMap<String, Serving>,
    /// Tasks that answer questions, by service name.
    services: BTreeMap<String, AbortHandle>,
    /// Workers by id; gone with their last endpoint.
    instances: BTreeMap<InstanceId, ServiceInstance>,
}

struct Serving {
    name: EndpointName,
    instance: InstanceId,
    stats: Arc<EndpointStats>,
    withdrawn: CancellationToken,
    task: AbortHandle,
}

struct ServiceInstance {
    id: String,
    started: String,
}

impl NatsServer {
    /// A server without endpoints; its tasks run on `runtime`.
    pub fn new(link: NatsLink, runtime: &Handle) -> Self {
        Self {
            link,
            runtime: runtime.clone(),
            served: Arc::default(),
        }
    }

    /// Whether its connection stands.
    pub fn is_there(&self) -> bool {
        self.link.is_there()
    }

    /// Serves an endpoint. The result is ready when the NATS server has the subscription.
    pub fn serve(&self, name: &EndpointName, instance: InstanceId, endpoint: Arc<dyn Endpoint>) -> Ready {
        let subject = name.request_subject(instance);
        let (subscribed, ready) = oneshot::channel();
        let withdrawn = CancellationToken::new();
        let stats = Arc::<EndpointStats>::default();
        let task = Task {
            link: self.link.clone(),
            subject: subject.clone(),
            endpoint,
            stats: Arc::clone(&stats),
            withdrawn: withdrawn.clone(),
        };
        let serving = Serving {
            name: name.clone(),
            instance,
            stats,
            withdrawn,
            task: self.runtime.spawn(task.run(subscribed)).abort_handle(),
        };
        let mut served = lock(&self.served);
        if let Some(former) = served.endpoints.insert(subject, serving) {
            former.task.abort();
        }
        served.instances.entry(instance).or_insert_with(|| ServiceInstance {
            id: uuid::Uuid::new_v4().simple().to_string(),
            started: date::rfc3339(SystemTime::now()),
        });
        let service = service::service_name(name.namespace(), name.component());
        served.services.entry(service).or_insert_with_key(|service| {
            let answering = answer_questions(self.link.clone(), service.clone(), Arc::clone(&self.served));
            self.runtime.spawn(answering).abort_handle()
        });
        Ready::when(ready)
    }

    /// Takes an endpoint back: no further requests come, those on their way are refused.
    pub fn withdraw(&self, name: &EndpointName, instance: InstanceId) {
        if let Some(serving) = lock(&self.served).remove(&name.request_subject(instance)) {
            serving.withdrawn.cancel();
        }
    }

    /// Ends an endpoint as the death of its process does: requests on their way are not answered, later ones find
    /// nobody.
    pub fn crash(&self, name: &EndpointName, instance: InstanceId) {
        if let Some(serving) = lock(&self.served).remove(&name.request_subject(instance)) {
            serving.task.abort();
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let served = std::mem::take(&mut *lock(&self.served));
        for serving in served.endpoints.values() {
            // One that was withdrawn before is not among them: it ends by itself.
            serving.task.abort();
        }
        for task in served.services.values() {
            task.abort();
        }
    }
}

impl Served {
    fn remove(&mut self, subject: &str) -> Option<Serving> {
        let serving = self.endpoints.remove(subject)?;
        if !self.endpoints.values().any(|other| other.instance == serving.instance) {
            self.instances.remove(&serving.instance);
        }
        Some(serving)
    }

    /// Answers of all instances that a question is for.
    fn answers(&self, service: &str, question: &Question<'_>) -> Vec<Bytes> {
        let mut answers = Vec::new();
        for (instance, entry) in &self.instances {
            if !question.is_for(service, &entry.id) {
                continue;
            }
            let mut name = None;
            let mut endpoints = Vec::new();
            for (subject, serving) in self.endpoints.iter().filter(|(_, s)| s.instance == *instance) {
                if service::service_name(serving.name.namespace(), serving.name.component()) == service {
                    name = Some(&serving.name);
                    endpoints.push((subject.as_str(), serving.stats.as_ref()));
                }
            }
            if let Some(name) = name {
                let described = service::Instance {
                    namespace: name.namespace(),
                    component: name.component(),
                    id: &entry.id,
                    started: &entry.started,
                    endpoints: &endpoints,
                };
                answers.push(service::answer(question.verb, &described).into());
            }
        }
        answers
    }
}

/// A panic elsewhere leaves these plain maps whole.
fn lock(served: &Mutex<Served>) -> MutexGuard<'_, Served> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    link: NatsLink,
    subject: String,
    endpoint: Arc<dyn Endpoint>,
    stats: Arc<EndpointStats>,
    withdrawn: CancellationToken,
}

impl Task {
    async fn run(self, subscribed: oneshot::Sender<()>) {
        let Some(client) = self.link.client().await else {
            return;
        };
        let Some(mut requests) = self.subscribe(&client).await else {
            return;
        };
        // Nobody waits for it any more when the worker has died meanwhile.
        let _ = subscribed.send(());
        let mut leaving = false;
        loop {
            tokio::select! {
                request = requests.next() => match request {
                    Some(request) => self.answer(&client, request, leaving).await,
                    None => return,
                },
                () = self.withdrawn.cancelled(), if !leaving => {
                    leaving = true;
                    if let Err(error) = requests.unsubscribe().await {
                        tracing::debug!(subject = %self.subject, %error, "cannot unsubscribe");
                        return;
                    }
                }
            }
        }
    }

    /// Subscribes and waits until the server knows: what is published on the same connection afterwards comes back only
    /// then.
    async fn subscribe(&self, client: &Client) -> Option<Subscriber> {
        loop {
            let requests = client
                .queue_subscribe(self.subject.clone(), QUEUE_GROUP.to_owned())
                .await;
            match requests {
                Ok(requests) => {
                    while !is_known(client).await {
                        tracing::debug!(subject = %self.subject, "the subscription is not confirmed yet");
                    }
                    return Some(requests);
                }
                Err(error) => tracing::debug!(subject = %self.subject, %error, "cannot subscribe; trying again"),
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = self.withdrawn.cancelled() => return None,
            }
        }
    }

    async fn answer(&self, client: &Client, request: Message, leaving: bool) {
        let begun = Instant::now();
        let endpoint = (!leaving).then(|| Arc::clone(&self.endpoint));
        let ack = endpoint::dispatch(endpoint, self.subject.as_bytes(), &request.payload, false);
        if let Some(why) = ack.refusal() {
            tracing::debug!(subject = %self.subject, %why, "refused a request");
        }
        let silent = matches!(ack, Ack::Withheld(_) | Ack::Reset);
        if let Some(reply) = request.reply.filter(|_| !silent) {
            let sent = tokio::time::timeout(REPLY_PATIENCE, client.publish(reply, ack.text().into())).await;
            if !matches!(sent, Ok(Ok(()))) {
                metrics::counter!("ghostfleet_nats_replies_lost_total").increment(1);
                tracing::debug!(subject = %self.subject, "a reply was not taken");
            }
        }
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats.count(ns, ack.refusal());
    }
}

/// Whether the server has worked through everything sent so far.
async fn is_known(client: &Client) -> bool {
    let echo = async {
        let inbox = client.new_inbox();
        let mut echo = client.subscribe(inbox.clone()).await.ok()?;
        client.publish(inbox, Bytes::new()).await.ok()?;
        echo.next().await
    };
    matches!(tokio::time::timeout(SUBSCRIBE_PATIENCE, echo).await, Ok(Some(_)))
}

/// Answers `$SRV` questions for every worker of one service.
async fn answer_questions(link: NatsLink, service: String, served: Arc<Mutex<Served>>) {
    let Some(client) = link.client().await else {
        return;
    };
    let subjects = [
        "$SRV.*".to_owned(),
        format!("$SRV.*.{service}"),
        format!("$SRV.*.{service}.*"),
    ];
    let mut subscriptions = Vec::new();
    for subject in subjects {
        match client.subscribe(subject).await {
            Ok(subscription) => subscriptions.push(subscription),
            Err(error) => tracing::warn!(%service, %error, "service questions will not be answered"),
        }
    }
    let mut questions = futures::stream::select_all(subscriptions);
    while let Some(question) = questions.next().await {
        let (Some(asked), Some(reply)) = (Question::of(&question.subject), &question.reply) else {
            continue;
        };
        let answers = lock(&served).answers(&service, &asked);
        for answer in answers {
            if client.publish(reply.clone(), answer).await.is_err() {
                break;
            }
        }
    }
}
