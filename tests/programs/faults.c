/*
 * Fails in the way that its arguments name: faults WAY NODE.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

int main(int argc, char **argv) {
    const char *mode, *self = getenv("SCORE_SELF_NODE");
    int node;

    if (argc < 3) {
        fprintf(stderr, "usage: faults WAY NODE\n");
        return 2;
    }
    mode = argv[1];
    node = atoi(argv[2]);
    if (strcmp(mode, "early") == 0 && self != NULL && atoi(self) == node) {
        return 3;
    }
    score_initialize();
    if (score_self_node == node) {
        if (strcmp(mode, "segv") == 0) {
            (void)raise(SIGSEGV);
        } else if (strcmp(mode, "abort") == 0) {
            abort();
        } else if (strcmp(mode, "kill") == 0) {
            (void)raise(SIGKILL);
        } else if (strcmp(mode, "sc_exit") == 0) {
            printf("before sc_exit\n");
            (void)fflush(stdout);
            (void)sc_exit(42);
        }
    }
    /* The other nodes wait until SCore ends them. */
    for (;;) {
        (void)pause();
    }
}
