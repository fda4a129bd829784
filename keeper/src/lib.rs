//! What a daemon of multi-user mode and its keeper say to each other. The daemon parses what users
//! and hosts send, and has no privileges. The keeper runs as root, and does for the daemon what
//! needs that. docs/security.md says what each of them may do.
//!
//! This crate has the records and the vouchers, without I/O. It uses no other crate of ours and no
//! serializer: the keeper parses by hand, and checks every length.
#![forbid(unsafe_code)]

pub mod field;
pub mod record;
pub mod voucher;
