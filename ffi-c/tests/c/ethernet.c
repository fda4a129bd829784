/*
 * Two nodes over ethernet, both in this process, each in a composite: messages of every kind,
 * a blocked receive as in figure 3.4, and a child of fork, which has no context. Prints the
 * failures and ends with 1, or prints "conforms".
 */
#include <errno.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pm.h>

#include "check.h"

#define NODES 2

static pmContext *member[NODES], *net[NODES];

/* Waits for a message. */
static size_t awaited(pmContext *pmc, caddr_t *buf) {
    size_t len = 0;
    int answer;

    do {
        answer = pmReceive(pmc, buf, &len);
    } while (answer == ENOBUFS);
    IS(PM_SUCCESS, answer);
    return len;
}

static void sent(pmContext *pmc, int node, const char *words) {
    caddr_t buf = NULL;
    size_t len = strlen(words) + 1;

    while (pmGetSendBuffer(pmc, node, &buf, len) == ENOBUFS) {
    }
    memcpy(buf, words, len);
    IS(PM_SUCCESS, pmSend(pmc));
}

static void opening(void) {
    char ethernet[] = "ethernet", agent[] = "agent-udp", composite[] = "composite";
    char option[] = "-nodes", nodes[] = "2", link[] = "-link", lo[] = "127.0.0.1";
    char *argv[4];
    pmDevice *device = NULL, *composites = NULL;
    pmDeviceConfig config;
    int k, n, fd;

    argv[0] = option;
    argv[1] = nodes;
    argv[2] = link;
    argv[3] = lo;
    IS(PM_SUCCESS, pmOpenDevice(agent, 4, argv, &device));
    IS(PM_SUCCESS, pmGetDeviceConfig(device, &config));
    HOLDS(strcmp(config.type, ethernet) == 0 && config.nodes == NODES);
    HOLDS(config.mtu >= PM_MIN_MTU);
    IS(PM_SUCCESS, pmOpenDevice(composite, 2, argv, &composites));
    for (k = 0; k < NODES; k++) {
        pmContext *owned = NULL;
        IS(PM_SUCCESS, pmOpenContext(device, k, &owned));
        IS(PM_SUCCESS, pmBindChannel(owned, 0, k));
        IS(PM_SUCCESS, pmCreateAttachFd(owned, &fd));
        IS(PM_SUCCESS, pmAttachContext(k ? ethernet : agent, fd, &member[k]));
        IS(PM_SUCCESS, pmCloseAttachFd(fd));
        IS(PM_SUCCESS, pmOpenContext(composites, k, &net[k]));
        for (n = 0; n < NODES; n++) {
            IS(PM_SUCCESS, pmAddNode(net[k], n, member[k], n));
        }
    }
}

static void messages(void) {
    caddr_t buf = NULL;
    size_t mtu = 0;
    int i, one = 1;

    IS(PM_SUCCESS, pmGetMtu(net[0], 1, &mtu));
    IS(EINVAL, pmGetSendBuffer(net[0], 0, &buf, 8));
    IS(EINVAL, pmGetSendBuffer(net[0], 1, &buf, mtu + 1));
    IS(EIO, pmSend(net[0]));
    for (i = 0; i < 1000; i++) {
        sent(net[0], 1, "over");
        HOLDS(awaited(net[1], &buf) == 5 && strcmp(buf, "over") == 0);
        IS(PM_SUCCESS, pmReleaseReceiveBuffer(net[1]));
        sent(net[1], 0, "and back");
        HOLDS(awaited(net[0], &buf) == 9 && strcmp(buf, "and back") == 0);
        IS(PM_SUCCESS, pmReleaseReceiveBuffer(net[0]));
    }
    IS(PM_SUCCESS, pmGetMulticastBuffer(net[0], &one, 1, &buf, 100));
    memcpy(buf, "many", 5);
    IS(PM_SUCCESS, pmTruncateBuffer(net[0], 5));
    IS(PM_SUCCESS, pmSend(net[0]));
    HOLDS(awaited(net[1], &buf) == 5 && strcmp(buf, "many") == 0);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(net[1]));
    while (pmIsSendDone(net[0]) == EBUSY) {
        size_t len = 0;
        IS(ENOBUFS, pmReceive(net[1], &buf, &len));
    }
    IS(PM_SUCCESS, pmIsSendDone(net[0]));
}

static void blocking(void) {
    struct timeval timeout;
    caddr_t buf = NULL;
    fd_set readable;
    size_t len = 0;
    int fd = -1, nfds = 1;

    IS(PM_SUCCESS, pmGetFd(net[1], &fd, &nfds));
    HOLDS(nfds == 1 && fd >= 0 && fd < FD_SETSIZE);
    IS(PM_SUCCESS, pmBeforeSelect(net[1]));
    IS(ENOBUFS, pmReceive(net[1], &buf, &len));
    sent(net[0], 1, "wake up");
    timeout.tv_sec = 20;
    timeout.tv_usec = 0;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    HOLDS(select(fd + 1, &readable, NULL, NULL, &timeout) == 1);
    IS(PM_SUCCESS, pmAfterSelect(net[1]));
    HOLDS(awaited(net[1], &buf) == 8 && strcmp(buf, "wake up") == 0);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(net[1]));
}

static void forking(void) {
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        caddr_t buf = NULL;
        size_t len = 0;
        int well = pmReceive(net[1], &buf, &len) == EINVAL && pmSend(net[0]) == EINVAL
            && pmDetachContext(member[0]) == EINVAL;
        _exit(well ? 0 : 1);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    messages();
}

int main(void) {
    opening();
    messages();
    blocking();
    forking();
    if (failures == 0) printf("conforms\n");
    return failures != 0;
}
