/*
 * Figures 2.15 and 3.20. Usage: scrun -nodes=N ./scatter [-spin] [-read|-messages] < FILE
 * Copies standard input of the first node to standard output of every node. With -spin the nodes
 * poll for messages as in figure 2.9, else they wait in select(2) as in figure 3.4. The option bits
 * of the network select the method: remote write, remote read, or messages, in this order. -read
 * excludes remote write, and -messages excludes both.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sc.h>

#include "scatter.h"

int main(int argc, char **argv) {
    receive_function receive = blocking_receive;
    unsigned long options, wanted = PM_OPT_REMOTE_WRITE | PM_OPT_REMOTE_READ;
    pmContext *pmc;
    int cc, n;

    score_initialize(argc, argv);

    for (n = 1; n < argc; n++) {
        if (strcmp(argv[n], "-spin") == 0) {
            receive = spinwait_receive;
        } else if (strcmp(argv[n], "-read") == 0) {
            wanted = PM_OPT_REMOTE_READ;
        } else if (strcmp(argv[n], "-messages") == 0) {
            wanted = 0;
        } else {
            if (IS_PIPE_FIRST) fprintf(stderr, "usage: scatter [-spin] [-read|-messages]\n");
            sc_exit(2);
        }
    }
    if (score_num_node == 1) {
        fprintf(stderr, "Two or more nodes required to run.\n");
        exit(1);
    }
    pmc = score_pmnet[0];
    options = get_pm_option_bits(pmc) & wanted;
    if (options & PM_OPT_REMOTE_WRITE) {
        cc = rdma_write(pmc, receive, 0, 1);
    } else if (options & PM_OPT_REMOTE_READ) {
        cc = rdma_read(pmc, receive, 0, 1);
    } else if (IS_PIPE_FIRST) {
        cc = read_file_and_pass_next(pmc, 0, 1);
    } else {
        cc = write_file_and_pass_next(pmc, receive, 1);
    }
    if (cc != 0) {
        fprintf(stderr, "scatter: node %d: %s\n", score_self_node, strerror(cc));
        sc_exit(1);
    }
    exit(0);
}
