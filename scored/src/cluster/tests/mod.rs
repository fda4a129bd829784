//! The machines of a cluster against a simulated network.
mod life;
