/* Node 1 sends two messages and waits. Node 0 receives one of them and exits at once, possibly
 * before the threads of PM have run. */
#include <errno.h>
#include <string.h>

#include <score.h>

int main(void)
{
    caddr_t buffer;
    size_t length;
    int i;

    score_initialize();
    if (score_self_node == 0) {
        while (pmReceive(score_pmnet[0], &buffer, &length) == ENOBUFS) {
        }
        (void)pmReleaseReceiveBuffer(score_pmnet[0]);
        return 0;
    }
    for (i = 0; i < 2; i++) {
        while (pmGetSendBuffer(score_pmnet[0], 0, &buffer, 8) == ENOBUFS) {
        }
        memset(buffer, 0, 8);
        (void)pmSend(score_pmnet[0]);
    }
    score_become_idle();
    while (pmReceive(score_pmnet[0], &buffer, &length) == ENOBUFS) {
    }
    return 1;
}
