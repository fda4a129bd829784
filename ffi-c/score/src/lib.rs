//! libscore.so: only the C functions and variables of `score_runtime`. Those of PM stay undefined
//! here and are resolved from libpm.so.
#![forbid(unsafe_code)]

extern crate score_runtime as _;
