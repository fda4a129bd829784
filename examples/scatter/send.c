/* Figure 2.10 (its caption has the name get_send_message). */
#include <errno.h>
#include <stddef.h>

#include "scatter.h"

/* Waits for a send buffer. Receives meanwhile, because the wait might otherwise never end. */
int get_send_buffer(pmContext *pmc, int dst, caddr_t *sbuf_p, size_t slen,
                    int (*recv_func)(caddr_t, size_t)) {
    int cc;

    while ((cc = pmGetSendBuffer(pmc, dst, sbuf_p, slen)) == ENOBUFS || cc == EBUSY) {
        caddr_t rbuf;
        size_t rlen;

        if (recv_func == NULL) continue;
        while ((cc = pmReceive(pmc, &rbuf, &rlen)) == PM_SUCCESS) {
            if ((cc = recv_func(rbuf, rlen)) != 0) return cc;
            if ((cc = pmReleaseReceiveBuffer(pmc)) != PM_SUCCESS) return cc;
        }
        if (cc != ENOBUFS && cc != EBUSY) return cc;
    }
    return cc;
}
