//! Tests of the device for RDMA hardware, with or without adapters. `cargo xtask test` runs them on
//! the host and in a virtual machine with an adapter. It runs them there once more after the
//! adapter was removed.

use score_pm::{
    AdapterChoice, Device, DeviceOptions, Error, NetworkOptions, OPT_REMOTE_READ, OPT_REMOTE_WRITE,
    VerbsOptions, rdma,
};
use std::fs;

/// Returns the names of the adapters, or None if the kernel has no RDMA support.
fn adapters() -> Option<Vec<String>> {
    let entries = fs::read_dir("/sys/class/infiniband").ok()?;
    Some(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

fn open(options: &[&str]) -> Result<(), Error> {
    Device::open(DeviceOptions::parse("verbs", options)?).map(drop)
}

// Promise (messages): Without RDMA the project builds and starts, and verbs returns ENODEV with the
// reason: library, kernel or adapter; with RDMA, options choose adapter, port, address, partition
// and service level.
#[test]
fn the_device_opens_if_there_is_an_adapter_and_reports_the_reason_otherwise() {
    let probed = rdma::describe_default_port();
    println!("{probed:?}");
    let in_vm = std::env::var_os("SCORE_VM").is_some();
    match (adapters(), probed) {
        (_, Err(why)) if why.starts_with("no RDMA library") => assert!(!in_vm, "{why}"),
        (None, probed) => {
            assert_eq!(probed.unwrap_err(), "this kernel has no RDMA support (module ib_uverbs)");
            assert_eq!(open(&[]), Err(Error::NoDevice));
        }
        (Some(names), probed) if names.is_empty() => {
            assert_eq!(probed.unwrap_err(), "no RDMA adapter, or no provider library for it");
            assert_eq!(open(&[]), Err(Error::NoDevice));
        }
        // A real adapter may be down, or its use may be forbidden. The adapter of the virtual
        // machine must work.
        (Some(names), probed) => {
            if in_vm {
                assert!(names.contains(&"rxe0".to_owned()), "{names:?}");
                check_rxe_adapter(&probed.unwrap());
            }
        }
    }
}

fn check_rxe_adapter(description: &str) {
    assert_eq!(
        description,
        "rxe0 port 1, RoCE, GID 1 ::ffff:10.9.0.1, MTU 1024, partition 0xffff, service level 0"
    );
    let adapter = AdapterChoice {
        device: Some("rxe0".to_owned()),
        port: Some(1),
        ..AdapterChoice::default()
    };
    let options = VerbsOptions { adapter, ..VerbsOptions::new(NetworkOptions::on_one_host(2)) };
    let device = Device::open(options).unwrap();
    let config = device.config().unwrap();
    assert_eq!((config.kind, config.nodes, config.contexts), ("verbs", 2, 2));
    assert_eq!(device.option_bits(), Ok(OPT_REMOTE_READ | OPT_REMOTE_WRITE));
    device.close().unwrap();
    assert_eq!(open(&["-gid", "0", "-partition", "ffff", "-level", "3"]), Ok(()));
    for missing in [["-device", "rxe1"], ["-port", "2"], ["-gid", "200"], ["-partition", "8001"]] {
        assert_eq!(open(&missing), Err(Error::NoDevice), "{missing:?}");
    }
    assert_eq!(open(&["-level", "16"]), Err(Error::Invalid));
}
