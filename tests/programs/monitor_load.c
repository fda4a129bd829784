/*
 * Values for monitors to show:
 *   monitor_load SECONDS
 * Each even node sends 100 messages of 1 to 100 bytes to the odd node after it. The odd nodes
 * receive them, and then wait for a message that does not come, until SECONDS after their start.
 * Meanwhile their idle flag is set. The even nodes compute for a second longer, because otherwise
 * SCore would report the odd nodes as deadlocked at the end. User monitor 0 shows the node number
 * plus 10, user monitor 1 shows 200.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sc.h>
#include <score.h>

enum { MESSAGES = 100 };

static void die(const char *what, int cc) {
    fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
    (void)sc_exit(3);
}

static double now(void) {
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void send_message(int length) {
    caddr_t buffer;
    int cc;

    while ((cc = pmGetSendBuffer(score_pmnet[0], score_self_node + 1, &buffer, (size_t)length)) !=
           PM_SUCCESS) {
        if (cc != ENOBUFS) {
            die("pmGetSendBuffer", cc);
        }
    }
    (void)memset(buffer, length, (size_t)length);
    if ((cc = pmSend(score_pmnet[0])) != PM_SUCCESS) {
        die("pmSend", cc);
    }
}

int main(int argc, char **argv) {
    int count = 0;
    double started_at, end_at;

    score_initialize(argc, argv);
    sc_set_monitor(0, (unsigned char)(10 + score_self_node));
    sc_set_monitor(1, 200);
    started_at = now();
    end_at = started_at + (argc > 1 ? atof(argv[1]) : 1);
    if (score_self_node % 2 == 0) {
        if (score_self_node + 1 < score_num_node) {
            for (count = 1; count <= MESSAGES; count++) {
                send_message(count);
            }
        }
        end_at += 1 + now() - started_at;
        while (now() < end_at) {
        }
    } else {
        while (now() < end_at) {
            caddr_t buffer;
            size_t length;
            int cc = pmReceive(score_pmnet[0], &buffer, &length);

            if (cc == PM_SUCCESS) {
                score_become_busy();
                count++;
                if ((cc = pmReleaseReceiveBuffer(score_pmnet[0])) != PM_SUCCESS) {
                    die("pmReleaseReceiveBuffer", cc);
                }
            } else if (cc != ENOBUFS) {
                die("pmReceive", cc);
            } else if (count == MESSAGES) {
                score_become_idle();
            }
        }
        score_become_busy();
        if (count != MESSAGES) {
            die("messages are missing", EIO);
        }
    }
    return 0;
}
