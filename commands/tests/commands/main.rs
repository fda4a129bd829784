//! Tests of the commands under the real scrun and scored.

mod gather;
mod harness;
mod pmtest;
mod scatter;
mod scorehosts;
mod system;
mod without_scrun;
