/*
 * Memory that is locked, written, read, and remapped while others write to it, for many rounds:
 *   regions ROUNDS SEED [rdma]
 * In each round two nodes form a pair: one owns a region, and the other writes and reads it. In
 * quiet rounds every byte is checked on both nodes. In the other rounds the owner remaps its
 * region, protects it or releases it while its peer continues. Then each operation succeeds or
 * fails with EIO or EINVAL. Memory around the region, and memory that is never locked, stays
 * unchanged. At the end of each round the region is unlocked: its handle is refused from then on.
 * Every byte that is read meanwhile is one that the region has held. With "rdma" an adapter still
 * reaches a former region of another host until its registration is released: the pages that were
 * locked, whatever is mapped at their addresses now.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

#define PAGE ((size_t)4096)
#define MAX_PAGES 48 /* pages of a region */

enum kind { OFFER, WRITTEN, READ_REQUEST, READ_DONE, STOP, STOPPED, UNLOCKED, REFUSED };

struct message {
    uint32_t kind, round;
    uint64_t handle, length;
    uint32_t disturbed, pad;
};

/* Regions are mapped here. The range stays reserved, so a stale address finds a newer region. */
static unsigned char *window;
static caddr_t local;
static pmAddrHandle local_handle;
static uint64_t state, round_now, carried_out, failed, refused;
static int self, peer, rdma;

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d, round %d: %s: %s\n", self, (int)round_now, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static void must(const char *what, int cc) {
    if (cc != PM_SUCCESS) {
        die(what, cc);
    }
}

/* ---- control messages ---- */

static void send_message(enum kind kind, const struct message *more) {
    struct message message = {0};
    caddr_t buffer;
    int cc;

    if (more != NULL) {
        message = *more;
    }
    message.kind = kind;
    message.round = (uint32_t)round_now;
    while ((cc = pmGetSendBuffer(score_pmnet[0], peer, &buffer, sizeof message)) == ENOBUFS) {
    }
    must("pmGetSendBuffer", cc);
    memcpy(buffer, &message, sizeof message);
    must("pmSend", pmSend(score_pmnet[0]));
}

/* Returns whether the message has arrived. Any other message is an error. */
static int receive_message(enum kind kind, struct message *message) {
    caddr_t buffer;
    size_t length;
    int cc = pmReceive(score_pmnet[0], &buffer, &length);

    if (cc == ENOBUFS) {
        return 0;
    }
    must("pmReceive", cc);
    must("a message's length", length == sizeof *message ? PM_SUCCESS : EINVAL);
    memcpy(message, buffer, sizeof *message);
    must("pmReleaseReceiveBuffer", pmReleaseReceiveBuffer(score_pmnet[0]));
    if (message->kind != kind || message->round != (uint32_t)round_now) {
        fprintf(stderr, "node %d, round %d: message %d of round %d instead of %d\n", self,
                (int)round_now, (int)message->kind, (int)message->round, (int)kind);
        (void)sc_exit(4);
    }
    return 1;
}

static struct message wait_for_message(enum kind kind) {
    struct message message;

    while (!receive_message(kind, &message)) {
    }
    return message;
}

/* ---- patterns ---- */

enum { BEFORE = 1, WRITE, ANSWER, AROUND };

static unsigned char content(int what, size_t at) {
    return (unsigned char)(what * 61 + round_now * 29 + at * 7 + (at >> 8) * 3);
}

static void fill(unsigned char *area, int what, size_t from, size_t to) {
    for (size_t at = from; at < to; at++) {
        area[at] = content(what, at);
    }
}

static void check_bytes(const unsigned char *area, int what, size_t from, size_t to,
                        const char *where) {
    for (size_t at = from; at < to; at++) {
        if (area[at] != content(what, at)) {
            fprintf(stderr, "node %d, round %d: byte %zu (%zu to %zu) %s was altered: %d\n", self,
                    (int)round_now, at, from, to, where, area[at]);
            (void)sc_exit(5);
        }
    }
}

/* Checks that the bytes are ones that the region has held. Memory that is unmapped and mapped again
 * is zero. */
static void check_held_bytes(const unsigned char *area, size_t to, int disturbed) {
    for (size_t at = 0; at < to; at++) {
        unsigned char byte = area[at];
        if (byte != content(BEFORE, at) && byte != content(WRITE, at) &&
            byte != content(ANSWER, at) && !(disturbed && byte == 0)) {
            fprintf(stderr, "node %d, round %d: byte %zu of %zu was never in the region: %d\n",
                    self, (int)round_now, at, to, byte);
            (void)sc_exit(6);
        }
    }
}

/* ---- the owner ---- */

struct region {
    unsigned char *memory;
    size_t size, offset, length;
    int is_pm_memory; /* allocated by pmAlloc */
    int node; /* the node for which it is locked */
};

static void *map(void *at, size_t length, int protection) {
    int flags = MAP_ANONYMOUS | (at != NULL ? MAP_FIXED : 0) | (draw(2) ? MAP_PRIVATE : MAP_SHARED);
    void *memory = mmap(at, length, protection, flags, -1, 0);

    must("mmap", memory == MAP_FAILED ? errno : PM_SUCCESS);
    return memory;
}

static void unmap(void *at, size_t length) {
    /* The addresses stay reserved, so that no other memory is mapped there. */
    must("munmap", mmap(at, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                           MAP_FAILED
                       ? errno
                       : PM_SUCCESS);
}

/* Makes a region at a random place, with a page before it and a page after it. */
static struct region make_region(void) {
    struct region region = {0};
    size_t pages = 1 + draw(MAX_PAGES);

    region.is_pm_memory = draw(3) == 0;
    region.size = (pages + 2) * PAGE;
    if (region.is_pm_memory) {
        caddr_t memory;
        must("pmAlloc", pmAlloc(score_pmnet[0], region.size, &memory));
        region.memory = (unsigned char *)memory;
    } else {
        region.memory = map(window + draw(MAX_PAGES) * PAGE, region.size, PROT_READ | PROT_WRITE);
    }
    region.offset = PAGE + draw((uint32_t)PAGE);
    region.length = 1 + draw((uint32_t)(region.size - PAGE - region.offset));
    region.node = draw(2) ? peer : PM_NODE_ANY;
    fill(region.memory, AROUND, 0, region.offset);
    fill(region.memory + region.offset, BEFORE, 0, region.length);
    fill(region.memory, AROUND, region.offset + region.length, region.size);
    return region;
}

static void lock(const struct region *region, pmAddrHandle *handle) {
    must("pmMLock", pmMLock(score_pmnet[0], region->node, (caddr_t)region->memory + region->offset,
                            region->length, handle));
}

static void check_surroundings(const struct region *region, size_t within) {
    check_bytes(region->memory, AROUND, 0, within == 0 ? region->offset : PAGE,
                "before the region");
    check_bytes(region->memory, AROUND, within == 0 ? region->offset + region->length : within,
                region->size, "after the region");
}

/* Changes some pages of the region while the peer writes and reads them. */
static void disturb(const struct region *region) {
    size_t pages = (region->offset + region->length + PAGE - 1) / PAGE - 1;
    size_t first = draw((uint32_t)pages), count = 1 + draw((uint32_t)(pages - first));
    unsigned char *at = region->memory + PAGE + first * PAGE;
    struct message message;

    for (uint32_t polls = draw(200); polls > 0; polls--) {
        if (receive_message(STOPPED, &message)) {
            die("the peer stopped too early", EINVAL);
        }
    }
    if (region->is_pm_memory) {
        /* Only pmFree may unmap or protect memory of PM. */
        memset(at, 0, 1);
        return;
    }
    switch (draw(4)) {
    case 0:
        unmap(at, count * PAGE);
        usleep(draw(300));
        (void)map(at, count * PAGE, PROT_READ | PROT_WRITE);
        break;
    case 1:
        (void)map(at, count * PAGE, PROT_READ | PROT_WRITE);
        break;
    case 2:
        (void)madvise(at, count * PAGE, MADV_DONTNEED);
        break;
    default:
        must("mprotect", mprotect(at, count * PAGE, draw(2) ? PROT_READ : PROT_NONE));
        usleep(draw(300));
        must("mprotect", mprotect(at, count * PAGE, PROT_READ | PROT_WRITE));
    }
}

static void unlock(const struct region *region) {
    must("pmMUnlock", pmMUnlock(score_pmnet[0], region->node,
                                (caddr_t)region->memory + region->offset, region->length));
}

/*
 * Unlocks the region. Then other memory is mapped at its addresses. The old handle must not name
 * it, even if it is locked itself for a moment.
 */
static void release_region(struct region *region) {
    pmAddrHandle another;

    unlock(region);
    if (region->is_pm_memory) {
        caddr_t memory;
        must("pmFree", pmFree(score_pmnet[0], (caddr_t)region->memory));
        must("pmAlloc", pmAlloc(score_pmnet[0], region->size, &memory));
        region->memory = (unsigned char *)memory;
    } else {
        region->memory = map(region->memory, region->size, PROT_READ | PROT_WRITE);
    }
    fill(region->memory, AROUND, 0, region->size);
    if (draw(2) == 0) {
        lock(region, &another);
        unlock(region);
    }
}

static void run_owner(void) {
    struct region region = make_region();
    struct message message = {0};
    int is_released = 0;

    lock(&region, &message.handle);
    message.length = region.length;
    message.disturbed = draw(2);
    send_message(OFFER, &message);
    if (message.disturbed) {
        size_t end = (region.offset + region.length + PAGE - 1) / PAGE * PAGE;
        for (uint32_t times = 1 + draw(8); times > 0; times--) {
            disturb(&region);
        }
        is_released = draw(2) == 0;
        if (is_released) {
            release_region(&region);
        }
        send_message(STOP, NULL);
        (void)wait_for_message(STOPPED);
        if (is_released) {
            check_bytes(region.memory, AROUND, 0, region.size, "of a released region");
        } else {
            check_surroundings(&region, end);
        }
    } else {
        (void)wait_for_message(WRITTEN);
        check_bytes(region.memory + region.offset, WRITE, 0, region.length, "written");
        check_surroundings(&region, 0);
        fill(region.memory + region.offset, ANSWER, 0, region.length);
        send_message(READ_REQUEST, NULL);
        (void)wait_for_message(READ_DONE);
    }
    if (!is_released) {
        release_region(&region);
    }
    send_message(UNLOCKED, NULL);
    (void)wait_for_message(REFUSED);
    check_bytes(region.memory, AROUND, 0, region.size, "of unlocked memory");
    if (region.is_pm_memory) {
        must("pmFree", pmFree(score_pmnet[0], (caddr_t)region.memory));
    } else {
        unmap(region.memory, region.size);
    }
}

/* ---- the peer ---- */

enum operation { WRITE_TO, READ_FROM };

/* Starts an operation; returns whether it was accepted. Messages that arrive stay queued. */
static int start_operation(enum operation operation, pmAddrHandle handle, size_t at,
                           size_t length) {
    int cc;

    do {
        cc = operation == WRITE_TO
                 ? pmWrite(score_pmnet[0], peer, handle + at, local_handle + at, length)
                 : pmRead(score_pmnet[0], peer, handle + at, local_handle + at, length);
    } while (cc == ENOBUFS);
    if (cc == EINVAL) {
        refused++;
        return 0;
    }
    must(operation == WRITE_TO ? "pmWrite" : "pmRead", cc);
    return 1;
}

/* Waits until all operations are done; returns whether all of them succeeded. */
static int wait_until_done(void) {
    int (*is_done[])(pmContext *) = {pmIsWriteDone, pmIsReadDone}, all = 1, operation, cc;

    for (operation = 0; operation < 2; operation++) {
        /* Failures are reported before the operations in flight are done. */
        while ((cc = is_done[operation](score_pmnet[0])) != PM_SUCCESS) {
            if (cc == EIO) {
                all = 0;
            } else if (cc != EBUSY) {
                die(operation == 0 ? "pmIsWriteDone" : "pmIsReadDone", cc);
            }
        }
    }
    return all;
}

/* Transfers the whole region in chunks of random lengths. */
static void transfer_in_chunks(enum operation operation, pmAddrHandle handle, size_t length) {
    size_t at = 0, chunk;

    while (at < length) {
        chunk = 1 + draw((uint32_t)(length - at));
        must("an operation on a locked region",
             start_operation(operation, handle, at, chunk) ? PM_SUCCESS : EINVAL);
        at += chunk;
    }
}

static void run_peer(void) {
    struct message message = wait_for_message(OFFER), other;
    size_t length = (size_t)message.length;
    unsigned char *bytes = (unsigned char *)local;
    int far = rdma && (score_num_node == 2 || (peer ^ self) == 2);

    fill(bytes, WRITE, 0, length);
    if (message.disturbed) {
        while (!receive_message(STOP, &other)) {
            size_t at = draw((uint32_t)length);
            (void)start_operation((enum operation)draw(2), message.handle, at,
                                  1 + draw((uint32_t)(length - at)));
            if (draw(4) == 0) {
                *(wait_until_done() ? &carried_out : &failed) += 1;
            }
        }
        (void)wait_until_done();
        check_held_bytes(bytes, length, 1);
        send_message(STOPPED, NULL);
    } else {
        transfer_in_chunks(WRITE_TO, message.handle, length);
        send_message(WRITTEN, NULL);
        (void)wait_for_message(READ_REQUEST);
        transfer_in_chunks(READ_FROM, message.handle, length);
        must("a quiet round", wait_until_done() ? PM_SUCCESS : EIO);
        check_bytes(bytes, ANSWER, 0, length, "read");
        send_message(READ_DONE, NULL);
    }
    (void)wait_for_message(UNLOCKED);
    if (start_operation((enum operation)draw(2), message.handle, 0, length)) {
        must("a handle that is unlocked", wait_until_done() && !far ? EINVAL : PM_SUCCESS);
        check_held_bytes(bytes, length, (int)message.disturbed);
    }
    send_message(REFUSED, NULL);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? (uint64_t)atoi(argv[1]) : 10;
    int far;

    rdma = argc > 3 && strcmp(argv[3], "rdma") == 0;
    score_initialize(argc, argv);
    self = score_self_node;
    state = (argc > 2 ? (uint64_t)atoi(argv[2]) : 1) * 64 + (uint64_t)self;
    window = mmap(NULL, (2 * MAX_PAGES + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must("mmap", window == MAP_FAILED ? errno : PM_SUCCESS);
    if (self % 2 == 0) {
        must("pmAlloc", pmAlloc(score_pmnet[0], (MAX_PAGES + 1) * PAGE, &local));
    } else {
        local = (caddr_t)map(NULL, (MAX_PAGES + 1) * PAGE, PROT_READ | PROT_WRITE);
    }
    must("pmMLock",
         pmMLock(score_pmnet[0], PM_NODE_ANY, local, (MAX_PAGES + 1) * PAGE, &local_handle));
    for (round_now = 1; round_now <= rounds; round_now++) {
        /* With four nodes each pair is on one host in some rounds, and on two hosts in others. */
        far = score_num_node == 4 && round_now / 2 % 2 == 1 ? 2 : 1;
        if (score_num_node == 4 && round_now % 2 == 0) {
            (void)sc_barrier(); /* no message to a node that is not ready yet */
        }
        peer = self ^ far;
        if (((self & far) == 0) == (round_now % 2 == 0)) {
            run_owner();
        } else {
            run_peer();
        }
    }
    printf("all right: %llu carried out, %llu failed, %llu refused\n",
           (unsigned long long)carried_out, (unsigned long long)failed,
           (unsigned long long)refused);
    return 0;
}
