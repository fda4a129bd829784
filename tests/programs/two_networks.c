/*
 * Requests two network sets by a macro (manual 2.1, 4.1). On each existing set every node sends
 * ROUNDS messages to every other node. A message received on a set must have been sent on that set.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <sc.h>
#include <score.h>
#include <score_resource.h>

#define ROUNDS 50

SCORE_RSRC_NUM_NETS(2);

struct message {
    int set, from, round;
};

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static int rounds_of[16][64], received;

/* Receives all messages that have arrived on one set. */
static void receive(int set) {
    struct message message;
    caddr_t buffer;
    size_t length;
    int cc;

    while ((cc = pmReceive(score_pmnet[set], &buffer, &length)) == PM_SUCCESS) {
        if (length != sizeof message) {
            die("a message of another length", EIO);
        }
        memcpy(&message, buffer, sizeof message);
        if (message.set != set || message.round != rounds_of[set][message.from]++) {
            die("a message of another set, or out of order", EIO);
        }
        received++;
        if ((cc = pmReleaseReceiveBuffer(score_pmnet[set])) != PM_SUCCESS) {
            die("pmReleaseReceiveBuffer", cc);
        }
    }
    if (cc != ENOBUFS && cc != EBUSY) {
        die("pmReceive", cc);
    }
}

static void send_one(int set, int to, int round) {
    struct message message;
    caddr_t buffer;
    int cc, other;

    while ((cc = pmGetSendBuffer(score_pmnet[set], to, &buffer, sizeof message)) != PM_SUCCESS) {
        if (cc != ENOBUFS && cc != EBUSY) {
            die("pmGetSendBuffer", cc);
        }
        for (other = 0; other < score_num_pmnet; other++) {
            receive(other);
        }
    }
    message.set = set;
    message.from = score_self_node;
    message.round = round;
    memcpy(buffer, &message, sizeof message);
    if ((cc = pmSend(score_pmnet[set])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

int main(void) {
    int set, node, round;

    score_initialize();
    if (score_num_pmnet > 16 || score_num_node > 64 || score_pmnet[score_num_pmnet] != NULL) {
        return 2;
    }
    for (round = 0; round < ROUNDS; round++) {
        for (set = 0; set < score_num_pmnet; set++) {
            for (node = 0; node < score_num_node; node++) {
                if (node != score_self_node) {
                    send_one(set, node, round);
                }
            }
        }
    }
    while (received < ROUNDS * score_num_pmnet * (score_num_node - 1)) {
        for (set = 0; set < score_num_pmnet; set++) {
            receive(set);
        }
    }
    if (sc_barrier() != 0) {
        return 4;
    }
    printf("node %d of %d: %d sets\n", score_self_node, score_num_node, score_num_pmnet);
    return 0;
}
