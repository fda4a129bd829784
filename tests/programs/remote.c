/*
 * Two nodes write to and read from each other's memory, round after round, and check every word:
 *   remote ROUNDS [WORDS]
 * In each round a node writes a pattern to its peer's memory and then sends a message; when the
 * message arrives, the pattern must be there. Then the node reads its own pattern back. Node 0
 * prints the start of each round, and each node prints when all was right.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sc.h>
#include <score.h>

#define MOST (64 * 1024)

static uint64_t mine[MOST], theirs[MOST], back[MOST], words = MOST;

static void must(const char *what, int cc) {
    if (cc != PM_SUCCESS) {
        fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
        (void)sc_exit(3);
    }
}

static void put(int node, const void *what, size_t length) {
    caddr_t buffer;
    int cc;

    while ((cc = pmGetSendBuffer(score_pmnet[0], node, &buffer, length)) == ENOBUFS) {
    }
    must("pmGetSendBuffer", cc);
    memcpy(buffer, what, length);
    must("pmSend", pmSend(score_pmnet[0]));
}

static void take(void *what, size_t length) {
    caddr_t buffer;
    size_t came;
    int cc;

    while ((cc = pmReceive(score_pmnet[0], &buffer, &came)) == ENOBUFS) {
    }
    must("pmReceive", cc);
    must("a message's length", came == length ? PM_SUCCESS : EINVAL);
    memcpy(what, buffer, length);
    must("pmReleaseReceiveBuffer", pmReleaseReceiveBuffer(score_pmnet[0]));
}

static uint64_t word(int node, uint64_t round, uint64_t at) {
    return (round << 32 | (uint64_t)node << 24) + at;
}

static void look(const uint64_t *area, int node, uint64_t round, const char *what) {
    for (uint64_t i = 0; i < words; i++) {
        if (area[i] != word(node, round, i)) {
            fprintf(stderr, "round %d: word %d is not what was %s\n", (int)round, (int)i, what);
            (void)sc_exit(4);
        }
    }
}

static pmAddrHandle lock(int node, uint64_t *area) {
    pmAddrHandle handle;

    must("pmMLock", pmMLock(score_pmnet[0], node, (caddr_t)area, words * sizeof *area, &handle));
    return handle;
}

static void done(int (*is_done)(pmContext *), const char *what) {
    int cc;

    while ((cc = is_done(score_pmnet[0])) == EBUSY) {
    }
    must(what, cc);
}

int main(int argc, char **argv) {
    pmAddrHandle from, into, there;
    uint64_t rounds = argc > 1 ? (uint64_t)atoi(argv[1]) : 1, round, told;
    int self, peer;

    score_initialize(argc, argv);
    if (argc > 2) {
        words = (uint64_t)atoi(argv[2]);
        must("WORDS", words >= 1 && words <= MOST ? PM_SUCCESS : EINVAL);
    }
    self = score_self_node;
    peer = 1 - self;
    from = lock(peer, mine);
    into = lock(peer, back);
    there = lock(peer, theirs);
    put(peer, &there, sizeof there);
    take(&there, sizeof there);
    for (round = 1; round <= rounds; round++) {
        for (uint64_t i = 0; i < words; i++) {
            mine[i] = word(self, round, i);
        }
        if (self == 0) {
            printf("round %d\n", (int)round);
            (void)fflush(stdout);
        }
        must("pmWrite", pmWrite(score_pmnet[0], peer, there, from, words * sizeof *mine));
        put(peer, &round, sizeof round);
        take(&told, sizeof told);
        look(theirs, peer, told, "written");
        must("pmRead", pmRead(score_pmnet[0], peer, there, into, words * sizeof *mine));
        done(pmIsReadDone, "pmIsReadDone");
        done(pmIsWriteDone, "pmIsWriteDone");
        look(back, self, round, "read");
        /* Neither node starts the next round until both have checked. */
        put(peer, &round, sizeof round);
        take(&told, sizeof told);
    }
    printf("all right\n");
    return 0;
}
