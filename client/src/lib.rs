//! Connections by frames between processes of a host, the login of a client to scored, and the
//! directories that clients send.
//!
//! | file | content |
//! |---|---|
//! | `framed_socket.rs` | [`FramedSocket`]: either end of a connection of any messages |
//! | `connection.rs` | [`Connection`]: the client's end of a connection to a scored |
//! | `login.rs` | the ways to reach a scored, and the login of multi-user mode |
//! | `folder_archive.rs` | [`FolderArchive`]: a directory that hosts of a job get for tools |
//! | `error.rs` | [`ConnectionError`]: the errors in words for users |
//! | `readiness.rs` | waiting for one descriptor |
//! | `event_mask.rs` | a registration that mio does not offer |

mod connection;
mod error;
mod event_mask;
mod folder_archive;
mod framed_socket;
mod login;
mod readiness;

pub use connection::{Connection, Received};
pub use error::ConnectionError;
pub use folder_archive::{FolderArchive, chunk_ranges, read_full_at};
pub use framed_socket::{FramedSocket, READ_BUFFER_LEN, with_read_buffer};
pub use login::{
    Service, connect_to_scout_session, connect_to_single_user, login, login_of_this_process,
};
pub use readiness::{Readiness, is_readable, wait_until_ready};
