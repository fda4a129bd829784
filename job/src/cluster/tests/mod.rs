//! The machines of a cluster: step by step, against a simulated network, and at size.
mod bounds;
mod faults;
mod hostile;
mod lifecycle;
mod membership;
mod requests;
mod scaling;
mod simulation;
mod tree_members;
