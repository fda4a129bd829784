/* Figure 2.13: the other nodes. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "scatter.h"

/*
 * Writes all bytes.
 * Corrected: a pipe may accept only a part of the bytes, for example after a stop of the job. errno
 * is not set then.
 */
int write_all(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t put = write(fd, bytes, len);

        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        if (put == 0) return EIO;
        bytes += put;
        len -= (size_t)put;
    }
    return 0;
}

int write_file_and_pass_next(pmContext *pmc, receive_function receive, int fd_out) {
    caddr_t rbuff, sbuff;
    size_t len;
    uint16_t sz;
    int cc;

    do {
        cc = receive(pmc, &rbuff, &len);
        if (cc != PM_SUCCESS) return cc;

        /* Corrected: lengths from another node are checked: they could exceed our buffer. */
        if (len < sizeof(sz)) return EIO;
        sz = ntohs(*(uint16_t *)(void *)rbuff);
        if (sz > len - sizeof(sz)) return EIO;
        if ((cc = write_all(fd_out, rbuff + sizeof(sz), sz)) != 0) return cc;
        if (!IS_PIPE_LAST) {
            cc = get_send_buffer(pmc, NEXT_NODE, &sbuff, len, NULL);
            if (cc != PM_SUCCESS) return cc;
            (void)memcpy(sbuff, rbuff, len);
            if ((cc = pmSend(pmc)) != PM_SUCCESS) return cc;
        }
        cc = pmReleaseReceiveBuffer(pmc);
        if (cc != PM_SUCCESS) return cc;
    } while (sz > 0);
    return 0;
}
