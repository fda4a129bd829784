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

#define MAX_WORDS (64 * 1024)

static uint64_t source[MAX_WORDS], target[MAX_WORDS], read_back[MAX_WORDS], words = MAX_WORDS;

static void must(const char *what, int cc) {
    if (cc != PM_SUCCESS) {
        fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
        (void)sc_exit(3);
    }
}

static void send_bytes(int node, const void *what, size_t length) {
    caddr_t buffer;
    int cc;

    while ((cc = pmGetSendBuffer(score_pmnet[0], node, &buffer, length)) == ENOBUFS) {
    }
    must("pmGetSendBuffer", cc);
    memcpy(buffer, what, length);
    must("pmSend", pmSend(score_pmnet[0]));
}

static void receive_bytes(void *what, size_t length) {
    caddr_t buffer;
    size_t received_length;
    int cc;

    while ((cc = pmReceive(score_pmnet[0], &buffer, &received_length)) == ENOBUFS) {
    }
    must("pmReceive", cc);
    must("a message's length", received_length == length ? PM_SUCCESS : EINVAL);
    memcpy(what, buffer, length);
    must("pmReleaseReceiveBuffer", pmReleaseReceiveBuffer(score_pmnet[0]));
}

static uint64_t word(int node, uint64_t round, uint64_t at) {
    return (round << 32 | (uint64_t)node << 24) + at;
}

static void check_words(const uint64_t *area, int node, uint64_t round, const char *what) {
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

static void wait_until_done(int (*is_done)(pmContext *), const char *what) {
    int cc;

    while ((cc = is_done(score_pmnet[0])) == EBUSY) {
    }
    must(what, cc);
}

int main(int argc, char **argv) {
    pmAddrHandle source_handle, read_back_handle, peer_handle;
    uint64_t rounds = argc > 1 ? (uint64_t)atoi(argv[1]) : 1, round, peer_round;
    int self, peer;

    score_initialize(argc, argv);
    if (argc > 2) {
        words = (uint64_t)atoi(argv[2]);
        must("WORDS", words >= 1 && words <= MAX_WORDS ? PM_SUCCESS : EINVAL);
    }
    self = score_self_node;
    peer = 1 - self;
    source_handle = lock(peer, source);
    read_back_handle = lock(peer, read_back);
    peer_handle = lock(peer, target);
    send_bytes(peer, &peer_handle, sizeof peer_handle);
    receive_bytes(&peer_handle, sizeof peer_handle);
    for (round = 1; round <= rounds; round++) {
        for (uint64_t i = 0; i < words; i++) {
            source[i] = word(self, round, i);
        }
        if (self == 0) {
            printf("round %d\n", (int)round);
            (void)fflush(stdout);
        }
        must("pmWrite", pmWrite(score_pmnet[0], peer, peer_handle, source_handle,
                                words * sizeof *source));
        send_bytes(peer, &round, sizeof round);
        receive_bytes(&peer_round, sizeof peer_round);
        check_words(target, peer, peer_round, "written");
        must("pmRead", pmRead(score_pmnet[0], peer, peer_handle, read_back_handle,
                              words * sizeof *source));
        wait_until_done(pmIsReadDone, "pmIsReadDone");
        wait_until_done(pmIsWriteDone, "pmIsWriteDone");
        check_words(read_back, self, round, "read");
        /* Both nodes finish their checks before either starts the next round. */
        send_bytes(peer, &round, sizeof round);
        receive_bytes(&peer_round, sizeof peer_round);
    }
    printf("all right\n");
    return 0;
}
