//! Tests of the state machines of a cluster: single steps, a simulated network, and large clusters.
mod bounds;
mod faults;
mod hostile;
mod lifecycle;
mod membership;
mod placement;
mod requests;
mod scaling;
mod simulation;
mod tree_members;
