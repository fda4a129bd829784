//! Parts that several measurements share.

pub mod client;
