/*
 * The scatter program of the SCore and PM Programming Manual, chapter 2, with the blocking receive
 * of section 3.3 and the remote memory of section 3.6. The first node reads a file and passes it
 * along the pipeline of nodes, and every node writes it. Each source file has one or two figures.
 * Comments that begin with "Corrected:" describe errors in the manual's listings.
 */
#ifndef SCATTER_H
#define SCATTER_H

#include <score.h>

/* Figure 2.8. */
#define NEXT_NODE (score_self_node + 1)
#define PREV_NODE (score_self_node - 1)
#define IS_PIPE_FIRST (score_self_node == 0)
#define IS_PIPE_MIDDLE (score_self_node > 0 && NEXT_NODE < score_num_node)
#define IS_PIPE_LAST (NEXT_NODE == score_num_node)

/* Waits for a message: spinwait_receive or blocking_receive. */
typedef int (*receive_function)(pmContext *pmc, caddr_t *bufp, size_t *lenp);

int spinwait_receive(pmContext *pmc, caddr_t *bufp, size_t *lenp);
int blocking_receive(pmContext *pmc, caddr_t *bufp, size_t *lenp);
int get_send_buffer(pmContext *pmc, int dst, caddr_t *sbuf_p, size_t slen,
                    int (*recv_func)(caddr_t, size_t));
int read_file_and_pass_next(pmContext *pmc, int fd_in, int fd_out);
int write_file_and_pass_next(pmContext *pmc, receive_function receive, int fd_out);
int write_all(int fd, const char *bytes, size_t len);

/* Section 3.6. */
#define BUFF_LEN 4096 /* must be a power of two, and below 65,536: lengths are sent in 16 bits */

extern char *buffer;
extern pmAddrHandle loc_handle, rmt_handle;

unsigned long get_pm_option_bits(pmContext *pmc);
int allocate_locked_buffer(pmContext *pmc);
int send_local_handle(pmContext *pmc, int dst);
int recv_remote_handle(pmContext *pmc, receive_function receive);
int is_write_done(pmContext *pmc);
int is_read_done(pmContext *pmc);
int rdma_write(pmContext *pmc, receive_function receive, int fd_in, int fd_out);
int rdma_read(pmContext *pmc, receive_function receive, int fd_in, int fd_out);

/* Messages between nodes during remote memory access: notice.c. */
int receive_length(pmContext *pmc, receive_function receive, size_t *len);
int receive_acknowledgement(pmContext *pmc, receive_function receive);
int send_length(pmContext *pmc, size_t len);
int send_acknowledgement(pmContext *pmc);
int read_some(int fd, size_t *len);

#endif
