/*
 * Figure 2.15. Usage: scrun -nodes=N ./scatter [-spin] < FILE
 * Standard input of the first node goes to standard output of every node. With -spin the nodes wait
 * for messages as in figure 2.9, without in select(2) as in figure 3.4.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sc.h>

#include "scatter.h"

int main(int argc, char **argv) {
    receive_function receive = blocking_receive;
    pmContext *pmc;
    int cc;

    score_initialize(argc, argv);

    if (argc == 2 && strcmp(argv[1], "-spin") == 0) {
        receive = spinwait_receive;
    } else if (argc > 1) {
        if (IS_PIPE_FIRST) fprintf(stderr, "usage: scatter [-spin]\n");
        sc_exit(2);
    }
    if (score_num_node == 1) {
        fprintf(stderr, "Two or more nodes required to run.\n");
        exit(1);
    }
    pmc = score_pmnet[0];
    if (IS_PIPE_FIRST) {
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
