/* Figures 2.9 and 3.4: two ways to wait for a message. */
#include <errno.h>
#include <stdlib.h>
#include <sys/select.h>

#include "scatter.h"

/* Figure 2.9. Becomes busy before the message is released, as the manual requires. */
int spinwait_receive(pmContext *pmc, caddr_t *bufp, size_t *lenp) {
    int cc = pmReceive(pmc, bufp, lenp);

    if (cc == ENOBUFS || cc == EBUSY) {
        score_become_idle();
        do {
            cc = pmReceive(pmc, bufp, lenp);
        } while (cc == ENOBUFS || cc == EBUSY);
        score_become_busy();
    }
    return cc;
}

static int *fd_net;
static int num_fds, fd_max;

/* The first half of figure 3.4: the descriptors to wait on. */
static int get_descriptors(pmContext *pmc) {
    int cc, n;

    num_fds = 0;
    cc = pmGetFd(pmc, NULL, &num_fds); /* returns ENOSPC and their number */
    if (cc != ENOSPC) return cc == PM_SUCCESS ? ENOSYS : cc;
    fd_net = malloc(sizeof(int) * (size_t)num_fds);
    if (fd_net == NULL) return ENOMEM;
    cc = pmGetFd(pmc, fd_net, &num_fds);
    for (n = 0; cc == PM_SUCCESS && n < num_fds; n++) {
        /* Corrected: FD_SET with a descriptor above the limit would write past the end. */
        if (fd_net[n] >= FD_SETSIZE) cc = EMFILE;
        if (fd_net[n] >= fd_max) fd_max = fd_net[n] + 1;
    }
    if (cc != PM_SUCCESS) {
        free(fd_net);
        fd_net = NULL;
    }
    return cc;
}

/* The second half of figure 3.4. */
int blocking_receive(pmContext *pmc, caddr_t *bufp, size_t *lenp) {
    fd_set fds;
    int cc, after, n;

    if (fd_net == NULL && (cc = get_descriptors(pmc)) != PM_SUCCESS) return cc;
    if ((cc = pmBeforeSelect(pmc)) != PM_SUCCESS) return cc;
    while ((cc = pmReceive(pmc, bufp, lenp)) == ENOBUFS || cc == EBUSY) {
        /* Corrected: a waiting process is idle; without this call deadlocks are not detected. */
        score_become_idle();
        if (cc == EBUSY) continue;
        FD_ZERO(&fds);
        for (n = 0; n < num_fds; n++) FD_SET(fd_net[n], &fds);
        (void)select(fd_max, &fds, NULL, NULL, NULL);
    }
    score_become_busy();
    /* Corrected: pmAfterSelect is also required after errors. */
    after = pmAfterSelect(pmc);
    return cc == PM_SUCCESS ? after : cc;
}
