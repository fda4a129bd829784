//! `score_initialize` and its three roles (manual 2.1, 1.4.2, 1.4.4).

use std::sync::Once;

use score_proto::env;

use crate::{attach, environment, exit, resource_request};

/// Makes this process a node of its parallel process. The role depends on how the process was
/// started:
/// - by SCore-D: attaches to it, and returns after all nodes have called this function;
/// - by scrun to get the resource request: writes the request and ends the process;
/// - without SCore-D and scrun: the process is a single node and has no network.
///
/// A second call has no effect. If initialization fails, prints the reason and ends the process
/// with code 1.
pub fn initialize() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(reason) = choose_role() {
            crate::stdio::print_line(format_args!("score_initialize: {reason}"));
            exit::exit_immediately(1);
        }
    });
}

fn choose_role() -> Result<(), String> {
    if let Some(socket) = environment::take_descriptor(env::CONTROL_FD_ENV)? {
        return attach::attach(socket);
    }
    if let Some(pipe) = environment::take_descriptor(env::RESOURCE_FD_ENV)? {
        resource_request::write(pipe)
            .map_err(|e| format!("cannot write the resource request: {e}"))?;
        // No user code runs in this role, and thus no exit handlers (manual 2.1).
        exit::exit_immediately(0);
    }
    Ok(())
}
