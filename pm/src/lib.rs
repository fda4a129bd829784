//! PMv2.
pub mod error;
pub use error::{Error, Result};
