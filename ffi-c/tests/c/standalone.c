/* Without scrun (manual 1.4.4) a program is one node, and the calls act on the process itself. */
#include <stdio.h>

#include <sc.h>
#include <score.h>

int main(int argc, char **argv) {
    score_initialize(argc, argv);
    if (score_num_pmnet != 0 || score_pmnet[0] != NULL || sc_barrier() != 0) return 1;
    /* PM is also linked, once. */
    if (pmSend(NULL) == PM_SUCCESS) return 2;
    printf("node %d of %d\n", score_self_node, score_num_node);
    return 0;
}
