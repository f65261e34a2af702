//! Where a worker is in its life, and how it does.

use serde::Serialize;

/// Where a worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Not launched yet.
    Planned,
    /// Built; its records are not visible yet.
    Starting,
    /// Registered and serving.
    Ready,
    /// Unlisted; finishes its streams.
    Draining,
    /// Gone in good order.
    Left,
    /// Dead: crashed, or its restart budget is used up.
    Dead,
}

impl WorkerState {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Left => "left",
            Self::Dead => "dead",
        }
    }

    pub(super) const ALL: [Self; 6] = [
        Self::Planned,
        Self::Starting,
        Self::Ready,
        Self::Draining,
        Self::Left,
        Self::Dead,
    ];
}

/// How a worker does, as a probe is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerHealth {
    /// A rank does not do what it should have done long ago.
    Hung,
    /// It serves, but its records in discovery have lapsed: no router knows it.
    Unlisted,
    /// It serves, but what brings its requests is lost.
    Unreachable,
    /// It is registered and takes requests, but runs no pass before its start-up time is over.
    Loading,
    /// As its state says.
    #[serde(untagged)]
    InState(WorkerState),
}

impl WorkerHealth {
    /// Every word that [`Self::word`] may say.
    pub const WORDS: [&'static str; 10] = [
        "planned",
        "starting",
        "ready",
        "draining",
        "left",
        "dead",
        "hung",
        "unlisted",
        "unreachable",
        "loading",
    ];

    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::Unlisted => "unlisted",
            Self::Unreachable => "unreachable",
            Self::Loading => "loading",
            Self::InState(state) => state.word(),
        }
    }

    /// Whether requests that come now are served.
    pub fn is_ready(self) -> bool {
        self == Self::InState(WorkerState::Ready)
    }

    /// Whether it is on its way to being ready.
    pub fn is_starting(self) -> bool {
        matches!(
            self,
            Self::Loading | Self::InState(WorkerState::Planned | WorkerState::Starting)
        )
    }

    /// What is the matter, in words for a probe; `None`: nothing.
    pub const fn trouble(self) -> Option<&'static str> {
        match self {
            Self::Hung => Some("a fault holds it up, or a pass or a request is long overdue"),
            Self::Unlisted => Some("its records in discovery have lapsed"),
            Self::Unreachable => Some("the NATS server of its request plane is lost"),
            Self::Loading => Some("its start-up time is not over"),
            Self::InState(WorkerState::Planned) => Some("it has not been launched yet"),
            Self::InState(WorkerState::Starting) => Some("it is not registered yet"),
            Self::InState(WorkerState::Ready) => None,
            Self::InState(WorkerState::Draining) => Some("it is draining"),
            Self::InState(WorkerState::Left) => Some("it has left"),
            Self::InState(WorkerState::Dead) => Some("it is dead"),
        }
    }
}
