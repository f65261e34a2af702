//! The `ghostfleet` command.
fn main() {}
