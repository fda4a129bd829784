/*
 * Every function of pm.h, and every return code that two contexts of one device in one process can
 * produce. Prints the failures and ends with 1, or prints "conforms".
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pm.h>

#include "check.h"

#define NODES 3

#include "remote.h"

static char shmem[] = "shmem", composite[] = "composite";
static pmDevice *device, *composites;
/* The owner's contexts, the contexts that the user has attached, and the composites over these. */
static pmContext *owned[NODES], *member[NODES], *net[NODES];

/* ---- devices ---- */

static pmDevice *opened(char *type, char *nodes) {
    char option[] = "-nodes";
    char *argv[2];
    pmDevice *pmd = NULL;

    argv[0] = option;
    argv[1] = nodes;
    IS(PM_SUCCESS, pmOpenDevice(type, 2, argv, &pmd));
    return pmd;
}

static void opening_devices(void) {
    char dead[] = "myrinet", unknown[] = "carrier-pigeon";
    char option[] = "-nodes", bad[] = "0", nodes[] = "3", channels[] = "-channels", two[] = "2";
    char *argv[4];
    pmDevice *pmd = NULL;

    argv[0] = option;
    argv[1] = bad;
    argv[2] = channels;
    argv[3] = two;
    IS(ENODEV, pmOpenDevice(dead, 0, NULL, &pmd));
    IS(ENODEV, pmOpenDevice(unknown, 0, NULL, &pmd));
    IS(EINVAL, pmOpenDevice(shmem, 2, argv, &pmd));
    IS(EINVAL, pmOpenDevice(shmem, 1, argv, &pmd));
    IS(EINVAL, pmOpenDevice(shmem, -1, argv, &pmd));
    IS(EINVAL, pmOpenDevice(shmem, 2, NULL, &pmd));
    IS(EINVAL, pmOpenDevice(NULL, 0, NULL, &pmd));
    IS(EINVAL, pmOpenDevice(shmem, 0, NULL, NULL));
    HOLDS(pmd == NULL);
    argv[1] = nodes;
    IS(PM_SUCCESS, pmOpenDevice(shmem, 4, argv, &device));
    composites = opened(composite, nodes);
}

static void telling_of_devices(void) {
    char *types[8];
    int nodes[NODES], ntypes = 0, nnodes = NODES - 1, reachable = -1;
    pmDeviceConfig config;
    unsigned long option = 99;

    IS(ENOSPC, pmGetTypeList(types, &ntypes));
    HOLDS(ntypes >= 2 && ntypes <= 8);
    IS(PM_SUCCESS, pmGetTypeList(types, &ntypes));
    HOLDS(strcmp(types[0], composite) == 0 || strcmp(types[1], composite) == 0);
    IS(EINVAL, pmGetTypeList(NULL, &ntypes));
    IS(EINVAL, pmGetTypeList(types, NULL));
    ntypes = -1;
    IS(EINVAL, pmGetTypeList(types, &ntypes));

    IS(PM_SUCCESS, pmGetDeviceConfig(device, &config));
    HOLDS(strcmp(config.type, shmem) == 0 && config.nodes == NODES);
    HOLDS(config.contexts == 2 * NODES && config.mtu >= PM_MIN_MTU && config.size > 0);
    IS(EINVAL, pmGetDeviceConfig(device, NULL));
    IS(EINVAL, pmGetDeviceConfig(NULL, &config));
    IS(PM_SUCCESS, pmGetOptionBit(device, &option));
    IS(config.option, option);
    IS(EINVAL, pmGetOptionBit(device, NULL));

    IS(ENOSPC, pmGetNodeList(device, nodes, &nnodes));
    IS(NODES, nnodes);
    IS(PM_SUCCESS, pmGetNodeList(device, nodes, &nnodes));
    HOLDS(nodes[0] == 0 && nodes[NODES - 1] == NODES - 1);
    nnodes = -1;
    IS(EINVAL, pmGetNodeList(device, nodes, &nnodes));
    IS(PM_SUCCESS, pmIsReachable(device, 1, &reachable));
    IS(1, reachable);
    IS(EINVAL, pmIsReachable(device, NODES, &reachable));
    IS(EINVAL, pmIsReachable(device, -1, &reachable));
}

/* ---- contexts of their owner ---- */

static void opening_contexts(void) {
    int n;

    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmOpenContext(device, n, &owned[n]));
    IS(EBUSY, pmOpenContext(device, 0, &owned[0]));
    IS(EINVAL, pmOpenContext(device, 2 * NODES, &owned[0]));
    IS(EINVAL, pmOpenContext(device, -1, &owned[0]));
    IS(EINVAL, pmOpenContext(device, 0, NULL));
    IS(EBUSY, pmCloseDevice(device));

    IS(EINVAL, pmGetSelf(owned[0], &n));
    IS(EINVAL, pmUnbindChannel(owned[0]));
    IS(EINVAL, pmBindChannel(owned[0], 2, 0));
    IS(EINVAL, pmBindChannel(owned[0], 0, NODES));
    IS(EINVAL, pmBindChannel(owned[0], -1, 0));
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmBindChannel(owned[n], 0, n));
    IS(EBUSY, pmBindChannel(owned[0], 0, 1));
    IS(PM_SUCCESS, pmUnbindChannel(owned[2]));
    IS(EBUSY, pmBindChannel(owned[2], 0, 1));
    IS(PM_SUCCESS, pmBindChannel(owned[2], 0, 2));
}

static void telling_of_contexts(void) {
    pmContextConfig config;
    size_t mtu = 0;
    int self = -1;

    IS(PM_SUCCESS, pmGetContextConfig(owned[1], &config));
    HOLDS(strcmp(config.type, shmem) == 0 && config.number == 1 && config.nodes == NODES);
    HOLDS(config.mtu >= PM_MIN_MTU);
    HOLDS((config.option & PM_OPT_REMOTE_READ) && (config.option & PM_OPT_REMOTE_WRITE));
    IS(EINVAL, pmGetContextConfig(owned[1], NULL));
    IS(EINVAL, pmGetContextConfig(NULL, &config));
    IS(PM_SUCCESS, pmGetSelf(owned[1], &self));
    IS(1, self);
    IS(PM_SUCCESS, pmGetMtu(owned[1], 0, &mtu));
    IS(config.mtu, mtu);
    IS(EINVAL, pmGetMtu(owned[1], NODES, &mtu));
    IS(EINVAL, pmGetMtu(owned[1], -1, &mtu));
    IS(EINVAL, pmGetMtu(owned[1], 0, NULL));
}

static void send_text(pmContext *pmc, int node, const char *text) {
    caddr_t buf = NULL;

    IS(PM_SUCCESS, pmGetSendBuffer(pmc, node, &buf, strlen(text) + 1));
    if (buf == NULL) return;
    HOLDS((uintptr_t)buf % 16 == 0);
    strcpy(buf, text);
    IS(PM_SUCCESS, pmSend(pmc));
}

static void receive_text(pmContext *pmc, const char *text) {
    caddr_t buf = NULL;
    size_t len = 0;

    IS(PM_SUCCESS, pmReceive(pmc, &buf, &len));
    if (buf == NULL) return;
    HOLDS((uintptr_t)buf % 16 == 0);
    HOLDS(len == strlen(text) + 1 && strcmp(buf, text) == 0);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(pmc));
}

static void control_messages(void) {
    char buf[PM_CONTROL_MTU + 1];
    size_t len = sizeof(buf);
    int node = -1, sent = 0;

    memset(buf, 'x', sizeof(buf));
    IS(ENOBUFS, pmControlReceive(owned[1], &node, buf, &len));
    IS(EINVAL, pmControlSend(owned[0], 1, buf, 0));
    IS(EINVAL, pmControlSend(owned[0], 1, buf, sizeof(buf)));
    IS(EINVAL, pmControlSend(owned[0], NODES, buf, 1));
    IS(EINVAL, pmControlSend(owned[0], 1, NULL, 1));
    IS(PM_SUCCESS, pmControlSend(owned[0], 1, buf, PM_CONTROL_MTU));
    len = 1;
    IS(ENOSPC, pmControlReceive(owned[1], &node, buf, &len));
    IS(PM_CONTROL_MTU, len);
    len = sizeof(buf);
    IS(PM_SUCCESS, pmControlReceive(owned[1], &node, buf, &len));
    HOLDS(node == 0 && len == PM_CONTROL_MTU && buf[0] == 'x');
    while (sent < 100000 && pmControlSend(owned[0], 1, buf, 1) == PM_SUCCESS) sent++;
    IS(ENOBUFS, pmControlSend(owned[0], 1, buf, 1));
    while (sent-- > 0) {
        len = sizeof(buf);
        IS(PM_SUCCESS, pmControlReceive(owned[1], &node, buf, &len));
    }
}

static void saving_and_restoring(void) {
    static char state[1 << 20];
    size_t size = 0, used;
    pmMessageQueueStatus status;

    send_text(owned[0], 1, "kept");
    IS(PM_SUCCESS, pmIsSendStable(owned[0]));
    IS(ENOSPC, pmSaveContext(owned[1], NULL, &size));
    HOLDS(size > 0 && size < sizeof(state));
    IS(EINVAL, pmSaveContext(owned[1], NULL, &size));
    used = sizeof(state);
    IS(PM_SUCCESS, pmSaveContext(owned[1], state, &used));
    IS(PM_SUCCESS, pmResetContext(owned[1]));
    IS(PM_SUCCESS, pmGetMessageQueueStatus(owned[1], &status));
    IS(0, status.receive);
    IS(EINVAL, pmRestoreContext(owned[1], state, used / 2));
    IS(EINVAL, pmRestoreContext(owned[1], NULL, used));
    IS(PM_SUCCESS, pmRestoreContext(owned[1], state, used));
    receive_text(owned[1], "kept");
}

/* ---- contexts of their users ---- */

static void attaching(void) {
    char unknown[] = "carrier-pigeon";
    pmContext *again = NULL;
    int fd, n, pipes[2];

    IS(EINVAL, pmAttachContext(shmem, -1, &again));
    IS(EINVAL, pmAttachContext(shmem, 9999, &again));
    IS(0, pipe(pipes));
    IS(EINVAL, pmAttachContext(shmem, pipes[0], &again));
    for (n = 0; n < NODES; n++) {
        fd = -1;
        IS(PM_SUCCESS, pmCreateAttachFd(owned[n], &fd));
        IS(ENODEV, pmAttachContext(unknown, fd, &again));
        IS(EINVAL, pmAttachContext(shmem, fd, NULL));
        IS(PM_SUCCESS, pmAttachContext(shmem, fd, &member[n]));
        IS(EINVAL, pmAttachContext(shmem, fd, &again));
        IS(PM_SUCCESS, pmCloseAttachFd(fd));
        IS(EINVAL, pmCloseAttachFd(fd));
    }
    IS(EINVAL, pmCloseAttachFd(pipes[0]));
    IS(EINVAL, pmCreateAttachFd(owned[0], NULL));
    HOLDS(again == NULL);
    close(pipes[0]);
    close(pipes[1]);
}

static void what_is_the_owners(void) {
    char buf[8] = "x";
    size_t size = sizeof(buf);
    int fd;

    IS(EPERM, pmCloseContext(member[0]));
    IS(EPERM, pmBindChannel(member[0], 0, 0));
    IS(EPERM, pmUnbindChannel(member[0]));
    IS(EPERM, pmCreateAttachFd(member[0], &fd));
    IS(EPERM, pmControlSend(member[0], 1, buf, 1));
    IS(EPERM, pmIsSendStable(member[0]));
    IS(EPERM, pmSaveContext(member[0], buf, &size));
    IS(EPERM, pmRestoreContext(member[0], buf, size));
    /* The context belongs to the user: the owner can no longer send through it. */
    IS(EINVAL, pmDetachContext(owned[0]));
}

/* ---- composites ---- */

static void composing(void) {
    pmContext *found = NULL;
    int every[] = {0, 1, 2}, taken[] = {2, 2}, beyond[] = {0, NODES}, n, node = -1;

    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmOpenContext(composites, n, &net[n]));
    IS(EINVAL, pmGetSelf(net[0], &node));
    IS(PM_SUCCESS, pmAddNode(net[0], 0, member[0], 0));
    IS(PM_SUCCESS, pmAddNode(net[0], 1, member[0], 1));
    IS(EBUSY, pmAddNode(net[0], 1, member[0], 2));
    IS(EBUSY, pmAddNode(net[1], 1, member[0], 1));
    IS(EINVAL, pmAddNode(net[0], NODES, member[0], 2));
    IS(EINVAL, pmAddNode(net[0], 2, member[0], NODES));
    IS(EINVAL, pmAddNode(net[0], -1, member[0], 2));
    IS(EINVAL, pmAddNode(net[0], 2, NULL, 2));
    IS(ENOSYS, pmAddNode(member[1], 2, member[0], 2));

    IS(PM_SUCCESS, pmExtractNode(net[0], 1, &found, &node));
    HOLDS(found == member[0] && node == 1);
    IS(EINVAL, pmExtractNode(net[0], 2, &found, &node));
    IS(EINVAL, pmExtractNode(net[0], NODES, &found, &node));
    IS(ENOSYS, pmExtractNode(member[0], 1, &found, &node));
    IS(EINVAL, pmRemoveNode(net[0], 2));
    IS(EINVAL, pmRemoveNode(net[0], -1));
    IS(ENOSYS, pmRemoveNode(member[0], 1));
    IS(PM_SUCCESS, pmRemoveNode(net[0], 1));
    IS(EINVAL, pmRemoveNode(net[0], 1));
    IS(PM_SUCCESS, pmAddNode(net[0], 1, member[0], 1));

    /* All or none: node 2 has no route after these calls. */
    IS(EBUSY, pmAssociateNodes(net[0], member[0], NODES, every, every));
    IS(EINVAL, pmExtractNode(net[0], 2, &found, &node));
    HOLDS(pmAssociateNodes(net[0], member[0], 2, taken, every) != PM_SUCCESS);
    IS(EINVAL, pmAssociateNodes(net[1], member[1], 2, beyond, every));
    IS(EINVAL, pmAssociateNodes(net[1], member[1], -1, every, every));
    IS(EINVAL, pmAssociateNodes(net[1], member[1], 2, NULL, every));
    IS(ENOSYS, pmAssociateNodes(member[1], member[0], 2, every, every));
    IS(PM_SUCCESS, pmAddNode(net[0], 2, member[0], 2));
    IS(PM_SUCCESS, pmAssociateNodes(net[1], member[1], NODES, every, every));
    IS(PM_SUCCESS, pmAssociateNodes(net[2], member[2], NODES, every, every));
    IS(PM_SUCCESS, pmGetSelf(net[1], &node));
    IS(1, node);
    IS(EBUSY, pmDetachContext(member[1]));
}

/* ---- messages ---- */

static void a_message(pmContext *const at[]);

/* Messages and remote memory with pmSetSerialized, and without pauses. */
static void serialized(void) {
    int n;

    IS(EINVAL, pmSetSerialized(NULL, 1));
    IS(EINVAL, pmSetSerialized(net[1], 2));
    IS(EINVAL, pmSetSerialized(net[1], -1));
    IS(EINVAL, pmSetPollPause(NULL, 1));
    IS(EINVAL, pmSetPollPause(net[1], 2));
    IS(EINVAL, pmSetPollPause(net[1], -1));
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmSetSerialized(net[n], 1));
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmSetPollPause(net[n], 0));
    a_message(net);
    remote_memory_of_every_kind(net);
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmSetPollPause(net[n], 1));
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmSetSerialized(net[n], 0));
}

static void a_message(pmContext *const at[]) {
    caddr_t buf = NULL, second = NULL;
    size_t len = 0, mtu = 0;
    pmMessageQueueStatus status;

    IS(PM_SUCCESS, pmGetMtu(at[0], 1, &mtu));
    HOLDS(mtu >= PM_MIN_MTU);
    IS(EINVAL, pmGetSendBuffer(at[0], 0, &buf, 8)); /* to itself */
    IS(EINVAL, pmGetSendBuffer(at[0], NODES, &buf, 8));
    IS(EINVAL, pmGetSendBuffer(at[0], -1, &buf, 8));
    IS(EINVAL, pmGetSendBuffer(at[0], 1, &buf, 0));
    IS(EINVAL, pmGetSendBuffer(at[0], 1, &buf, mtu + 1));
    IS(EINVAL, pmGetSendBuffer(at[0], 1, NULL, 8));
    IS(EINVAL, pmGetSendBuffer(NULL, 1, &buf, 8));
    HOLDS(buf == NULL);
    IS(EIO, pmSend(at[0]));
    IS(EIO, pmTruncateBuffer(at[0], 1));
    IS(EIO, pmReleaseReceiveBuffer(at[1]));
    IS(ENOBUFS, pmReceive(at[1], &buf, &len));
    IS(EINVAL, pmReceive(at[1], NULL, &len));
    IS(EINVAL, pmReceive(at[1], &buf, NULL));

    IS(PM_SUCCESS, pmGetSendBuffer(at[0], 1, &buf, mtu));
    IS(EBUSY, pmGetSendBuffer(at[0], 1, &second, 8));
    memset(buf, 'm', mtu);
    IS(EINVAL, pmTruncateBuffer(at[0], mtu + 1));
    IS(EINVAL, pmTruncateBuffer(at[0], 0));
    IS(PM_SUCCESS, pmTruncateBuffer(at[0], mtu));
    IS(PM_SUCCESS, pmTruncateBuffer(at[0], 100));
    IS(EINVAL, pmTruncateBuffer(at[0], 101));
    IS(PM_SUCCESS, pmSend(at[0]));
    IS(EIO, pmSend(at[0]));
    IS(PM_SUCCESS, pmIsSendDone(at[0]));
    IS(PM_SUCCESS, pmGetMessageQueueStatus(at[1], &status));
    HOLDS(status.receive == 1 && status.read == 0);
    IS(EINVAL, pmGetMessageQueueStatus(at[1], NULL));

    IS(PM_SUCCESS, pmReceive(at[1], &buf, &len));
    HOLDS(len == 100 && buf[0] == 'm' && buf[99] == 'm');
    IS(PM_SUCCESS, pmGetMessageQueueStatus(at[1], &status));
    IS(0, status.receive);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(at[1]));
    IS(EIO, pmReleaseReceiveBuffer(at[1]));
    IS(ENOBUFS, pmReceive(at[1], &buf, &len));
}

static void a_full_destination_and_another(pmContext *const at[]) {
    char text[24];
    caddr_t buf;
    size_t len;
    int sent = 0, n, before = failures;

    while (sent < 1000000 && pmGetSendBuffer(at[0], 1, &buf, sizeof(text)) == PM_SUCCESS) {
        snprintf(buf, sizeof(text), "%d", sent++);
        IS(PM_SUCCESS, pmSend(at[0]));
    }
    HOLDS(sent > 0 && sent < 1000000);
    IS(ENOBUFS, pmGetSendBuffer(at[0], 1, &buf, sizeof(text)));
    send_text(at[0], 2, "passes");
    receive_text(at[2], "passes");
    for (n = 0; n < sent && failures < before + 9; n++) {
        IS(PM_SUCCESS, pmReceive(at[1], &buf, &len));
        snprintf(text, sizeof(text), "%d", n);
        HOLDS(len == sizeof(text) && strcmp(buf, text) == 0);
        IS(PM_SUCCESS, pmReleaseReceiveBuffer(at[1]));
    }
    IS(ENOBUFS, pmReceive(at[1], &buf, &len));
    send_text(at[0], 1, "again");
    receive_text(at[1], "again");
}

static void multicast(pmContext *const at[]) {
    int others[] = {1, 2}, twice[] = {1, 1}, self[] = {0, 1}, beyond[] = {1, NODES};
    caddr_t buf = NULL;

    IS(EINVAL, pmGetMulticastBuffer(at[0], twice, 2, &buf, 8));
    IS(EINVAL, pmGetMulticastBuffer(at[0], self, 2, &buf, 8));
    IS(EINVAL, pmGetMulticastBuffer(at[0], beyond, 2, &buf, 8));
    IS(EINVAL, pmGetMulticastBuffer(at[0], others, 0, &buf, 8));
    IS(EINVAL, pmGetMulticastBuffer(at[0], NULL, 2, &buf, 8));
    IS(EINVAL, pmGetMulticastBuffer(at[0], others, 2, &buf, 0));
    IS(EINVAL, pmGetMulticastBuffer(at[0], others, 2, NULL, 8));
    IS(PM_SUCCESS, pmGetMulticastBuffer(at[0], others, 2, &buf, 64));
    if (buf == NULL) return;
    IS(EBUSY, pmGetMulticastBuffer(at[0], others, 2, &buf, 8));
    strcpy(buf, "to all");
    IS(PM_SUCCESS, pmTruncateBuffer(at[0], sizeof("to all")));
    IS(PM_SUCCESS, pmSend(at[0]));
    receive_text(at[1], "to all");
    receive_text(at[2], "to all");
}

static void waiting_in_select(pmContext *pmc, pmContext *sender, int node) {
    int fd[8], nfd = 0, n, round, highest = 0, ready = 0;
    caddr_t buf = NULL;
    size_t len = 0;
    fd_set set;
    struct timeval second;

    IS(ENOSPC, pmGetFd(pmc, NULL, &nfd));
    HOLDS(nfd > 0 && nfd <= 8);
    n = pmGetFd(pmc, fd, &nfd);
    IS(PM_SUCCESS, n);
    if (n != PM_SUCCESS) return;
    IS(EINVAL, pmGetFd(pmc, NULL, &nfd));
    IS(EINVAL, pmGetFd(pmc, fd, NULL));
    n = -1;
    IS(EINVAL, pmGetFd(pmc, fd, &n));
    for (round = 0; round < 2; round++) {
        IS(PM_SUCCESS, pmBeforeSelect(pmc));
        IS(ENOBUFS, pmReceive(pmc, &buf, &len));
        send_text(sender, node, "wakes");
        FD_ZERO(&set);
        for (n = 0; n < nfd; n++) {
            HOLDS(fd[n] < FD_SETSIZE);
            FD_SET(fd[n], &set);
            if (fd[n] > highest) highest = fd[n];
        }
        second.tv_sec = 1;
        second.tv_usec = 0;
        ready = select(highest + 1, &set, NULL, NULL, &second);
        HOLDS(ready > 0);
        receive_text(pmc, "wakes");
        IS(PM_SUCCESS, pmAfterSelect(pmc));
    }
    IS(PM_SUCCESS, pmAfterSelect(pmc));
}

/* ---- two processes ---- */

static int pass_fd(int socket, int fd) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))];
    struct iovec data;
    struct msghdr message;
    struct cmsghdr *control;

    data.iov_base = &byte;
    data.iov_len = 1;
    memset(&message, 0, sizeof(message));
    memset(space, 0, sizeof(space));
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof(space);
    if (fd < 0) {
        if (recvmsg(socket, &message, 0) != 1) return -1;
        control = CMSG_FIRSTHDR(&message);
        if (control == NULL) return -1;
        memcpy(&fd, CMSG_DATA(control), sizeof(fd));
        return fd;
    }
    control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(control), &fd, sizeof(fd));
    return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

/* A user process, as started by the shepherd: it has opened nothing and attaches one context. */
static int user(int socket) {
    pmContext *pmc = NULL;
    pmDevice *pmd = NULL;
    caddr_t buf;
    size_t len;
    int fd = pass_fd(socket, -1), cc;

    HOLDS(fd >= 0);
    IS(PM_SUCCESS, pmAttachContext(shmem, fd, &pmc));
    if (pmc == NULL) return 1;
    IS(PM_SUCCESS, close(fd));
    IS(EPERM, pmOpenDevice(shmem, 0, NULL, &pmd));
    IS(PM_SUCCESS, pmOpenDevice(composite, 0, NULL, &pmd));
    IS(PM_SUCCESS, pmCloseDevice(pmd));
    alarm(10);
    while ((cc = pmReceive(pmc, &buf, &len)) == ENOBUFS) continue;
    IS(PM_SUCCESS, cc);
    HOLDS(cc == PM_SUCCESS && strcmp(buf, "to another process") == 0);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(pmc));
    send_text(pmc, 0, "and back");
    IS(PM_SUCCESS, pmDetachContext(pmc));
    return failures;
}

static pid_t other;
static int to_other;

/* Must run before this process uses PM. */
static void start_another_process(void) {
    int ends[2];

    IS(0, socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    other = fork();
    if (other == 0) {
        close(ends[0]);
        other = user(ends[1]);
        fflush(stdout);
        _exit(other != 0);
    }
    to_other = ends[0];
    close(ends[1]);
}

/* Node 1 of channel 1 is the other process. Node 0 is this process. */
static void another_process(void) {
    pmContext *here = NULL, *there = NULL;
    caddr_t buf = NULL;
    size_t len;
    int fd = -1, status = -1, cc;

    IS(PM_SUCCESS, pmOpenContext(device, NODES, &here));
    IS(PM_SUCCESS, pmOpenContext(device, NODES + 1, &there));
    IS(PM_SUCCESS, pmBindChannel(here, 1, 0));
    IS(PM_SUCCESS, pmBindChannel(there, 1, 1));
    IS(PM_SUCCESS, pmCreateAttachFd(there, &fd));
    IS(0, pass_fd(to_other, fd));
    IS(PM_SUCCESS, pmCloseAttachFd(fd));
    send_text(here, 1, "to another process");
    IS(EBUSY, pmReceive(there, &buf, &len)); /* the other process has the context */
    alarm(10);
    while ((cc = pmReceive(here, &buf, &len)) == ENOBUFS) continue;
    alarm(0);
    HOLDS(cc == PM_SUCCESS && strcmp(buf, "and back") == 0);
    IS(PM_SUCCESS, pmReleaseReceiveBuffer(here));
    IS(other, waitpid(other, &status, 0));
    IS(0, status);
    /* A message to a node that has exited is accepted and dropped. */
    send_text(here, 1, "to an exited node");
    IS(PM_SUCCESS, pmCloseContext(there));
    IS(PM_SUCCESS, pmCloseContext(here));
    close(to_other);
}

/* ---- the rest ---- */

static const uint32_t idle_threads = 1, no_idle_threads = 0;
static int called;

static void become_busy(void) {
    called++;
}

static void sending_while_idle(void) {
    IS(EINVAL, pmSetIdleWord(&idle_threads, NULL));
    IS(PM_SUCCESS, pmSetIdleWord(&idle_threads, become_busy));
    send_text(net[0], 1, "idle");
    IS(1, called);
    IS(PM_SUCCESS, pmSetIdleWord(&no_idle_threads, become_busy));
    send_text(net[0], 1, "busy");
    IS(PM_SUCCESS, pmSetIdleWord(NULL, NULL));
    send_text(net[0], 1, "none");
    IS(1, called);
    receive_text(net[1], "idle");
    receive_text(net[1], "busy");
    receive_text(net[1], "none");
}

static void ready(void *arg, int later) {
    (void)arg;
    (void)later;
}

static void optional_functions(void) {
    pmMmapInfo info;
    int entries = 1;

    IS(ENOSYS, pmCheckpoint(net[0], ready, NULL));
    IS(ENOSYS, pmRestartUser(net[0]));
    IS(ENOSYS, pmRestartSys(owned[0]));
    IS(ENOSYS, pmMigrateUser(net[0]));
    IS(ENOSYS, pmMigrateSys(owned[0]));
    IS(ENOSYS, pmGetMmapInfo(&info, &entries));
    IS(EINVAL, pmGetMmapInfo(&info, NULL));
}

static void telling_people(void) {
    int error;

    IS(EINVAL, pmDebug(-1));
    IS(PM_SUCCESS, pmDebug(0));
    IS(PM_SUCCESS, pmDumpContext(net[0]));
    IS(EINVAL, pmDumpContext(NULL));
    for (error = -1; error < 200; error++) HOLDS(pmErrorString(error)[0] != '\0');
    HOLDS(strcmp(pmErrorString(EBUSY), pmErrorString(ENOBUFS)) != 0);
}

static void a_child_has_no_contexts(void) {
    int status = -1, failed = failures;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        caddr_t buf;
        size_t len;
        int self;
        pmDeviceConfig config;

        IS(EINVAL, pmReceive(net[1], &buf, &len));
        IS(EINVAL, pmGetSendBuffer(net[0], 1, &buf, 8));
        IS(EINVAL, pmGetSelf(member[0], &self));
        IS(EINVAL, pmBeforeSelect(net[0]));
        IS(EINVAL, pmDetachContext(member[0]));
        IS(EINVAL, pmGetDeviceConfig(device, &config));
        fflush(stdout);
        _exit(failures != failed);
    }
    IS(child, waitpid(child, &status, 0));
    IS(0, status);
    send_text(net[0], 1, "the parent does");
    receive_text(net[1], "the parent does");
}

static void closing(void) {
    int n, self;

    for (n = 0; n < NODES; n++) {
        IS(PM_SUCCESS, pmCloseContext(net[n]));
        IS(EINVAL, pmCloseContext(net[n]));
        IS(EINVAL, pmGetSelf(net[n], &self));
        IS(PM_SUCCESS, pmDetachContext(member[n]));
        IS(EINVAL, pmSend(member[n]));
    }
    IS(PM_SUCCESS, pmCloseDevice(composites));
    IS(EINVAL, pmCloseDevice(composites));
    for (n = 0; n < NODES; n++) IS(PM_SUCCESS, pmCloseContext(owned[n]));
    IS(PM_SUCCESS, pmCloseDevice(device));
    IS(EINVAL, pmCloseDevice(device));
    IS(EINVAL, pmCloseDevice(NULL));
}

int main(void) {
    start_another_process();
    opening_devices();
    if (device == NULL || composites == NULL) return 2;
    telling_of_devices();
    opening_contexts();
    telling_of_contexts();
    control_messages();
    a_message(owned);
    a_full_destination_and_another(owned);
    multicast(owned);
    waiting_in_select(owned[1], owned[0], 1);
    saving_and_restoring();
    another_process();
    attaching();
    if (member[0] == NULL || member[1] == NULL || member[2] == NULL) return 2;
    what_is_the_owners();
    a_message(member);
    composing();
    if (net[0] == NULL) return 2;
    a_message(net);
    a_full_destination_and_another(net);
    multicast(net);
    remote_memory_of_every_kind(member);
    remote_memory_of_every_kind(net);
    serialized();
    waiting_in_select(net[1], net[0], 1);
    sending_while_idle();
    optional_functions();
    telling_people();
    a_child_has_no_contexts();
    closing();
    if (failures == 0) printf("conforms\n");
    return failures != 0;
}
