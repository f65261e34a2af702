//! Settings as a user meets them: who wins, where each value came from, and how every unusable input ends the command with
//! exit code 2 and words that name the place and the way out.

#![allow(clippy::unwrap_used)]

mod scene;

#[cfg(feature = "aic")]
mod aic;

mod documents;
mod precedence;
mod roles;
mod unread;
mod values;
