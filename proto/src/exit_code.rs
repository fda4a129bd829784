//! Exit codes of SCore's own programs, and of jobs that SCore ends. Users and scripts rely on them.
//! Each code therefore has one name, which is defined here (scrun(1), EXIT STATUS). Values above 63
//! follow sysexits(3).

/// The operation failed.
pub const EXIT_FAILED: u8 = 1;
/// A host of the job or of the scout session is lost.
pub const EXIT_HOST_LOST: u8 = 1;
/// A daemon has lost its server.
pub const EXIT_SERVER_LOST: u8 = 1;
/// The command needs a scout session, and there is none.
pub const EXIT_NO_SESSION: u8 = 1;
/// scorehosts: no host is left.
pub const EXIT_NO_HOSTS: u8 = 1;
/// The command line is wrong. Shells use the same code.
pub const EXIT_USAGE: u8 = 2;
/// The daemon or the cluster refuses the job.
pub const EXIT_REFUSED: u8 = 2;
/// A parallel process was ended because of a deadlock.
pub const EXIT_DEADLOCK: u8 = 35;
/// scrun has lost its daemon.
pub const EXIT_DAEMON_LOST: u8 = 70;
/// Standard output could not be written.
pub const EXIT_IO_ERROR: u8 = 74;
/// A shepherd could not become the user of its job.
pub const EXIT_SETUID_FAILED: u8 = 77;
/// The program exists but cannot be executed, as in a shell.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The program was not found, as in a shell.
pub const EXIT_NOT_FOUND: u8 = 127;
