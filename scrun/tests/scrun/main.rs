//! Tests of the real scrun: options, hosts, resource requests, sessions and terminals.

mod built;
mod corpus;
mod harness;
mod hosts;
mod resource;
mod session;
mod terminal;
