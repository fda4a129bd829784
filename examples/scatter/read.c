/* Figure 2.11: the first node. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "scatter.h"

int read_file_and_pass_next(pmContext *pmc, int fd_in, int fd_out) {
    /* Not pmGetMtu: every node forwards the packets, so they must fit on all links. */
    const size_t mtu = PM_MIN_MTU;
    caddr_t sbuff;
    uint16_t sz;
    ssize_t got;
    int cc;

    do {
        cc = get_send_buffer(pmc, NEXT_NODE, &sbuff, mtu, NULL);
        if (cc != PM_SUCCESS) return cc;

        /* A packet is its length in network byte order, then that many bytes. */
        while ((got = read(fd_in, sbuff + sizeof(sz), mtu - sizeof(sz))) < 0) {
            if (errno != EINTR) return errno;
        }
        sz = (uint16_t)got;
        *(uint16_t *)(void *)sbuff = htons(sz);
        if ((cc = write_all(fd_out, sbuff + sizeof(sz), sz)) != 0) return cc;
        cc = pmTruncateBuffer(pmc, sizeof(sz) + sz);
        if (cc != PM_SUCCESS) return cc;
        cc = pmSend(pmc);
        if (cc != PM_SUCCESS) return cc;
    } while (sz > 0); /* an empty packet marks the end of the file */
    return 0;
}
