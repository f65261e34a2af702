//! Request graphs: requests that wait for others to be dispatched or to complete.
//!
//! | Rule | Dynamo 1.6.1 | Dynamo 1.4.2 |
//! |---|---|---|
//! | due at | latest of the own time and, per dependency, its trigger plus its delay | latest completion waited for, plus one delay |
//! | at one instant | by name | by place in the file |
//! | a request that fails | ends its play: what was not dispatched is skipped | counts as completed |
//!
//! Plays (independent graphs) run at their own times, or on lanes: a lane that has no work left takes the next play in
//! order. Source: Dynamo 1.6.1 agentic replay; 1.4.2 where said.

mod graph;
mod ids;
mod lifecycle;
mod plays;
mod source;

pub use graph::{AgenticRequest, Dependency, Graph, GraphError, GraphOrigin, Place, Relation, Trigger};
pub use ids::{HashIds, IdSink, IdStore, ReadAt};
pub use source::{AgenticSource, GraphSummary};
