//! The ways in which the router can be wrong, one at a time.

/// One mistake of real routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// After a gap it asks for the whole cache again and again, and is never content.
    EndlessDumps,
    /// It knows streams by the worker's id: one that begins anew after a restart is old news to it.
    StaleCredit,
    /// An event is proof of life: it brings back a worker that has left.
    LateEventRevives,
    /// A block that is listed twice in one message is there twice.
    DuplicatesCount,
    /// Two sources for one rank are believed both, and their blocks added up.
    BothSourcesCount,
    /// A block fills as much memory as it always did, however small blocks have become.
    BlockSizeIgnored,
    /// A worker is there as long as its key is.
    DeadForEver,
    /// A slot is free again when an answer is complete, and not otherwise.
    PinnedSlots,
    /// Who publishes nothing must be broken.
    SilenceStarves,
    /// Who publishes nothing has nothing to do.
    SilenceAttracts,
    /// A stream that breaks off is over, and ends as if the model had stopped.
    CutIsTheEnd,
    /// A stream that is moved begins anew: what clients have already comes again.
    MoveRepeats,
    /// The same, but it counts: as many tokens come as were asked for, and not all of them are others.
    MoveReplays,
    /// A client that has gone is no reason to stop: its answer is read to the end.
    CancelIsLost,
    /// Whoever has the prompt gets the request, and the others take turns: how much they have to do is nobody's business.
    LoadIgnored,
    /// Nothing is routed while a worker is asked for its cache.
    RecoveryBlocks,
}
