/*
 * Requests its resources by a macro (manual 4.1) and prints its node number.
 */
#include <stdio.h>

#include <score.h>
#include <score_resource.h>

SCORE_RSRC_NUM_NODES(5, 64);

int main(void) {
    score_initialize();
    printf("node %d of %d\n", score_self_node, score_num_node);
    return 0;
}
