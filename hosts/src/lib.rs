//! The hosts of a cluster: `scorehosts.db`, expressions over hosts and groups, the choice of hosts
//! for a job, and the allocations of batch systems. See docs/dev/hosts.md.
//!
//! The path from a file to hosts: [`database_file`] -> [`preprocess`] and its macros ->
//! [`database`] -> [`expression`] -> [`placement`]. Only [`database_file`] accesses the disk. All
//! other modules read files through [`database_file::ReadFile`].
#![forbid(unsafe_code)]

pub mod allocation;
pub mod attributes;
pub mod database;
pub mod database_file;
pub mod error;
pub mod expression;
pub mod hostlist;
mod macros;
pub mod name_suggestion;
pub mod node_request;
pub mod placement;
pub mod preprocess;

pub use allocation::{Allocation, allocation};
pub use database::{Database, Host, HostInterface, Network};
pub use error::{ExpressionError, ParseError};
pub use expression::{Context, VirtualHostSpec, evaluate};
pub use node_request::{Shape, parse_nodes};
pub use placement::{Placement, PlacementRequest, place};

/// The largest number of hosts in one database, range, expression or allocation.
pub const MAX_HOSTS: usize = 65_536;

/// The largest number of nodes, which is PM's limit `PM_MAX_NODE`.
pub const MAX_NODES: u32 = 1_048_576;

/// Fuzzing entry. The bytes are parsed as a `scorehosts.db`, then as an expression over its hosts.
///
/// # Panics
/// If a host of the result is not in the database.
pub fn fuzz_database(bytes: &[u8]) {
    let include = |path: &std::path::Path| {
        if path.ends_with("self") {
            return Ok(bytes.to_vec());
        }
        Err(std::io::ErrorKind::NotFound.into())
    };
    match Database::parse("scorehosts.db", bytes, &include) {
        Ok(database) => {
            let context = Context { database: Some(&database), ..Context::new(&include) };
            for host in database.hosts() {
                let found = evaluate(&host.name, &context);
                assert_eq!(found.map(|hosts| hosts[0].name.clone()), Ok(host.name.clone()));
            }
            database.available(database.hosts().to_vec());
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Fuzzing entry. The first line is an expression over the hosts and groups of a fixed database.
/// The whole input is the value of `nodes` and of the variables of batch systems.
///
/// # Panics
/// If an expression gives a host twice, or no host.
pub fn fuzz_expression(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let db = b"comp[0-7] group=all cores=2\nspare0 group=spares\n";
    let file = |_: &std::path::Path| Ok(b"comp1\ncomp2\n".to_vec());
    let database = Database::parse("db", db, &file).expect("a database as documented");
    let context = Context { database: Some(&database), ..Context::new(&file) };
    let line = text.lines().next().unwrap_or_default();
    match evaluate(line, &context) {
        Ok(hosts) => {
            let names: std::collections::HashSet<&str> =
                hosts.iter().map(|host| host.name.as_str()).collect();
            assert!(!hosts.is_empty() && names.len() == hosts.len());
        }
        Err(error) => assert!(line.is_char_boundary(error.offset.min(line.len())), "{error}"),
    }
    let _ = parse_nodes(line);
    allocation::fuzz(&text);
}
