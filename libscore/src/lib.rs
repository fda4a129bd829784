//! The runtime library of SCore programs.
