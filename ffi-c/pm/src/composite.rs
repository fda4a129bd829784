//! Composites: routes from nodes to members.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::c_int;

use score_pm::{Context, Error, PmResult};

use crate::{array, int, non_negative, out, to_errno};

#[unsafe(no_mangle)]
unsafe extern "C" fn pmAddNode(
    pmc: *mut Context,
    node: c_int,
    member_pmc: *mut Context,
    member_node: c_int,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, member) = unsafe { (Context::from_ptr(pmc)?, Context::from_ptr(member_pmc)?) };
        pmc.add_node(non_negative(node)?, member, non_negative(member_node)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmRemoveNode(pmc: *mut Context, node: c_int) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.remove_node(non_negative(node)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmExtractNode(
    pmc: *mut Context,
    node: c_int,
    member_pmcp: *mut *mut Context,
    member_nodep: *mut c_int,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, member_pmcp, member_nodep) =
            unsafe { (Context::from_ptr(pmc)?, out(member_pmcp)?, out(member_nodep)?) };
        let (member, member_node) = pmc.extract_node(non_negative(node)?)?;
        member_pmcp.write(member.as_ptr());
        member_nodep.write(int(member_node as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmAssociateNodes(
    pmc: *mut Context,
    member: *mut Context,
    nnodes: c_int,
    nodes: *const c_int,
    member_nodes: *const c_int,
) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        let (pmc, member) = unsafe { (Context::from_ptr(pmc)?, Context::from_ptr(member)?) };
        let count = non_negative(nnodes)? as usize;
        if count > score_pm::MAX_NODE {
            return Err(Error::Invalid);
        }
        // SAFETY: the rule of the crate; the arrays are only read.
        let (nodes, member_nodes) =
            unsafe { (array(nodes.cast_mut(), count)?, array(member_nodes.cast_mut(), count)?) };
        let pair = |(node, member_node): (&mut c_int, &mut c_int)| {
            Ok((non_negative(*node)?, non_negative(*member_node)?))
        };
        let pairs: PmResult<Vec<_>> = nodes.iter_mut().zip(member_nodes).map(pair).collect();
        pmc.associate_nodes(member, &pairs?)
    })
}
