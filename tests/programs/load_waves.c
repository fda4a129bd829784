/*
 * A job with changing load, for monitors:
 *   load_waves SECONDS
 * The busy share of each node goes up and down, one node after the other, and so does the length of
 * its messages to the next node. User monitor 0 shows the share, user monitor 1 the node. The node
 * is busy by its flag, but leaves the processor to others. Node 0 prints a line when all nodes run.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sc.h>
#include <score.h>

#define PERIOD_MS 50.0
#define WAVE_MS 12000.0
#define MAX_LENGTH 1024

static void check(const char *what, int cc) {
    if (cc != PM_SUCCESS && cc != ENOBUFS && cc != EBUSY) {
        fprintf(stderr, "node %d: %s: %s\n", score_self_node, what, pmErrorString(cc));
        (void)sc_exit(3);
    }
}

static double now_ms(void) {
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Returns a share between 0.03 and 0.97 that goes up and down. */
static double share_at(double ms) {
    double phase = ms / WAVE_MS + (double)score_self_node / score_num_node;
    double part = phase - (double)(long)phase;
    double wave = part < 0.5 ? 2 * part : 2 - 2 * part;

    return 0.03 + 0.94 * wave;
}

static void exchange(size_t length) {
    caddr_t buffer;
    size_t received;
    int cc = PM_SUCCESS;

    if (score_num_node > 1) {
        int next = (score_self_node + 1) % score_num_node;

        cc = pmGetSendBuffer(score_pmnet[0], next, &buffer, length);
        if (cc == PM_SUCCESS) {
            memset(buffer, 0, length);
            cc = pmSend(score_pmnet[0]);
        }
        check("send", cc);
        while ((cc = pmReceive(score_pmnet[0], &buffer, &received)) == PM_SUCCESS) {
            check("release", pmReleaseReceiveBuffer(score_pmnet[0]));
        }
        check("receive", cc);
    }
}

static void sleep_ms(double ms) {
    struct timespec time = {0, (long)(ms * 1e6)};

    (void)nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    double begin, seconds = argc > 1 ? atof(argv[1]) : 10;

    score_initialize(argc, argv);
    (void)sc_barrier();
    if (score_self_node == 0) {
        printf("up\n");
        (void)fflush(stdout);
    }
    begin = now_ms();
    while (now_ms() < begin + seconds * 1e3) {
        double period_start = now_ms(), share = share_at(period_start - begin);

        sc_set_monitor(0, (unsigned char)(255 * share));
        sc_set_monitor(1, (unsigned char)(255 * score_self_node / score_num_node));
        while (now_ms() < period_start + share * PERIOD_MS) {
            exchange(8 + (size_t)(share * (MAX_LENGTH - 8)));
            sleep_ms(1);
        }
        score_become_idle();
        sleep_ms((1 - share) * PERIOD_MS);
        score_become_busy();
    }
    (void)sc_barrier();
    return 0;
}
