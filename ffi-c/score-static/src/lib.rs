//! libscore.a: the C functions and variables of `score_runtime` and of PM, so that a static link
//! needs one archive.
#![forbid(unsafe_code)]

extern crate pm as _;
extern crate score_runtime as _;
