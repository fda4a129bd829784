//! The machines of a cluster: step by step, against a simulated network, and at size.
mod faults;
mod growth;
mod hostile;
mod life;
mod world;
