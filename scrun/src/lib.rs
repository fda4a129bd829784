//! scrun, as a library for its tests.
