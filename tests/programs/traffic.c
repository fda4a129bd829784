/*
 * Messages of random sizes between all nodes, each checked for its content and its order:
 *   traffic MESSAGES SEED [block]
 * Every node sends MESSAGES messages to random other nodes, some to several at once. It receives
 * messages all the time, even between filling a send buffer and sending it. It ends when every
 * other node has announced how many messages it has sent here, and all of them have arrived. With
 * "block" a node waits in poll(2).
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sc.h>
#include <score.h>

#define MAX_NODES 64
#define DATA 1
#define LAST 2

struct header {
    uint32_t kind, source, number, length;
};

static uint64_t state;
static uint32_t sent_to[MAX_NODES], received_from[MAX_NODES], last_number[MAX_NODES];
static uint32_t announced[MAX_NODES];
static int finished[MAX_NODES], finished_count, blocking;

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static unsigned char content(uint32_t source, uint32_t number, uint32_t at) {
    return (unsigned char)(source * 71 + number * 13 + at * 7 + (at >> 8));
}

static void check(const struct header *header, const unsigned char *bytes, size_t length) {
    uint32_t i, source = header->source;

    if (header->length != length || source >= (uint32_t)score_num_node || finished[source]) {
        fprintf(stderr, "node %d: a message of %zu bytes says %u from %u\n", score_self_node,
                length, header->length, source);
        (void)sc_exit(4);
    }
    if (header->number <= last_number[source]) {
        fprintf(stderr, "node %d: %u from %u after %u\n", score_self_node, header->number, source,
                last_number[source]);
        (void)sc_exit(5);
    }
    last_number[source] = header->number;
    if (header->kind == LAST) {
        return;
    }
    for (i = (uint32_t)sizeof *header; i < length; i++) {
        if (bytes[i] != content(source, header->number, i)) {
            fprintf(stderr, "node %d: byte %u of %u from %u is wrong\n", score_self_node, i,
                    header->number, source);
            (void)sc_exit(6);
        }
    }
}

/* Receives all messages that have arrived; returns whether there were any. */
static int receive(void) {
    struct header header;
    caddr_t message;
    size_t length;
    int cc = pmReceive(score_pmnet[0], &message, &length), any = 0;

    while (cc == PM_SUCCESS) {
        any = 1;
        if (length < sizeof header) {
            die("a short message", EIO);
        }
        memcpy(&header, message, sizeof header);
        check(&header, (const unsigned char *)message, length);
        if (header.kind == LAST) {
            memcpy(&announced[header.source], message + sizeof header, sizeof announced[0]);
            finished[header.source] = 1;
            finished_count++;
        } else {
            received_from[header.source]++;
        }
        cc = pmReleaseReceiveBuffer(score_pmnet[0]);
        if (cc != PM_SUCCESS) {
            die("pmReleaseReceiveBuffer", cc);
        }
        cc = pmReceive(score_pmnet[0], &message, &length);
    }
    if (cc != ENOBUFS && cc != EBUSY) {
        die("pmReceive", cc);
    }
    return any;
}

static void poll_randomly(void) {
    uint32_t polls;

    for (polls = draw(20); polls > 0; polls--) {
        (void)receive();
    }
}

static void fill(caddr_t buffer, uint32_t kind, uint32_t number, uint32_t length) {
    struct header header;
    uint32_t i;

    header.kind = kind;
    header.source = (uint32_t)score_self_node;
    header.number = number;
    header.length = length;
    for (i = (uint32_t)sizeof header; i < length; i++) {
        buffer[i] = (char)content(header.source, number, i);
    }
    memcpy(buffer, &header, sizeof header);
}

static void send_one(int destination, uint32_t kind, uint32_t number, uint32_t length) {
    caddr_t buffer;
    int cc;

    while ((cc = pmGetSendBuffer(score_pmnet[0], destination, &buffer, length)) != PM_SUCCESS) {
        if (cc != ENOBUFS && cc != EBUSY) {
            die("pmGetSendBuffer", cc);
        }
        (void)receive();
    }
    fill(buffer, kind, number, length);
    if (kind == LAST) {
        memcpy(buffer + sizeof(struct header), &sent_to[destination], sizeof sent_to[0]);
    } else {
        sent_to[destination]++;
    }
    /* A filled send buffer must stay unchanged, whether or not messages of other nodes arrive. */
    if (draw(8) == 0) {
        poll_randomly();
    }
    if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

static uint32_t max_length(int destination) {
    size_t mtu;
    int cc = pmGetMtu(score_pmnet[0], destination, &mtu);

    if (cc != PM_SUCCESS) {
        die("pmGetMtu", cc);
    }
    return (uint32_t)mtu;
}

static void send_all(uint32_t number, uint32_t length) {
    int others[MAX_NODES], count = 0, node, cc;
    caddr_t buffer;

    for (node = 0; node < score_num_node; node++) {
        if (node != score_self_node) {
            others[count++] = node;
            sent_to[node]++;
        }
    }
    while ((cc = pmGetMulticastBuffer(score_pmnet[0], others, count, &buffer, length)) !=
           PM_SUCCESS) {
        if (cc != ENOBUFS && cc != EBUSY) {
            die("pmGetMulticastBuffer", cc);
        }
        (void)receive();
    }
    fill(buffer, DATA, number, length);
    if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

/* Waits in poll(2) for the next message. A lost wake-up is an error, which the time-out detects. */
static void block(void) {
    struct pollfd poll_fds[8];
    int descriptors[8], count = 8, i, cc;

    if ((cc = pmGetFd(score_pmnet[0], descriptors, &count)) != PM_SUCCESS) {
        die("pmGetFd", cc);
    }
    for (i = 0; i < count; i++) {
        poll_fds[i].fd = descriptors[i];
        poll_fds[i].events = POLLIN;
    }
    if ((cc = pmBeforeSelect(score_pmnet[0])) != PM_SUCCESS) {
        die("pmBeforeSelect", cc);
    }
    if (!receive() && poll(poll_fds, (nfds_t)count, 20000) == 0) {
        fprintf(stderr, "node %d: no wake-up for 20 s\n", score_self_node);
        (void)sc_exit(7);
    }
    if ((cc = pmAfterSelect(score_pmnet[0])) != PM_SUCCESS) {
        die("pmAfterSelect", cc);
    }
}

static void finish(uint32_t number) {
    int node;

    for (node = 0; node < score_num_node; node++) {
        if (node != score_self_node) {
            send_one(node, LAST, number, (uint32_t)(sizeof(struct header) + sizeof sent_to[0]));
        }
    }
    score_become_idle();
    while (finished_count < score_num_node - 1) {
        if (!receive() && blocking) {
            block();
        }
    }
    score_become_busy();
    for (node = 0; node < score_num_node; node++) {
        if (node != score_self_node && received_from[node] != announced[node]) {
            fprintf(stderr, "node %d: %u of %u messages arrived from %d\n", score_self_node,
                    received_from[node], announced[node], node);
            (void)sc_exit(8);
        }
    }
}

int main(int argc, char **argv) {
    uint32_t number, messages, length, header = (uint32_t)sizeof(struct header);
    int destination;

    score_initialize();
    if (argc < 3 || score_num_node < 2 || score_num_node > MAX_NODES) {
        fprintf(stderr, "usage: scrun -nodes=2..%d traffic MESSAGES SEED [block]\n", MAX_NODES);
        return 2;
    }
    messages = (uint32_t)strtoul(argv[1], NULL, 10);
    state = strtoull(argv[2], NULL, 10) * 1000003 + (uint64_t)score_self_node;
    blocking = argc > 3 && strcmp(argv[3], "block") == 0;
    for (number = 1; number <= messages; number++) {
        /* Most messages are short, around the size of a slot. Others have up to the length that
         * every node accepts. */
        length = header + draw(draw(3) == 0 ? PM_MIN_MTU - header : 100);
        if (draw(16) == 0) {
            send_all(number, length);
        } else {
            destination = (int)draw((uint32_t)score_num_node - 1);
            destination += destination >= score_self_node;
            if (draw(16) == 0) {
                length = max_length(destination);
            }
            send_one(destination, DATA, number, length);
        }
        if (draw(4) == 0) {
            poll_randomly();
        }
    }
    finish(messages + 1);
    printf("all in order\n");
    return 0;
}
