//! Shared parts of the commands.
