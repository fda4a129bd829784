/*
 * Odd nodes send messages to the node before them. As soon as the last pmSend has returned, they
 * exit in the way that the argument names. Even nodes wait for all messages:
 *   send_then_exit MESSAGES return|exit|_exit
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static size_t length_of(uint32_t number) { return sizeof number + number * 37 % 1000; }

static void send_all(uint32_t count) {
    caddr_t buffer;
    uint32_t number;
    int cc;

    for (number = 0; number < count; number++) {
        while ((cc = pmGetSendBuffer(score_pmnet[0], score_self_node - 1, &buffer,
                                     length_of(number))) != PM_SUCCESS) {
            if (cc != ENOBUFS) {
                die("pmGetSendBuffer", cc);
            }
        }
        memset(buffer, (int)number, length_of(number));
        memcpy(buffer, &number, sizeof number);
        if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
            die("pmSend", cc);
        }
    }
}

static void receive_all(uint32_t count) {
    caddr_t buffer;
    uint32_t number, received;
    size_t length, at;
    int cc;

    for (number = 0; number < count; number++) {
        while ((cc = pmReceive(score_pmnet[0], &buffer, &length)) != PM_SUCCESS) {
            if (cc != ENOBUFS) {
                die("pmReceive", cc);
            }
        }
        memcpy(&received, buffer, sizeof received);
        for (at = sizeof received; at < length && buffer[at] == (char)number; at++) {
        }
        if (received != number || length != length_of(number) || at != length) {
            die("another message than expected", EIO);
        }
        (void)pmReleaseReceiveBuffer(score_pmnet[0]);
    }
    printf("all %u of node %d\n", count, score_self_node + 1);
}

int main(int argc, char **argv) {
    uint32_t count = argc > 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;

    score_initialize();
    if (count == 0 || score_num_node % 2 != 0) {
        return 2;
    }
    if (score_self_node % 2 == 0) {
        receive_all(count);
        return 0;
    }
    send_all(count);
    if (strcmp(argv[2], "_exit") == 0) {
        _exit(0);
    }
    if (strcmp(argv[2], "exit") == 0) {
        exit(0);
    }
    return 0;
}
