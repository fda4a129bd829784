/*
 * Figures 3.27 and 3.28, and rdma_read (figure 3.25 of the manual is missing): every node but the
 * first reads from the buffer of the previous one.
 */
#include <errno.h>

#include "scatter.h"

static int read_from_previous(pmContext *pmc, size_t len) {
    int cc;

    while ((cc = pmRead(pmc, PREV_NODE, rmt_handle, loc_handle, len)) != PM_SUCCESS) {
        if (cc != ENOBUFS && cc != EBUSY) return cc;
    }
    return is_read_done(pmc);
}

/* Figure 3.27. */
static int rdma_read_head(pmContext *pmc, receive_function receive, int fd_in, int fd_out) {
    size_t len;
    int cc;

    while (1) {
        if ((cc = read_some(fd_in, &len)) != 0) return cc;
        if ((cc = send_length(pmc, len)) != PM_SUCCESS) return cc;
        if (len == 0) return PM_SUCCESS;
        if ((cc = write_all(fd_out, buffer, len)) != 0) return cc;
        if ((cc = receive_acknowledgement(pmc, receive)) != PM_SUCCESS) return cc;
    }
}

/*
 * Figure 3.28.
 * Corrected: the listing takes an acknowledgement for the next length, and then reads the previous
 * number of bytes again.
 */
static int rdma_read_tail(pmContext *pmc, receive_function receive, int fd_out) {
    size_t len;
    int cc;

    while (1) {
        if ((cc = receive_length(pmc, receive, &len)) != PM_SUCCESS) return cc;
        if (len > 0 && (cc = read_from_previous(pmc, len)) != PM_SUCCESS) return cc;
        if (!IS_PIPE_LAST && (cc = send_length(pmc, len)) != PM_SUCCESS) return cc;
        if (len == 0) return PM_SUCCESS;
        if ((cc = send_acknowledgement(pmc)) != PM_SUCCESS) return cc;
        if ((cc = write_all(fd_out, buffer, len)) != 0) return cc;
        if (IS_PIPE_LAST) continue;
        if ((cc = receive_acknowledgement(pmc, receive)) != PM_SUCCESS) return cc;
    }
}

/* As figure 3.21 in the opposite direction: handles are sent to the next node. */
int rdma_read(pmContext *pmc, receive_function receive, int fd_in, int fd_out) {
    int cc = allocate_locked_buffer(pmc);

    if (cc != PM_SUCCESS) return cc;
    if (!IS_PIPE_LAST && (cc = send_local_handle(pmc, NEXT_NODE)) != PM_SUCCESS) return cc;
    if (IS_PIPE_FIRST) return rdma_read_head(pmc, receive, fd_in, fd_out);
    if ((cc = recv_remote_handle(pmc, receive)) != PM_SUCCESS) return cc;
    return rdma_read_tail(pmc, receive, fd_out);
}
