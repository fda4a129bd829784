//! The MPI calls that wait for other processes, and the arguments of each that a report shows. The
//! table is the only list of them. `libscore-mpi.so` generates a function for each call from it. A
//! process records the number of the call in its C-Area, and reports print its name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Passes the table to a macro. A row contains the name of a call, all of its arguments, and those
/// that are recorded with their [`MpiArgument`]. At most [`MAX_RECORDED`] arguments are recorded.
///
/// The table contains neither calls that wait for processes outside the job (`MPI_Comm_accept`,
/// `MPI_Comm_spawn`), nor `MPI_Init`, in which a process becomes a node.
#[macro_export]
macro_rules! for_each_mpi_call {
    ($action:ident) => {
        $action! {
            // Messages.
            MPI_Send(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Send_c(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Bsend(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Bsend_c(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Ssend(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Ssend_c(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Rsend(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Rsend_c(buf count datatype dest tag comm) [Destination dest, Tag tag, Comm comm];
            MPI_Recv(buf count datatype source tag comm status) [Source source, Tag tag, Comm comm];
            MPI_Recv_c(
                buf count datatype source tag comm status
            ) [Source source, Tag tag, Comm comm];
            MPI_Sendrecv(
                sendbuf sendcount sendtype dest sendtag recvbuf
                recvcount recvtype source recvtag comm status
            ) [Destination dest, Source source, Tag recvtag, Comm comm];
            MPI_Sendrecv_c(
                sendbuf sendcount sendtype dest sendtag recvbuf
                recvcount recvtype source recvtag comm status
            ) [Destination dest, Source source, Tag recvtag, Comm comm];
            MPI_Sendrecv_replace(
                buf count datatype dest sendtag source recvtag comm status
            ) [Destination dest, Source source, Tag recvtag, Comm comm];
            MPI_Sendrecv_replace_c(
                buf count datatype dest sendtag source recvtag comm status
            ) [Destination dest, Source source, Tag recvtag, Comm comm];
            MPI_Probe(source tag comm status) [Source source, Tag tag, Comm comm];
            MPI_Mprobe(source tag comm message status) [Source source, Tag tag, Comm comm];
            MPI_Mrecv(buf count datatype message status) [];
            MPI_Mrecv_c(buf count datatype message status) [];
            MPI_Buffer_detach(buffer_addr size) [];
            MPI_Buffer_detach_c(buffer_addr size) [];
            // Requests.
            MPI_Wait(request status) [];
            MPI_Waitall(count array_of_requests array_of_statuses) [Requests count];
            MPI_Waitany(count array_of_requests indx status) [Requests count];
            MPI_Waitsome(
                incount array_of_requests outcount array_of_indices array_of_statuses
            ) [Requests incount];
            // Collective calls.
            MPI_Barrier(comm) [Comm comm];
            MPI_Bcast(buffer count datatype root comm) [Root root, Comm comm];
            MPI_Bcast_c(buffer count datatype root comm) [Root root, Comm comm];
            MPI_Gather(
                sendbuf sendcount sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Gather_c(
                sendbuf sendcount sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Gatherv(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype root comm
            ) [Root root, Comm comm];
            MPI_Gatherv_c(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype root comm
            ) [Root root, Comm comm];
            MPI_Scatter(
                sendbuf sendcount sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Scatter_c(
                sendbuf sendcount sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Scatterv(
                sendbuf sendcounts displs sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Scatterv_c(
                sendbuf sendcounts displs sendtype recvbuf recvcount recvtype root comm
            ) [Root root, Comm comm];
            MPI_Allgather(sendbuf sendcount sendtype recvbuf recvcount recvtype comm) [Comm comm];
            MPI_Allgather_c(sendbuf sendcount sendtype recvbuf recvcount recvtype comm) [Comm comm];
            MPI_Allgatherv(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm
            ) [Comm comm];
            MPI_Allgatherv_c(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm
            ) [Comm comm];
            MPI_Alltoall(sendbuf sendcount sendtype recvbuf recvcount recvtype comm) [Comm comm];
            MPI_Alltoall_c(sendbuf sendcount sendtype recvbuf recvcount recvtype comm) [Comm comm];
            MPI_Alltoallv(
                sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm
            ) [Comm comm];
            MPI_Alltoallv_c(
                sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm
            ) [Comm comm];
            MPI_Alltoallw(
                sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm
            ) [Comm comm];
            MPI_Alltoallw_c(
                sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm
            ) [Comm comm];
            MPI_Reduce(sendbuf recvbuf count datatype op root comm) [Root root, Comm comm];
            MPI_Reduce_c(sendbuf recvbuf count datatype op root comm) [Root root, Comm comm];
            MPI_Allreduce(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Allreduce_c(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Reduce_scatter(sendbuf recvbuf recvcounts datatype op comm) [Comm comm];
            MPI_Reduce_scatter_c(sendbuf recvbuf recvcounts datatype op comm) [Comm comm];
            MPI_Reduce_scatter_block(sendbuf recvbuf recvcount datatype op comm) [Comm comm];
            MPI_Reduce_scatter_block_c(sendbuf recvbuf recvcount datatype op comm) [Comm comm];
            MPI_Scan(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Scan_c(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Exscan(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Exscan_c(sendbuf recvbuf count datatype op comm) [Comm comm];
            MPI_Neighbor_allgather(
                sendbuf sendcount sendtype recvbuf recvcount recvtype comm
            ) [Comm comm];
            MPI_Neighbor_allgather_c(
                sendbuf sendcount sendtype recvbuf recvcount recvtype comm
            ) [Comm comm];
            MPI_Neighbor_allgatherv(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm
            ) [Comm comm];
            MPI_Neighbor_allgatherv_c(
                sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm
            ) [Comm comm];
            MPI_Neighbor_alltoall(
                sendbuf sendcount sendtype recvbuf recvcount recvtype comm
            ) [Comm comm];
            MPI_Neighbor_alltoall_c(
                sendbuf sendcount sendtype recvbuf recvcount recvtype comm
            ) [Comm comm];
            MPI_Neighbor_alltoallv(
                sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm
            ) [Comm comm];
            MPI_Neighbor_alltoallv_c(
                sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm
            ) [Comm comm];
            MPI_Neighbor_alltoallw(
                sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm
            ) [Comm comm];
            MPI_Neighbor_alltoallw_c(
                sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm
            ) [Comm comm];
            // Communicators.
            MPI_Comm_create(comm group newcomm) [Comm comm];
            MPI_Comm_create_group(comm group tag newcomm) [Tag tag, Comm comm];
            MPI_Comm_dup(comm newcomm) [Comm comm];
            MPI_Comm_dup_with_info(comm info newcomm) [Comm comm];
            MPI_Comm_split(comm color key newcomm) [Comm comm];
            MPI_Comm_split_type(comm split_type key info newcomm) [Comm comm];
            MPI_Comm_free(comm) [];
            MPI_Comm_disconnect(comm) [];
            MPI_Intercomm_create(
                local_comm local_leader peer_comm remote_leader tag newintercomm
            ) [Comm local_comm, Tag tag];
            MPI_Intercomm_merge(intercomm high newintracomm) [Comm intercomm];
            MPI_Cart_create(comm_old ndims dims periods reorder comm_cart) [Comm comm_old];
            MPI_Cart_sub(comm remain_dims newcomm) [Comm comm];
            MPI_Graph_create(comm_old nnodes indx edges reorder comm_graph) [Comm comm_old];
            MPI_Dist_graph_create(
                comm_old n sources degrees destinations weights info reorder comm_dist_graph
            ) [Comm comm_old];
            MPI_Dist_graph_create_adjacent(
                comm_old indegree sources sourceweights outdegree
                destinations destweights info reorder comm_dist_graph
            ) [Comm comm_old];
            // One-sided communication.
            MPI_Win_create(base size disp_unit info comm win) [Comm comm];
            MPI_Win_create_c(base size disp_unit info comm win) [Comm comm];
            MPI_Win_allocate(size disp_unit info comm baseptr win) [Comm comm];
            MPI_Win_allocate_c(size disp_unit info comm baseptr win) [Comm comm];
            MPI_Win_allocate_shared(size disp_unit info comm baseptr win) [Comm comm];
            MPI_Win_allocate_shared_c(size disp_unit info comm baseptr win) [Comm comm];
            MPI_Win_create_dynamic(info comm win) [Comm comm];
            MPI_Win_free(win) [];
            MPI_Win_fence(assert win) [];
            MPI_Win_start(group assert win) [];
            MPI_Win_complete(win) [];
            MPI_Win_post(group assert win) [];
            MPI_Win_wait(win) [];
            MPI_Win_lock(lock_type rank assert win) [Target rank];
            MPI_Win_lock_all(assert win) [];
            MPI_Win_unlock(rank win) [Target rank];
            MPI_Win_unlock_all(win) [];
            MPI_Win_flush(rank win) [Target rank];
            MPI_Win_flush_all(win) [];
            MPI_Win_flush_local(rank win) [Target rank];
            MPI_Win_flush_local_all(win) [];
            // Files.
            MPI_File_open(comm filename amode info fh) [Comm comm];
            MPI_File_close(fh) [];
            MPI_File_set_view(fh disp etype filetype datarep info) [];
            MPI_File_set_size(fh size) [];
            MPI_File_preallocate(fh size) [];
            MPI_File_sync(fh) [];
            MPI_File_seek_shared(fh offset whence) [];
            MPI_File_read_all(fh buf count datatype status) [];
            MPI_File_read_all_c(fh buf count datatype status) [];
            MPI_File_write_all(fh buf count datatype status) [];
            MPI_File_write_all_c(fh buf count datatype status) [];
            MPI_File_read_at_all(fh offset buf count datatype status) [];
            MPI_File_read_at_all_c(fh offset buf count datatype status) [];
            MPI_File_write_at_all(fh offset buf count datatype status) [];
            MPI_File_write_at_all_c(fh offset buf count datatype status) [];
            MPI_File_read_ordered(fh buf count datatype status) [];
            MPI_File_read_ordered_c(fh buf count datatype status) [];
            MPI_File_write_ordered(fh buf count datatype status) [];
            MPI_File_write_ordered_c(fh buf count datatype status) [];
            MPI_File_read_all_begin(fh buf count datatype) [];
            MPI_File_read_all_begin_c(fh buf count datatype) [];
            MPI_File_read_all_end(fh buf status) [];
            MPI_File_write_all_begin(fh buf count datatype) [];
            MPI_File_write_all_begin_c(fh buf count datatype) [];
            MPI_File_write_all_end(fh buf status) [];
            MPI_File_read_at_all_begin(fh offset buf count datatype) [];
            MPI_File_read_at_all_begin_c(fh offset buf count datatype) [];
            MPI_File_read_at_all_end(fh buf status) [];
            MPI_File_write_at_all_begin(fh offset buf count datatype) [];
            MPI_File_write_at_all_begin_c(fh offset buf count datatype) [];
            MPI_File_write_at_all_end(fh buf status) [];
            MPI_File_read_ordered_begin(fh buf count datatype) [];
            MPI_File_read_ordered_begin_c(fh buf count datatype) [];
            MPI_File_read_ordered_end(fh buf status) [];
            MPI_File_write_ordered_begin(fh buf count datatype) [];
            MPI_File_write_ordered_begin_c(fh buf count datatype) [];
            MPI_File_write_ordered_end(fh buf status) [];
            // End.
            MPI_Finalize() [];
        }
    };
}

/// The largest number of arguments that are recorded.
pub const MAX_RECORDED: usize = 4;

/// The meaning of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpiArgument {
    /// Rank of the source of a message.
    Source,
    /// Rank of the destination of a message.
    Destination,
    /// Rank of the root of a collective call.
    Root,
    /// Rank of the target of one-sided communication.
    Target,
    /// Tag of a message.
    Tag,
    /// Communicator.
    Comm,
    /// Number of requests.
    Requests,
}

macro_rules! declare_calls {
    ($($name:ident($($argument:ident)*) [$($meaning:ident $value:ident),*];)*) => {
        /// An MPI call that waits for other processes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs, clippy::upper_case_acronyms)]
        #[repr(u32)]
        pub enum MpiCall {
            $($name,)*
        }

        /// The name and the recorded arguments of each call.
        const CALLS: &[(&str, &[MpiArgument])] =
            &[$((stringify!($name), &[$(MpiArgument::$meaning),*])),*];
    };
}
for_each_mpi_call!(declare_calls);

/// A call with its recorded arguments, as stored in the C-Area. The record is not trusted, because
/// the process may write anything to the C-Area.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct MpiCallRecord {
    /// The number of an [`MpiCall`].
    pub call: u32,
    /// The arguments in the order of the table: integers, and handles truncated to 32 bits.
    pub arguments: [u32; MAX_RECORDED],
}

impl fmt::Display for MpiCallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((name, meanings)) = CALLS.get(self.call as usize) else {
            return f.write_str("an unknown MPI call");
        };
        write!(f, "{name}(")?;
        let arguments = meanings.iter().zip(self.arguments);
        let sends_too = meanings.contains(&MpiArgument::Destination);
        let texts =
            arguments.filter_map(|(meaning, value)| argument_text(*meaning, value, sends_too));
        for (index, text) in texts.enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{text}")?;
        }
        f.write_str(")")
    }
}

/// The values of MPI_COMM_WORLD in the interface of MPICH and in that of MPI 5.0.
const COMM_WORLD: [u32; 2] = [0x4400_0000, 0x101];
/// The same for MPI_COMM_SELF.
const COMM_SELF: [u32; 2] = [0x4400_0001, 0x102];

/// The text for an argument. Returns `None` if there is nothing to show. A negative rank or tag is
/// a constant whose value depends on the library. For a source or the tag of a receive, it is shown
/// as MPI_ANY_SOURCE or MPI_ANY_TAG, because a receive from MPI_PROC_NULL does not wait. A call
/// that also sends (`sends_too`) waits nevertheless, so its negative source is not shown.
fn argument_text(meaning: MpiArgument, value: u32, sends_too: bool) -> Option<String> {
    let number = value.cast_signed();
    let rank = |name: &str| (number >= 0).then(|| format!("{name} {number}"));
    match meaning {
        MpiArgument::Source => {
            rank("source").or_else(|| (!sends_too).then(|| "any source".to_owned()))
        }
        MpiArgument::Destination => rank("destination"),
        MpiArgument::Root => rank("root"),
        MpiArgument::Target => rank("target"),
        MpiArgument::Tag => rank("tag").or_else(|| Some("any tag".to_owned())),
        MpiArgument::Requests if number == 1 => Some("1 request".to_owned()),
        MpiArgument::Requests => Some(format!("{number} requests")),
        MpiArgument::Comm if COMM_WORLD.contains(&value) => Some("MPI_COMM_WORLD".to_owned()),
        MpiArgument::Comm if COMM_SELF.contains(&value) => Some("MPI_COMM_SELF".to_owned()),
        MpiArgument::Comm => Some(format!("communicator {value:#x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(call: MpiCall, arguments: &[u32]) -> String {
        let mut record = MpiCallRecord { call: call as u32, ..MpiCallRecord::default() };
        record.arguments[..arguments.len()].copy_from_slice(arguments);
        record.to_string()
    }

    // Promise of `each_process_of_a_deadlock_is_named_with_its_call`.
    #[test]
    fn a_call_is_named_with_its_peer_its_tag_and_its_communicator() {
        let any = u32::MAX - 1;
        for (call, arguments, expected) in [
            (MpiCall::MPI_Recv, &[0, 7, 0x4400_0000][..], "source 0, tag 7, MPI_COMM_WORLD"),
            (MpiCall::MPI_Recv, &[any, any, 0x101], "any source, any tag, MPI_COMM_WORLD"),
            (MpiCall::MPI_Send_c, &[1, 2, 0x102], "destination 1, tag 2, MPI_COMM_SELF"),
            (
                MpiCall::MPI_Sendrecv,
                &[1, 3, 9, 0x8400_0002],
                "destination 1, source 3, tag 9, communicator 0x84000002",
            ),
            (MpiCall::MPI_Sendrecv, &[1, any, 9, 0x101], "destination 1, tag 9, MPI_COMM_WORLD"),
            (MpiCall::MPI_Bcast, &[2, 0x4400_0001], "root 2, MPI_COMM_SELF"),
            (MpiCall::MPI_Gather, &[any, 0x4400_0000], "MPI_COMM_WORLD"),
            (MpiCall::MPI_Waitall, &[1], "1 request"),
            (MpiCall::MPI_Waitany, &[5], "5 requests"),
            (MpiCall::MPI_Win_lock, &[4], "target 4"),
            (MpiCall::MPI_Wait, &[], ""),
        ] {
            assert_eq!(text(call, arguments), format!("{call:?}({expected})"));
        }
    }

    #[test]
    fn each_entry_of_the_table_fits_into_a_record() {
        assert!(CALLS.iter().all(|(_, meanings)| meanings.len() <= MAX_RECORDED));
        let unknown = MpiCallRecord { call: CALLS.len() as u32, ..MpiCallRecord::default() };
        assert_eq!(unknown.to_string(), "an unknown MPI call");
    }
}
