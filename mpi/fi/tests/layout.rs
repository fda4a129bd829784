//! Checks that the declarations of libfabric's structures have the layout of its headers. The
//! headers are those in the directory LIBFABRIC_INCLUDE, those of the system, or those of the
//! packages that `cargo xtask test` unpacks.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../src/abi.rs"]
#[allow(dead_code)]
mod abi;

use abi::*;

/// The C name of a structure, a member of it, and the member's offset and size here.
type Member = (&'static str, &'static str, usize, usize);

/// The offsets and sizes of members. A string after a member is its name in C, if it differs.
macro_rules! members {
    ($($c_type:literal $type:ident { $($member:ident $($name:literal)?),* $(,)? })*) => {
        vec![$($((
            $c_type,
            [stringify!($member) $(, $name)?].last().copied().unwrap(),
            std::mem::offset_of!($type, $member),
            size_of_member(|value: &$type| &raw const value.$member),
        )),*),*]
    };
}

fn size_of_member<T, M>(_: impl Fn(&T) -> *const M) -> usize {
    size_of::<M>()
}

fn declared() -> Vec<Member> {
    members! {
        "struct fid" Fid { fclass, context, ops }
        "struct fi_ops" FiOps { size, close, bind, control, ops_open }
        "struct fi_provider" FiProvider {
            version, fi_version, context, name, getinfo, fabric, cleanup,
        }
        "struct fi_tx_attr" FiTxAttr {
            caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
            rma_iov_limit,
        }
        "struct fi_rx_attr" FiRxAttr {
            caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit,
        }
        "struct fi_ep_attr" FiEpAttr {
            kind "type", protocol, protocol_version, max_msg_size, msg_prefix_size,
            max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format,
            tx_ctx_cnt, rx_ctx_cnt,
        }
        "struct fi_domain_attr" FiDomainAttr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt,
            max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit,
            caps, mode,
        }
        "struct fi_fabric_attr" FiFabricAttr { fabric, name, prov_name, prov_version }
        "struct fi_info" FiInfo {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
            tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr,
        }
        "struct fi_ops_fabric" FiOpsFabric {
            size, domain, passive_ep, eq_open, wait_open, trywait,
        }
        "struct fid_fabric" FidFabric { fid, ops, api_version }
        "struct fi_ops_domain" FiOpsDomain {
            size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
            query_atomic,
        }
        "struct fi_ops_mr" FiOpsMr { size, reg, regv, regattr }
        "struct fid_domain" FidDomain { fid, ops, mr }
        "struct fi_av_attr" FiAvAttr {
            kind "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags,
        }
        "struct fi_ops_av" FiOpsAv {
            size, insert, insertsvc, insertsym, remove, lookup, straddr,
        }
        "struct fid_av" FidAv { fid, ops }
        "struct fi_cq_attr" FiCqAttr {
            size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set,
        }
        "struct fi_cq_tagged_entry" FiCqTaggedEntry { op_context, flags, len, buf, data, tag }
        "struct fi_cq_err_entry" FiCqErrEntry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data,
            err_data_size,
        }
        "struct fi_ops_cq" FiOpsCq {
            size, read, readfrom, readerr, sread, sreadfrom, signal, strerror,
        }
        "struct fid_cq" FidCq { fid, ops }
        "struct fi_ops_cntr" FiOpsCntr { size, read, readerr, add, set, wait, adderr, seterr }
        "struct fid_cntr" FidCntr { fid, ops }
        "struct fi_ops_eq" FiOpsEq { size, read, readerr, write, sread, strerror }
        "struct fid_eq" FidEq { fid, ops }
        "struct fi_ops_ep" FiOpsEp {
            size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left,
        }
        "struct fi_ops_cm" FiOpsCm {
            size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join,
        }
        "struct fi_ops_msg" FiOpsMsg {
            size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata,
        }
        "struct fi_ops_tagged" FiOpsMsg {
            size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata,
        }
        "struct fid_ep" FidEp { fid, ops, cm, msg, rma, tagged, atomic }
        "struct fi_msg" FiMsg { msg_iov, desc, iov_count, addr, context, data }
        "struct fi_msg_tagged" FiMsgTagged {
            msg_iov, desc, iov_count, addr, tag, ignore, context, data,
        }
    }
}

/// The members of structures for remote memory, atomic operations and counters.
fn declared_of_remote_memory() -> Vec<Member> {
    members! {
        "struct fi_ops_rma" FiOpsRma {
            size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata,
        }
        "struct fi_ops_atomic" FiOpsAtomic {
            size, write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite,
            compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid,
        }
        "struct fi_ioc" FiIoc { addr, count }
        "struct fi_rma_ioc" FiRmaIoc { addr, count, key }
        "struct fi_msg_atomic" FiMsgAtomic {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data,
        }
        "struct fi_atomic_attr" FiAtomicAttr { count, size }
        "struct fid_mr" FidMr { fid, mem_desc, key }
        "struct fi_mr_attr" FiMrAttr {
            mr_iov, iov_count, access, offset, requested_key, context,
        }
        "struct fi_cntr_attr" FiCntrAttr { events, wait_obj, wait_set, flags }
        "struct fi_rma_iov" FiRmaIov { addr, len, key }
        "struct fi_msg_rma" FiMsgRma {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data,
        }
    }
}

/// The sizes of whole structures, and the values of constants.
fn declared_values() -> Vec<(&'static str, u64)> {
    macro_rules! constants {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name), $name as u64)),*] };
    }
    let mut values = constants![
        FI_MSG,
        FI_RMA,
        FI_TAGGED,
        FI_ATOMIC,
        FI_READ,
        FI_WRITE,
        FI_REMOTE_READ,
        FI_REMOTE_WRITE,
        FI_FENCE,
        FI_MR_ALLOCATED,
        FI_MR_PROV_KEY,
        FI_CNTR_EVENTS_COMP,
        FI_CLASS_MR,
        FI_ENOKEY,
        FI_RECV,
        FI_SEND,
        FI_MULTI_RECV,
        FI_REMOTE_CQ_DATA,
        FI_PEEK,
        FI_COMPLETION,
        FI_INJECT,
        FI_INJECT_COMPLETE,
        FI_TRANSMIT_COMPLETE,
        FI_DELIVERY_COMPLETE,
        FI_MATCH_COMPLETE,
        FI_LOCAL_COMM,
        FI_REMOTE_COMM,
        FI_SOURCE,
        FI_DIRECTED_RECV,
        FI_CLAIM,
        FI_DISCARD,
        FI_SELECTIVE_COMPLETION,
        FI_ORDER_SAS,
        FI_ORDER_ATOMIC_RAR,
        FI_ORDER_ATOMIC_RAW,
        FI_ORDER_ATOMIC_WAR,
        FI_ORDER_ATOMIC_WAW,
        FI_FETCH_ATOMIC,
        FI_COMPARE_ATOMIC,
        FI_EP_UNSPEC,
        FI_EP_RDM,
        FI_AV_UNSPEC,
        FI_AV_TABLE,
        FI_PROGRESS_UNSPEC,
        FI_PROGRESS_MANUAL,
        FI_THREAD_UNSPEC,
        FI_THREAD_SAFE,
        FI_THREAD_DOMAIN,
        FI_RM_ENABLED,
        FI_ADDR_UNSPEC,
        FI_ADDR_NOTAVAIL,
        FI_FORMAT_UNSPEC,
        FI_CLASS_FABRIC,
        FI_CLASS_DOMAIN,
        FI_CLASS_EP,
        FI_CLASS_AV,
        FI_CLASS_EQ,
        FI_CLASS_CQ,
        FI_CLASS_CNTR,
        FI_GETOPSFLAG,
        FI_GETWAIT,
        FI_ENABLE,
        FI_OPT_ENDPOINT,
        FI_OPT_MIN_MULTI_RECV,
        FI_CQ_FORMAT_UNSPEC,
        FI_CQ_FORMAT_CONTEXT,
        FI_CQ_FORMAT_MSG,
        FI_CQ_FORMAT_DATA,
        FI_CQ_FORMAT_TAGGED,
        FI_WAIT_NONE,
        FI_WAIT_UNSPEC,
        FI_WAIT_FD,
        FI_WAIT_YIELD,
        FI_ETOOSMALL,
        FI_EAVAIL,
        FI_ETRUNC,
    ];
    values.extend([
        ("sizeof(struct fi_cq_entry)", 8),
        ("sizeof(struct fi_cq_msg_entry)", 24),
        ("sizeof(struct fi_cq_data_entry)", 40),
        ("sizeof(struct fi_cq_tagged_entry)", size_of::<FiCqTaggedEntry>() as u64),
        ("sizeof(struct fi_ops_msg)", size_of::<FiOpsMsg>() as u64),
        ("sizeof(struct fi_ops_tagged)", size_of::<FiOpsMsg>() as u64),
        ("sizeof(struct fi_ops_rma)", size_of::<FiOpsRma>() as u64),
        ("sizeof(struct fi_ops_atomic)", size_of::<FiOpsAtomic>() as u64),
        ("sizeof(struct fi_msg)", size_of::<FiMsg>() as u64),
        ("sizeof(struct fi_msg_tagged)", size_of::<FiMsgTagged>() as u64),
    ]);
    values
}

fn c_program(members: &[Member], values: &[(&str, u64)]) -> String {
    let headers = [
        "fabric",
        "fi_atomic",
        "fi_cm",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_errno",
        "fi_rma",
        "fi_tagged",
        "providers/fi_prov",
    ];
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        let _ = writeln!(text, "#include <rdma/{header}.h>");
    }
    text.push_str("int main(void) {\n");
    for (c_type, name, ..) in members {
        let _ = writeln!(
            text,
            "printf(\"%zu %zu\\n\", offsetof({c_type}, {name}), sizeof((({c_type} *)0)->{name}));"
        );
    }
    for (name, _) in values {
        let _ = writeln!(text, "printf(\"%llu\\n\", (unsigned long long)({name}));");
    }
    text.push_str("return 0; }\n");
    text
}

/// The directory of the headers: LIBFABRIC_INCLUDE, or that of the system or of the tests.
fn include_folder() -> Option<PathBuf> {
    let testbeds = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("testbeds/usr/include");
    let named = std::env::var_os("LIBFABRIC_INCLUDE").map(PathBuf::from);
    let folders = named.into_iter().chain([PathBuf::from("/usr/include"), testbeds]);
    folders.into_iter().find(|folder| folder.join("rdma/providers/fi_prov.h").exists())
}

#[test]
fn structures_and_constants_are_as_in_the_headers() {
    let Some(include) = include_folder() else {
        return eprintln!("skipped: there are no headers of libfabric (libfabric-dev)");
    };
    let members = [declared(), declared_of_remote_memory()].concat();
    let values = declared_values();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, c_program(&members, &values)).unwrap();
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    compiler.arg("-w").arg("-I").arg(&include).arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut lines = output.lines();
    for (c_type, name, offset, size) in members {
        let line = lines.next().unwrap();
        assert_eq!(line, format!("{offset} {size}"), "{c_type} {name}");
    }
    for (name, value) in values {
        assert_eq!(lines.next().unwrap(), value.to_string(), "{name}");
    }
    assert_eq!(lines.next(), None);
}
