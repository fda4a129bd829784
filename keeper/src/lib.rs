//! The protocol between a daemon of multi-user mode and its keeper. The daemon parses what users
//! and hosts send, and has no privileges. The keeper runs as root and performs privileged actions
//! for the daemon. docs/admin/security.md lists the rights of both processes.
//!
//! This crate contains the records and the vouchers. It does no I/O. It uses no other crate of the
//! project and no serializer, because the keeper parses by hand and checks each length.
#![forbid(unsafe_code)]

pub mod field;
pub mod record;
pub mod voucher;
