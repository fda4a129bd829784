//! `scatter` (manual, scatter(6)): what node 0 reads goes to every node, in a pipeline along the
//! nodes as in figure 1.5.

pub mod relay;
