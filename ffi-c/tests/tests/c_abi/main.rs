//! The C ABI: headers, symbols, layouts, C programs and compiler wrappers, with each installed
//! compiler.
#![forbid(unsafe_code)]

mod example;
mod headers;
mod layout;
mod programs;
mod symbols;
mod tools_layout;
mod wrappers;
