/*
 * The messages between nodes during remote memory access: lengths, in two bytes, from the previous
 * node, and acknowledgements, in one byte, from the next node.
 * Corrected: figure 3.24 assumes that each message is of the expected kind. Here, as in figure
 * 3.28, the size of a message distinguishes the kinds, and early messages are kept.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "scatter.h"

static int lengths, acknowledgements;
static size_t last_length;

static int receive_notice(pmContext *pmc, receive_function receive) {
    caddr_t buff;
    uint16_t length;
    size_t size;
    int cc = receive(pmc, &buff, &size);

    if (cc != PM_SUCCESS) return cc;
    if (size == sizeof(length)) {
        memcpy(&length, buff, sizeof(length));
        last_length = ntohs(length);
        lengths++;
    } else if (size == 1) {
        acknowledgements++;
    }
    cc = pmReleaseReceiveBuffer(pmc);
    if (cc != PM_SUCCESS) return cc;
    /* Corrected: a length from another node is checked, because it could exceed our buffer. */
    return (size > sizeof(length) || last_length > BUFF_LEN) ? EIO : PM_SUCCESS;
}

int receive_length(pmContext *pmc, receive_function receive, size_t *len) {
    int cc;

    while (lengths == 0) {
        if ((cc = receive_notice(pmc, receive)) != PM_SUCCESS) return cc;
    }
    lengths--;
    *len = last_length;
    return PM_SUCCESS;
}

int receive_acknowledgement(pmContext *pmc, receive_function receive) {
    int cc;

    while (acknowledgements == 0) {
        if ((cc = receive_notice(pmc, receive)) != PM_SUCCESS) return cc;
    }
    acknowledgements--;
    return PM_SUCCESS;
}

int send_length(pmContext *pmc, size_t len) {
    uint16_t length = htons((uint16_t)len);
    caddr_t buff;
    int cc = get_send_buffer(pmc, NEXT_NODE, &buff, sizeof(length), NULL);

    if (cc != PM_SUCCESS) return cc;
    memcpy(buff, &length, sizeof(length));
    return pmSend(pmc);
}

int send_acknowledgement(pmContext *pmc) {
    caddr_t buff;
    int cc = get_send_buffer(pmc, PREV_NODE, &buff, 1, NULL);

    if (cc != PM_SUCCESS) return cc;
    buff[0] = 0;
    return pmSend(pmc);
}

int read_some(int fd, size_t *len) {
    ssize_t got;

    while ((got = read(fd, buffer, BUFF_LEN)) < 0) {
        if (errno != EINTR) return errno;
    }
    *len = (size_t)got;
    return 0;
}
