//! Devices: pm(3).

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_ulong};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use score_pm::{Context, Device, DeviceOptions, Error, PmResult};

use crate::{array, in_out, int, name, non_negative, out, text, to_errno};

/// `pmDeviceConfig`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceConfig {
    /// Device name.
    pub kind: *const c_char,
    /// Number of nodes.
    pub nodes: c_int,
    /// Number of contexts.
    pub contexts: c_int,
    /// Longest message.
    pub mtu: usize,
    /// Bytes of memory that one channel maps.
    pub size: usize,
    /// Option bits.
    pub option: c_ulong,
}

/// An open device, and the process that opened it. A child of fork() has no devices.
struct OpenDevice {
    device: Arc<Device>,
    process: u32,
}

/// The open devices by their address in C. A `pmDevice *` is looked up here and never dereferenced,
/// so a closed device gives EINVAL.
static DEVICES: LazyLock<Mutex<BTreeMap<usize, OpenDevice>>> = LazyLock::new(Mutex::default);

fn devices() -> std::sync::MutexGuard<'static, BTreeMap<usize, OpenDevice>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of a C pointer.
fn device(pmd: *const Device) -> PmResult<Arc<Device>> {
    let devices = devices();
    let open = devices.get(&pmd.addr()).ok_or(Error::Invalid)?;
    if open.process == std::process::id() { Ok(open.device.clone()) } else { Err(Error::Invalid) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetTypeList(types: *mut *mut c_char, ntypesp: *mut c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let ntypes = unsafe { in_out(ntypesp) }?;
        let capacity = non_negative(*ntypes)? as usize;
        let list = score_pm::type_list();
        *ntypes = int(list.len());
        if capacity < list.len() {
            return Err(Error::NoSpace);
        }
        // SAFETY: the rule of the crate.
        let types = unsafe { array(types, list.len()) }?;
        for (entry, kind) in types.iter_mut().zip(list) {
            *entry = name(kind).cast_mut();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmOpenDevice(
    kind: *const c_char,
    argc: c_int,
    argv: *const *const c_char,
    pmdp: *mut *const Device,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (kind, pmdp) = unsafe { (text(kind)?, out(pmdp)?) };
        // SAFETY: the rule of the crate; the array is only read.
        let args = unsafe { array(argv.cast_mut(), non_negative(argc)? as usize) }?;
        // SAFETY: the rule of the crate, for each word.
        let args: PmResult<Vec<&str>> = args.iter().map(|word| unsafe { text(*word) }).collect();
        let device = Arc::new(Device::open(DeviceOptions::parse(kind, &args?)?)?);
        let address = Arc::as_ptr(&device);
        devices().insert(address.addr(), OpenDevice { device, process: std::process::id() });
        pmdp.write(address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmCloseDevice(pmd: *const Device) -> c_int {
    to_errno(|| {
        device(pmd)?.close()?;
        devices().remove(&pmd.addr());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetDeviceConfig(pmd: *const Device, config: *mut DeviceConfig) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let config = unsafe { out(config) }?;
        let found = device(pmd)?.config()?;
        config.write(DeviceConfig {
            kind: name(found.kind),
            nodes: int(found.nodes),
            contexts: int(found.contexts),
            mtu: found.mtu,
            size: found.size,
            option: found.option,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetOptionBit(pmd: *const Device, optionp: *mut c_ulong) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let option = unsafe { out(optionp) }?;
        option.write(device(pmd)?.option_bits()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmGetNodeList(
    pmd: *const Device,
    nodes: *mut c_int,
    nnodesp: *mut c_int,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let nnodes = unsafe { in_out(nnodesp) }?;
        let capacity = non_negative(*nnodes)? as usize;
        let list = device(pmd)?.node_list()?;
        *nnodes = int(list.len());
        if capacity < list.len() {
            return Err(Error::NoSpace);
        }
        // SAFETY: the rule of the crate.
        let nodes = unsafe { array(nodes, list.len()) }?;
        for (entry, node) in nodes.iter_mut().zip(list) {
            *entry = int(node as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmIsReachable(
    pmd: *const Device,
    node: c_int,
    reachablep: *mut c_int,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let reachable = unsafe { out(reachablep) }?;
        reachable.write(c_int::from(device(pmd)?.is_reachable(non_negative(node)?)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmOpenContext(
    pmd: *const Device,
    number: c_int,
    pmcp: *mut *mut Context,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let pmcp = unsafe { out(pmcp) }?;
        let context = device(pmd)?.open_context(non_negative(number)? as usize)?;
        pmcp.write(context.into_raw());
        Ok(())
    })
}
