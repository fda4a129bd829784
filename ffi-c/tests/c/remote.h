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

/* A region of each node, written and read as words, also in parts. */
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
}
