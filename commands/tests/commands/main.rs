//! The commands as a user runs them: under the real scrun and scored.

mod gather;
mod outside;
mod pmtest;
mod running;
mod scatter;
mod scorehosts;
mod system;
