/*
 * Uses PM wrongly in every way that the manual pages name. Checks the result of each function, and
 * that the context works afterwards. Needs two nodes or more.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <sc.h>
#include <score.h>

static int faults;

static void check(const char *what, int found, int expected) {
    if (found != expected) {
        printf("%s: %s, not %s\n", what, pmErrorString(found), pmErrorString(expected));
        faults++;
    }
}

/* Receives a message. With an empty receive queue the call returns ENOBUFS, so it is repeated. */
static int receive(pmContext *pmc, caddr_t *buffer, size_t *length) {
    int cc;

    while ((cc = pmReceive(pmc, buffer, length)) == ENOBUFS) {
    }
    return cc;
}

static void senders(pmContext *pmc, int next) {
    caddr_t buffer = NULL;
    size_t mtu = 0;

    check("pmSend without a buffer", pmSend(pmc), EIO);
    check("pmTruncateBuffer without a buffer", pmTruncateBuffer(pmc, 1), EIO);
    check("pmGetMtu", pmGetMtu(pmc, next, &mtu), PM_SUCCESS);
    check("pmGetMtu of a bad node", pmGetMtu(pmc, score_num_node, &mtu), EINVAL);
    if (mtu < PM_MIN_MTU) {
        printf("an MTU of %zu\n", mtu);
        faults++;
    }
    check("to itself", pmGetSendBuffer(pmc, score_self_node, &buffer, 8), EINVAL);
    check("zero length", pmGetSendBuffer(pmc, next, &buffer, 0), EINVAL);
    check("over the MTU", pmGetSendBuffer(pmc, next, &buffer, mtu + 1), EINVAL);
    check("a huge length", pmGetSendBuffer(pmc, next, &buffer, (size_t)-1), EINVAL);
    check("a negative node", pmGetSendBuffer(pmc, -1, &buffer, 8), EINVAL);
    check("a node too high", pmGetSendBuffer(pmc, score_num_node, &buffer, 8), EINVAL);
    check("a node far too high", pmGetSendBuffer(pmc, 0x7fffffff, &buffer, 8), EINVAL);
    check("no place for the address", pmGetSendBuffer(pmc, next, NULL, 8), EINVAL);
    check("no context", pmGetSendBuffer(NULL, next, &buffer, 8), EINVAL);
    check("pmSend after all that", pmSend(pmc), EIO);
}

static void multicasts(pmContext *pmc, int next) {
    caddr_t buffer = NULL;
    int twice[2], self[1];

    twice[0] = twice[1] = next;
    self[0] = score_self_node;
    check("multicast, one node twice", pmGetMulticastBuffer(pmc, twice, 2, &buffer, 8), EINVAL);
    check("multicast to itself", pmGetMulticastBuffer(pmc, self, 1, &buffer, 8), EINVAL);
    check("multicast to nobody", pmGetMulticastBuffer(pmc, twice, 0, &buffer, 8), EINVAL);
    check("pmSend after a refused multicast", pmSend(pmc), EIO);
}

/* Sends one valid message round the ring, and causes every error that is possible with a held
 * buffer. */
static void round_trip(pmContext *pmc, int next) {
    caddr_t buffer = NULL, message = NULL;
    size_t length = 0;
    int before = (score_self_node + score_num_node - 1) % score_num_node;

    check("pmReleaseReceiveBuffer without a message", pmReleaseReceiveBuffer(pmc), EIO);
    check("a good buffer", pmGetSendBuffer(pmc, next, &buffer, 100), PM_SUCCESS);
    check("truncate to longer", pmTruncateBuffer(pmc, 101), EINVAL);
    check("truncate to nothing", pmTruncateBuffer(pmc, 0), EINVAL);
    check("truncate", pmTruncateBuffer(pmc, 40), PM_SUCCESS);
    check("truncate back", pmTruncateBuffer(pmc, 100), EINVAL);
    memset(buffer, 'a' + score_self_node, 40);
    check("pmSend", pmSend(pmc), PM_SUCCESS);
    check("pmSend again", pmSend(pmc), EIO);
    check("pmReceive", receive(pmc, &message, &length), PM_SUCCESS);
    if (length != 40 || message[39] != 'a' + before) {
        printf("a message of %zu bytes\n", length);
        faults++;
    }
    check("pmReleaseReceiveBuffer", pmReleaseReceiveBuffer(pmc), PM_SUCCESS);
    check("pmReleaseReceiveBuffer again", pmReleaseReceiveBuffer(pmc), EIO);
}

/* The member of the composite belongs to SCore-D; the composite is the process's own. */
static void privileges(pmContext *pmc, int next) {
    pmDevice *device = NULL;
    pmContext *member = NULL;
    int descriptor = -1, node = -1;

    check("pmOpenDevice", pmOpenDevice((char *)"shmem", 0, NULL, &device), EPERM);
    check("pmExtractNode", pmExtractNode(pmc, next, &member, &node), PM_SUCCESS);
    check("pmCreateAttachFd", pmCreateAttachFd(member, &descriptor), EPERM);
    check("pmCloseContext", pmCloseContext(member), EPERM);
    check("pmBindChannel", pmBindChannel(member, 0, 0), EPERM);
    check("pmAddNode of a taken node", pmAddNode(pmc, next, member, node), EBUSY);
    check("pmAddNode of a bad node", pmAddNode(pmc, -1, member, node), EINVAL);
    check("pmAddNode on a member", pmAddNode(member, next, member, node), ENOSYS);
    check("pmRemoveNode of a bad node", pmRemoveNode(pmc, score_num_node + 7), EINVAL);
    check("pmDetachContext of a member", pmDetachContext(member), EBUSY);
}

/* Memory that was never locked is refused at once. */
static void remote_memory(pmContext *pmc, int next) {
    static char memory[64];
    pmAddrHandle handle = 0, forged = 0;

    check("pmMLock of nothing", pmMLock(pmc, next, memory, 0, &handle), EINVAL);
    check("pmMLock for itself", pmMLock(pmc, score_self_node, memory, 8, &handle), EINVAL);
    check("pmMLock for a bad node", pmMLock(pmc, score_num_node, memory, 8, &handle), EINVAL);
    check("pmMUnlock without a lock", pmMUnlock(pmc, next, memory, sizeof memory), ENOENT);
    check("pmMLock", pmMLock(pmc, next, memory, sizeof memory, &handle), PM_SUCCESS);
    check("pmWrite to a forged handle", pmWrite(pmc, next, forged, handle, 8), EINVAL);
    check("pmRead of a forged handle", pmRead(pmc, next, forged, handle, 8), EINVAL);
    check("pmWrite of nothing", pmWrite(pmc, next, forged, handle, 0), EINVAL);
    check("pmWrite of too much", pmWrite(pmc, next, handle, handle, sizeof memory + 1), EINVAL);
    check("pmMUnlock", pmMUnlock(pmc, next, memory, sizeof memory), PM_SUCCESS);
    check("pmMUnlock again", pmMUnlock(pmc, next, memory, sizeof memory), ENOENT);
    check("pmIsWriteDone", pmIsWriteDone(pmc), PM_SUCCESS);
    check("pmIsReadDone", pmIsReadDone(pmc), PM_SUCCESS);
}

int main(void) {
    pmContext *pmc;
    int next;

    score_initialize();
    pmc = score_pmnet[0];
    if (pmc == NULL) {
        fprintf(stderr, "misuse: two nodes or more\n");
        return 2;
    }
    next = (score_self_node + 1) % score_num_node;
    senders(pmc, next);
    multicasts(pmc, next);
    round_trip(pmc, next);
    privileges(pmc, next);
    remote_memory(pmc, next);
    round_trip(pmc, next);
    if (sc_barrier() != 0) {
        faults++;
    }
    if (faults == 0) {
        printf("as the manual says\n");
    }
    return faults != 0;
}
