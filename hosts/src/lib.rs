//! The hosts of a cluster: `scorehosts.db`, expressions over hosts and groups, and the choice of
//! hosts for a job. See docs/ARCHITECTURE.md, "Many hosts".
#![forbid(unsafe_code)]
