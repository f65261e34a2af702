//! TCP request plane: frames and acks on the connections that frontends open.

pub mod frame;
pub mod server;
