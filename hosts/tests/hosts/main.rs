//! Tests of the database of hosts: its preprocessor, and the seeds of its fuzz targets.

mod corpus;
mod cpp;
