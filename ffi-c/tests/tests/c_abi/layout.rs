//! The structures of pm.h have the same memory layout as those of Rust.

use std::mem::{offset_of, size_of};
use std::process::Command;

use score_c_tests::{TempDir, compilers, include, run_ok, source, stdout};

/// A structure: its C name, its size, and its members with their offsets.
macro_rules! lines {
    ($($c:literal = $rust:ty { $($member:literal $field:ident),* })*) => {
        [$(
            format!("{} {}", $c, size_of::<$rust>()),
            $( format!("{}.{} {}", $c, $member, offset_of!($rust, $field)), )*
        )*]
    };
}

#[test]
fn sizes_and_offsets_are_the_same_in_c_and_in_rust() {
    let rust = lines! {
        "pmContextConfig" = pm::ContextConfig {
            "type" kind, "number" number, "nodes" nodes, "mtu" mtu, "size" size, "option" option
        }
        "pmDeviceConfig" = pm::DeviceConfig {
            "type" kind, "nodes" nodes, "contexts" contexts, "mtu" mtu, "size" size, "option" option
        }
        "pmMessageQueueStatus" = pm::MessageQueueStatus {
            "receive" receive, "send" send, "read" read
        }
        "pmRemoteStatus" = pm::RemoteStatus {
            "started" started, "completed" completed
        }
        "pmMmapInfo" = pm::MmapInfo {
            "addr" addr, "len" len, "offset" offset, "fd" fd, "prot" prot
        }
        "pmAddrHandle" = pm::AddrHandle {}
    };
    for compiler in compilers(false) {
        let scratch = TempDir::new(&format!("layout-{compiler}"));
        let program = scratch.file("layout");
        run_ok(
            Command::new(compiler)
                .arg("-I")
                .arg(include())
                .arg(source("layout.c"))
                .arg("-o")
                .arg(&program),
        );
        let c = stdout(&mut Command::new(&program));
        assert_eq!(c.lines().collect::<Vec<_>>(), rust, "{compiler}");
    }
}
