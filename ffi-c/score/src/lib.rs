//! libscore.so: the C functions and variables of `score_runtime`, nothing else. Those of PM stay
//! undefined here; libpm.so has them.
#![forbid(unsafe_code)]

extern crate score_runtime as _;
