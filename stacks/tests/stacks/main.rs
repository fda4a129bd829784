//! Tests of the stacks of real processes, in several languages and in all states.

mod languages;
mod states;
mod support;
