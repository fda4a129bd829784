//! libscore.so: only the C functions and variables of `score_runtime`. The functions of PM stay
//! undefined here, and the loader finds them in libpm.so.
#![forbid(unsafe_code)]

extern crate score_runtime as _;
