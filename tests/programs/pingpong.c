/*
 * Nodes 0 and 1 exchange a message until a file appears, and node 0 prints the progress. Then both
 * dump the counters of their contexts:
 *   pingpong FILE
 * Node 0 ends the exchange by a last message with the number OVER. Other nodes wait. The exchange
 * lasts at most four minutes.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

#define OVER UINT64_MAX

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static double now(void) {
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void send_number(int node, uint64_t number) {
    caddr_t buffer;
    int cc;

    while ((cc = pmGetSendBuffer(score_pmnet[0], node, &buffer, sizeof number)) != PM_SUCCESS) {
        if (cc != ENOBUFS) {
            die("pmGetSendBuffer", cc);
        }
    }
    memcpy(buffer, &number, sizeof number);
    if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

static uint64_t receive_number(double limit) {
    uint64_t number;
    caddr_t buffer;
    size_t length;
    int cc, tries = 0;

    while ((cc = pmReceive(score_pmnet[0], &buffer, &length)) != PM_SUCCESS) {
        if (cc != ENOBUFS) {
            die("pmReceive", cc);
        }
        if (++tries % 4096 == 0 && now() > limit) {
            die("no message for four minutes", EIO);
        }
    }
    if (length != sizeof number) {
        die("a message of another length", EIO);
    }
    memcpy(&number, buffer, sizeof number);
    (void)pmReleaseReceiveBuffer(score_pmnet[0]);
    return number;
}

static void run_leader(const char *file, double limit) {
    double shown_at = now();
    uint64_t round;

    for (round = 1; round % 256 != 0 || access(file, F_OK) != 0; round++) {
        send_number(1, round);
        if (receive_number(limit) != round) {
            die("another answer than expected", EIO);
        }
        if (round % 16 == 0 && now() > shown_at + 0.1) {
            shown_at = now();
            printf("round %llu\n", (unsigned long long)round);
            (void)fflush(stdout);
        }
    }
    send_number(1, OVER);
    printf("played %llu\n", (unsigned long long)round);
}

static void run_follower(double limit) {
    uint64_t number, last = 0;

    while ((number = receive_number(limit)) != OVER) {
        if (number != ++last) {
            die("a message out of order", EIO);
        }
        send_number(0, number);
    }
}

int main(int argc, char **argv) {
    score_initialize();
    if (argc < 2) {
        return 2;
    }
    if (score_self_node == 0) {
        run_leader(argv[1], now() + 240);
    } else if (score_self_node == 1) {
        run_follower(now() + 240);
    }
    if (sc_barrier() != 0) {
        return 4;
    }
    if (score_self_node < 2) {
        fprintf(stderr, "node %d has counted:\n", score_self_node);
        (void)pmDumpContext(score_pmnet[0]);
    }
    return 0;
}
