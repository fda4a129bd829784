/* Figures 3.13, 3.15, 3.16 and 3.19: auxiliary functions for remote memory access. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scatter.h"

char *buffer;
pmAddrHandle loc_handle, rmt_handle;

unsigned long get_pm_option_bits(pmContext *pmc) {
    pmContextConfig config;
    int cc = pmGetContextConfig(pmc, &config);

    if (cc != PM_SUCCESS) return 0;
    return config.option;
}

/* Corrected: the name is pmMLock, with an L. */
int allocate_locked_buffer(pmContext *pmc) {
    int cc = posix_memalign((void **)&buffer, (size_t)sysconf(_SC_PAGESIZE), BUFF_LEN);

    if (cc != 0) return cc;
    return pmMLock(pmc, PM_NODE_ANY, buffer, BUFF_LEN, &loc_handle);
}

int send_local_handle(pmContext *pmc, int dst) {
    caddr_t buff;
    int cc = get_send_buffer(pmc, dst, &buff, sizeof(pmAddrHandle), NULL);

    if (cc != PM_SUCCESS) return cc;
    memcpy(buff, &loc_handle, sizeof(pmAddrHandle));
    return pmSend(pmc);
}

int recv_remote_handle(pmContext *pmc, receive_function receive) {
    caddr_t buff;
    size_t len;
    int cc = receive(pmc, &buff, &len);

    if (cc != PM_SUCCESS) return cc;
    /* Corrected: the receive buffer is released even if the message is wrong. */
    if (len == sizeof(pmAddrHandle)) memcpy(&rmt_handle, buff, sizeof(pmAddrHandle));
    cc = pmReleaseReceiveBuffer(pmc);
    return len != sizeof(pmAddrHandle) ? EIO : cc;
}

int is_write_done(pmContext *pmc) {
    int cc;

    while ((cc = pmIsWriteDone(pmc)) == EBUSY) continue;
    return cc;
}

int is_read_done(pmContext *pmc) {
    int cc;

    while ((cc = pmIsReadDone(pmc)) == EBUSY) continue;
    return cc;
}
