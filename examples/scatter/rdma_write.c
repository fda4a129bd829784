/* Figures 3.21, 3.23 and 3.24: every node but the last writes to the buffer of the next one. */
#include <errno.h>

#include "scatter.h"

static int write_to_next(pmContext *pmc, size_t len) {
    int cc;

    while ((cc = pmWrite(pmc, NEXT_NODE, rmt_handle, loc_handle, len)) != PM_SUCCESS) {
        if (cc != ENOBUFS && cc != EBUSY) return cc;
    }
    return PM_SUCCESS;
}

/*
 * Writes the bytes to the next node and sends their length. A message that is sent after the bytes
 * arrives after them (3.6.3).
 */
static int pass_next(pmContext *pmc, size_t len) {
    int cc;

    if (len > 0 && (cc = write_to_next(pmc, len)) != PM_SUCCESS) return cc;
    return send_length(pmc, len);
}

/* Figure 3.23. */
static int rdma_write_head(pmContext *pmc, receive_function receive, int fd_in, int fd_out) {
    size_t len;
    int cc;

    while (1) {
        if ((cc = read_some(fd_in, &len)) != 0) return cc;
        if ((cc = pass_next(pmc, len)) != PM_SUCCESS) return cc;
        if (len == 0) return PM_SUCCESS;
        if ((cc = write_all(fd_out, buffer, len)) != 0) return cc;
        if ((cc = receive_acknowledgement(pmc, receive)) != PM_SUCCESS) return cc;
        if ((cc = is_write_done(pmc)) != PM_SUCCESS) return cc;
    }
}

/* Figure 3.24. */
static int rdma_write_tail(pmContext *pmc, receive_function receive, int fd_out) {
    size_t len;
    int cc;

    while (1) {
        if ((cc = receive_length(pmc, receive, &len)) != PM_SUCCESS) return cc;
        if (!IS_PIPE_LAST && (cc = pass_next(pmc, len)) != PM_SUCCESS) return cc;
        if (len == 0) return PM_SUCCESS;
        if ((cc = write_all(fd_out, buffer, len)) != 0) return cc;
        if ((cc = is_write_done(pmc)) != PM_SUCCESS) return cc;
        /* After this, the previous node writes to the buffer. */
        if ((cc = send_acknowledgement(pmc)) != PM_SUCCESS) return cc;
        if (IS_PIPE_LAST) continue;
        if ((cc = receive_acknowledgement(pmc, receive)) != PM_SUCCESS) return cc;
    }
}

/*
 * Figure 3.21.
 * Corrected: the listing has an extra brace before the last else. Also, its middle nodes send
 * their handle before they have received the handle of the next node, so that the length from the
 * previous node can arrive first. Here they receive first.
 */
int rdma_write(pmContext *pmc, receive_function receive, int fd_in, int fd_out) {
    int cc = allocate_locked_buffer(pmc);

    if (cc != PM_SUCCESS) return cc;
    if (!IS_PIPE_LAST && (cc = recv_remote_handle(pmc, receive)) != PM_SUCCESS) return cc;
    if (IS_PIPE_FIRST) return rdma_write_head(pmc, receive, fd_in, fd_out);
    if ((cc = send_local_handle(pmc, PREV_NODE)) != PM_SUCCESS) return cc;
    return rdma_write_tail(pmc, receive, fd_out);
}
