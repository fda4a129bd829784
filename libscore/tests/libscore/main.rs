//! Tests of libscore with C programs, without and with a small shepherd.

mod attach;
mod calls;
mod harness;
mod headers;
mod idle;
mod local;
mod messages;
mod ring_example;
