/* Remote memory of two contexts in one process; part of conformance.c. */

static void remote_done(pmContext **end) {
    caddr_t buf;
    size_t len;
    int cc;

    while ((cc = pmIsWriteDone(end[0])) == EBUSY) IS(ENOBUFS, pmReceive(end[1], &buf, &len));
    IS(PM_SUCCESS, cc);
    while ((cc = pmIsReadDone(end[0])) == EBUSY) IS(ENOBUFS, pmReceive(end[1], &buf, &len));
    IS(PM_SUCCESS, cc);
}

/*
 * Three operations on node 1, identified by number. The second operation fails on completion. `bad`
 * is a locked page that is not mapped.
 */
static void remote_status(pmContext **end, pmAddrHandle local, pmAddrHandle remote,
                          pmAddrHandle bad) {
    pmRemoteStatus status = {99, 99};
    uint64_t first, failed = 0;
    caddr_t buf;
    size_t len;
    int cc;

    IS(EINVAL, pmGetRemoteStatus(NULL, 1, &status));
    IS(EINVAL, pmGetRemoteStatus(end[0], 1, NULL));
    IS(EINVAL, pmGetRemoteStatus(end[0], 0, &status));
    IS(EINVAL, pmGetRemoteStatus(end[0], NODES, &status));
    IS(EINVAL, pmGetRemoteStatus(end[0], -1, &status));
    HOLDS(status.started == 99 && status.completed == 99);
    IS(PM_SUCCESS, pmGetRemoteStatus(end[0], 1, &status));
    first = status.started;
    HOLDS(status.completed == first);
    IS(PM_SUCCESS, pmWrite(end[0], 1, remote, local, 8));
    IS(PM_SUCCESS, pmRead(end[0], 1, bad, local, 8));
    IS(PM_SUCCESS, pmRead(end[0], 1, remote, local, 8));
    for (;;) {
        cc = pmGetRemoteStatus(end[0], 1, &status);
        HOLDS(status.started == first + 3);
        if (cc == EIO) {
            HOLDS(failed == 0);
            failed = status.completed;
            continue;
        }
        IS(PM_SUCCESS, cc);
        if (status.completed == first + 3) break;
        IS(ENOBUFS, pmReceive(end[1], &buf, &len));
    }
    HOLDS(failed == first + 2);
    IS(PM_SUCCESS, pmIsWriteDone(end[0]));
    IS(EIO, pmIsReadDone(end[0]));
}

/* Calls remote_status twice, with separate regions. */
static void remote_status_of_every_kind(pmContext **end) {
    static char here[64], there[64];
    long page = sysconf(_SC_PAGESIZE);
    pmAddrHandle local = 0, remote = 0, bad = 0;
    caddr_t hole = (caddr_t)mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    HOLDS(hole != MAP_FAILED);
    IS(PM_SUCCESS, pmMLock(end[0], 1, here, 64, &local));
    IS(PM_SUCCESS, pmMLock(end[1], 0, there, 64, &remote));
    IS(PM_SUCCESS, pmMLock(end[1], 0, hole, (size_t)page, &bad));
    remote_status(end, local, remote, bad);
    remote_status(end, local, remote, bad);
    IS(PM_SUCCESS, pmMUnlock(end[0], 1, here, 64));
    IS(PM_SUCCESS, pmMUnlock(end[1], 0, there, 64));
    IS(PM_SUCCESS, pmMUnlock(end[1], 0, hole, (size_t)page));
    munmap(hole, (size_t)page);
}

/* Writes and reads a region of each node, also in parts, and checks all errors. */
static void remote_memory(pmContext **end, char *here, char *there) {
    pmAddrHandle local = 0, remote = 0, again = 0;

    IS(EINVAL, pmMLock(NULL, PM_NODE_ANY, here, 64, &local));
    IS(EINVAL, pmMLock(end[0], PM_NODE_ANY, here, 64, NULL));
    IS(EINVAL, pmMLock(end[0], PM_NODE_ANY, here, 0, &local));
    IS(EINVAL, pmMLock(end[0], PM_NODE_ANY, NULL, 64, &local));
    IS(EINVAL, pmMLock(end[0], 0, here, 64, &local));
    IS(EINVAL, pmMLock(end[0], NODES, here, 64, &local));
    IS(EINVAL, pmMLock(end[0], -2, here, 64, &local));
    IS(ENOENT, pmMUnlock(end[0], PM_NODE_ANY, here, 64));
    IS(EINVAL, pmWrite(end[0], 1, local, remote, 8));
    IS(PM_SUCCESS, pmMLock(end[0], PM_NODE_ANY, here, 64, &local));
    IS(PM_SUCCESS, pmMLock(end[0], 1, here, 64, &again));
    HOLDS(again == local);
    IS(PM_SUCCESS, pmMLock(end[1], 0, there, 64, &remote));
    memcpy(here, "written there", 14);
    memset(there, 0, 64);
    IS(PM_SUCCESS, pmWrite(end[0], 1, remote + 8, local, 14));
    remote_done(end);
    HOLDS(strcmp(there + 8, "written there") == 0 && there[7] == 0);
    memcpy(there, "read from", 10);
    IS(PM_SUCCESS, pmRead(end[0], 1, remote, local + 32, 10));
    remote_done(end);
    HOLDS(strcmp(here + 32, "read from") == 0);
    IS(EINVAL, pmWrite(end[0], 1, remote + 57, local, 8));
    IS(EINVAL, pmWrite(end[0], 1, remote, local + 57, 8));
    IS(EINVAL, pmWrite(end[0], 1, remote, local, 0));
    IS(EINVAL, pmWrite(end[0], 1, 0, local, 8));
    IS(EINVAL, pmWrite(end[0], 0, remote, local, 8));
    IS(EINVAL, pmWrite(end[0], -1, remote, local, 8));
    IS(EINVAL, pmRead(end[0], NODES, remote, local, 8));
    IS(EINVAL, pmRead(NULL, 1, remote, local, 8));
    IS(EINVAL, pmIsWriteDone(NULL));
    IS(EINVAL, pmIsReadDone(NULL));
    IS(PM_SUCCESS, pmMUnlock(end[0], PM_NODE_ANY, here, 64));
    IS(PM_SUCCESS, pmMUnlock(end[0], 1, here, 64));
    IS(ENOENT, pmMUnlock(end[0], 1, here, 64));
    IS(EINVAL, pmMUnlock(end[0], NODES, here, 64));
    IS(EINVAL, pmMUnlock(end[0], 1, here, 0));
    IS(PM_SUCCESS, pmMUnlock(end[1], 0, there, 64));
    IS(EINVAL, pmWrite(end[0], 1, remote, local, 8));
}

static void remote_memory_of_every_kind(pmContext **end) {
    static char here[64], there[64];
    caddr_t ours[2];
    pmAddrHandle handle;

    IS(PM_SUCCESS, pmAlloc(end[0], 64, &ours[0]));
    IS(PM_SUCCESS, pmAlloc(end[1], 64, &ours[1]));
    remote_memory(end, ours[0], ours[1]);
    remote_memory(end, here, there);
    remote_memory(end, ours[0], there);
    remote_memory(end, here, ours[1]);
    IS(EINVAL, pmAlloc(end[0], 0, &ours[0]));
    IS(EINVAL, pmAlloc(end[0], 64, NULL));
    IS(EINVAL, pmAlloc(NULL, 64, &ours[0]));
    IS(ENOMEM, pmAlloc(end[0], (size_t)-1, &ours[0]));
    IS(PM_SUCCESS, pmMLock(end[0], 1, ours[0], 1, &handle));
    IS(EBUSY, pmFree(end[0], ours[0]));
    IS(PM_SUCCESS, pmMUnlock(end[0], 1, ours[0], 1));
    IS(EINVAL, pmFree(end[0], ours[0] + 1));
    IS(EINVAL, pmFree(end[0], NULL));
    IS(PM_SUCCESS, pmFree(end[0], ours[0]));
    IS(EINVAL, pmFree(end[0], ours[0]));
    IS(PM_SUCCESS, pmFree(end[1], ours[1]));
    remote_status_of_every_kind(end);
}
