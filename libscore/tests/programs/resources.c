/* Every resource macro: alone, twice, outside and inside of functions; also in a shared library. */
#include <score_resource.h>

enum { LOW = 2 };

SCORE_RSRC_NUM_NODES(LOW, 4 * 4);
SCORE_RSRC_NUM_NODES(LOW, 4 * 4);
SCORE_RSRC_NUM_PROCS(2); SCORE_RSRC_NUM_PROCS(2);
SCORE_RSRC_NUM_NETS(1);
SCORE_RSRC_ZEROCOPY; SCORE_RSRC_ZEROCOPY;
SCORE_RSRC_HETERO_NODES; SCORE_RSRC_HETERO_NODES;
SCORE_RSRC_NOCKPT;
SCORE_RSRC_NOCKPT;
SCORE_RSRC_RUN; SCORE_RSRC_RUN;

static int never_called(void) {
    SCORE_RSRC_NUM_NODES(sizeof(int), 64);
    return 1;
}

int main(int argc, char **argv) {
    SCORE_RSRC_NUM_PROCS(1 + 1);
    SCORE_RSRC_NUM_NETS(1);
    if (argc > 100) {
        SCORE_RSRC_ZEROCOPY;
        return never_called() + argv[1][0];
    }
    SCORE_RSRC_HETERO_NODES;
    SCORE_RSRC_NOCKPT;
    SCORE_RSRC_RUN;
    return 0;
}
