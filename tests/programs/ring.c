/*
 * A token goes round through all nodes, with changing lengths; each byte is checked at each hop:
 *   ring ROUNDS
 * Every node has a peer on another host, so the smallest MTU is the same for all nodes.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sc.h>
#include <score.h>

struct token {
    uint32_t round, hop;
};

static size_t mtu;

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static size_t length_of(uint32_t round) {
    return sizeof(struct token) + (size_t)round * 337 % (mtu - sizeof(struct token) + 1);
}

static char content(struct token token, size_t at) {
    return (char)(token.round * 31 + token.hop * 7 + at * 13 + (at >> 8));
}

static void send_token(struct token token) {
    size_t at, length = length_of(token.round);
    int cc, next = (score_self_node + 1) % score_num_node;
    caddr_t buffer;

    while ((cc = pmGetSendBuffer(score_pmnet[0], next, &buffer, length)) != PM_SUCCESS) {
        if (cc != ENOBUFS) {
            die("pmGetSendBuffer", cc);
        }
    }
    memcpy(buffer, &token, sizeof token);
    for (at = sizeof token; at < length; at++) {
        buffer[at] = content(token, at);
    }
    if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

static struct token receive_token(void) {
    struct token token;
    size_t at, length;
    caddr_t buffer;
    int cc;

    while ((cc = pmReceive(score_pmnet[0], &buffer, &length)) != PM_SUCCESS) {
        if (cc != ENOBUFS) {
            die("pmReceive", cc);
        }
    }
    memcpy(&token, buffer, sizeof token);
    if (length != length_of(token.round)) {
        die("a wrong length", EIO);
    }
    for (at = sizeof token; at < length; at++) {
        if (buffer[at] != content(token, at)) {
            die("a wrong byte", EIO);
        }
    }
    if ((cc = pmReleaseReceiveBuffer(score_pmnet[0])) != PM_SUCCESS) {
        die("pmReleaseReceiveBuffer", cc);
    }
    return token;
}

int main(int argc, char **argv) {
    uint32_t round, rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    struct token token;
    size_t node_mtu;
    int cc, node;

    score_initialize();
    mtu = SIZE_MAX;
    for (node = 0; node < score_num_node; node++) {
        if (node != score_self_node) {
            if ((cc = pmGetMtu(score_pmnet[0], node, &node_mtu)) != PM_SUCCESS) {
                die("pmGetMtu", cc);
            }
            mtu = node_mtu < mtu ? node_mtu : mtu;
        }
    }
    for (round = 0; round < rounds; round++) {
        if (score_self_node == 0) {
            token.round = round;
            token.hop = 0;
            send_token(token);
        }
        token = receive_token();
        if (token.round != round ||
            token.hop != (uint32_t)((score_self_node + score_num_node - 1) % score_num_node)) {
            die("a token out of order", EIO);
        }
        if (score_self_node != 0) {
            token.hop++;
            send_token(token);
        }
    }
    if (score_self_node == 0) {
        printf("%u rounds through %d nodes\n", rounds, score_num_node);
    }
    return 0;
}
