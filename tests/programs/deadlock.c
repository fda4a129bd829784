/* Programs that cannot make progress, and programs that only look like it: deadlock [pin] CASE.
 * With "pin" each process keeps memory locked meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#include <pm.h>
#include <sc.h>
#include <score.h>

#define NET score_pmnet[0]

static const char *mode;

static int mode_is(const char *word) { return strcmp(mode, word) == 0; }

static void check(int ok, const char *step) {
    if (!ok) {
        fprintf(stderr, "deadlock: node %d: %s\n", score_self_node, step);
        exit(9);
    }
}

static void sleep_ms(int ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&t, &t) && errno == EINTR) {
    }
}

static void send_to(int node) {
    caddr_t buf;
    int cc;
    do
        cc = pmGetSendBuffer(NET, node, &buf, 8);
    while (cc == ENOBUFS || cc == EBUSY);
    check(cc == PM_SUCCESS, "pmGetSendBuffer");
    memset(buf, 1, 8);
    check(pmSend(NET) == PM_SUCCESS, "pmSend");
}

/* Figure 2.9 of the manual. */
static void receive_and_hold(void) {
    caddr_t buf;
    size_t len;
    int cc;
    if ((cc = pmReceive(NET, &buf, &len)) == ENOBUFS || cc == EBUSY) {
        score_become_idle();
        while ((cc = pmReceive(NET, &buf, &len)) == ENOBUFS || cc == EBUSY) {
        }
    }
    score_become_busy();
    check(cc == PM_SUCCESS, "pmReceive");
}

static void release(void) { check(pmReleaseReceiveBuffer(NET) == PM_SUCCESS, "release"); }

static void receive(void) {
    receive_and_hold();
    release();
}

/* Figure 3.4 of the manual. `extra_fd` is another descriptor to wait for, or -1. */
static int sleep_for(int extra_fd) {
    caddr_t buf;
    size_t len;
    int fds[8], n = 8, cc, woken = 0, i;
    check(pmGetFd(NET, fds, &n) == PM_SUCCESS, "pmGetFd");
    score_become_idle();
    check(pmBeforeSelect(NET) == PM_SUCCESS, "pmBeforeSelect");
    while ((cc = pmReceive(NET, &buf, &len)) == ENOBUFS && !woken) {
        fd_set set;
        int max_fd = extra_fd;
        FD_ZERO(&set);
        for (i = 0; i < n; i++) {
            FD_SET(fds[i], &set);
            if (fds[i] > max_fd)
                max_fd = fds[i];
        }
        if (extra_fd >= 0)
            FD_SET(extra_fd, &set);
        if (select(max_fd + 1, &set, NULL, NULL, NULL) > 0 && extra_fd >= 0)
            woken = FD_ISSET(extra_fd, &set);
    }
    pmAfterSelect(NET);
    score_become_busy();
    if (cc == PM_SUCCESS)
        release();
    return woken;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static void *helper(void *arg) {
    (void)arg;
    sleep_ms(700);
    if (mode_is("helper-wakes")) {
        pthread_mutex_lock(&lock);
        pthread_cond_signal(&condition);
        pthread_mutex_unlock(&lock);
    } else {
        send_to(!score_self_node);
    }
    return NULL;
}

static void *sleeper(void *arg) {
    pthread_mutex_lock(&lock);
    pthread_cond_wait(&condition, &lock);
    pthread_mutex_unlock(&lock);
    if (arg)
        send_to(!score_self_node);
    return NULL;
}

static void compute(int ms) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < ms);
}

static void on_alarm(int signal) {
    (void)signal;
    send_to(!score_self_node);
}

static void on_hangup(int signal) {
    (void)signal;
    static const char text[] = "handler of SIGHUP\n";
    if (write(1, text, sizeof text - 1) < 0 || mode_is("inspect"))
        sc_inspectme(NULL, SIGHUP);
    if (mode_is("ignored"))
        return;
    _exit(0);
}

/* Cases that cannot make progress. */
static void run_deadlock(void) {
    pthread_t thread;
    int me = score_self_node, all = score_num_node, i;
    if (mode_is("alone")) { /* one node receives, the others have exited */
        if (me != 0)
            return;
        receive();
    } else if (mode_is("mutual") || mode_is("handled") || mode_is("inspect") ||
               mode_is("ignored")) {
        if (!mode_is("mutual"))
            signal(SIGHUP, on_hangup);
        for (i = 0; i < 3; i++) {
            send_to((me + 1) % all);
            receive();
        }
        receive();
    } else if (mode_is("blocked")) {
        sleep_for(-1);
    } else if (mode_is("barrier")) { /* one node receives, the others are in a barrier */
        if (me == 0)
            receive();
        sc_barrier();
    } else if (mode_is("unread")) { /* a message to an exited node is not outstanding */
        if (me == 1) {
            sleep_ms(200);
            return;
        }
        send_to(1);
        receive();
    } else if (mode_is("sleeper")) { /* a thread that no other thread will wake */
        pthread_create(&thread, NULL, sleeper, NULL);
        receive();
    } else if (mode_is("held")) { /* node 1 waits only after the file exists */
        if (me == 0)
            printf("node 0 waits\n"), fflush(stdout);
        while (me == 1 && access("go", F_OK) != 0)
            sleep_ms(10);
        receive();
    } else {
        check(0, "unknown");
    }
}

/* Cases that can make progress, whatever their state looks like. */
static void run_live(void) {
    pthread_t thread;
    int me = score_self_node, all = score_num_node, i;
    caddr_t buf;
    size_t len;
    if (mode_is("never-idle")) {
        if (me == 0) {
            sleep_ms(1500);
            send_to(1);
        } else if (me == 1) {
            while (pmReceive(NET, &buf, &len) == ENOBUFS) {
            }
            release();
        }
    } else if (mode_is("late")) { /* received, and released much later */
        if (me == 0) {
            send_to(1);
            receive();
        } else if (me == 1) {
            receive_and_hold();
            score_become_idle();
            sleep_ms(800);
            score_become_busy();
            release();
            send_to(0);
        }
    } else if (mode_is("barrier-computes")) {
        if (me == 0)
            compute(1000);
        sc_barrier();
    } else if (mode_is("barriers")) {
        for (i = 0; i < 300; i++)
            sc_barrier();
    } else if (mode_is("helper")) {
        if (me == 0)
            pthread_create(&thread, NULL, helper, NULL);
        if (me == 1)
            receive();
        sc_barrier();
    } else if (mode_is("helper-wakes")) { /* a sleeping thread wakes one that will send */
        if (me == 0) {
            pthread_t other;
            pthread_create(&other, NULL, sleeper, &thread);
            pthread_create(&thread, NULL, helper, NULL);
        }
        if (me == 1)
            receive();
        sc_barrier();
    } else if (mode_is("mistake")) { /* computes and sends with its idle flag set */
        score_become_idle();
        if (me == 0) {
            compute(1000);
            send_to(1);
        } else if (me == 1) {
            receive();
        }
    } else if (mode_is("alarm")) {
        signal(SIGALRM, on_alarm);
        if (me == 0)
            alarm(1);
        if (me < 2 && me == 1)
            receive();
        sc_barrier();
    } else if (mode_is("stdin")) {
        if (me == 0) {
            check(sleep_for(0), "stdin");
            for (i = 1; i < all; i++)
                send_to(i);
        } else {
            sleep_for(-1);
        }
    } else if (mode_is("test")) { /* as MPI_Test does: polls between computations */
        if (me == 0) {
            sleep_ms(1200);
            send_to(1);
        } else if (me == 1) {
            while (pmReceive(NET, &buf, &len) == ENOBUFS)
                compute(1);
            release();
        }
    } else if (mode_is("child")) { /* a child that will send a signal */
        signal(SIGUSR1, on_alarm);
        if (me == 0 && fork() == 0) {
            sleep_ms(800);
            kill(getppid(), SIGUSR1);
            _exit(0);
        }
        if (me == 1)
            receive();
        sc_barrier();
    } else if (mode_is("pipe")) { /* waits for the output of its left-hand neighbour */
        char byte;
        score_become_idle();
        check(read(0, &byte, 1) == 1, "read");
        score_become_busy();
    } else if (mode_is("feed")) {
        sleep_ms(1200);
        check(write(1, "x", 1) == 1, "write");
    } else {
        run_deadlock();
        return;
    }
    if (!mode_is("feed"))
        printf("node %d went on\n", me);
}

static void pin(void) {
    static char memory[1 << 16];
    pmAddrHandle handle;
    check(pmMLock(NET, PM_NODE_ANY, memory, sizeof memory, &handle) == PM_SUCCESS, "pmMLock");
}

int main(int argc, char **argv) {
    score_initialize(argc, argv);
    mode = argc > 1 ? argv[argc - 1] : "";
    if (argc > 2 && strcmp(argv[1], "pin") == 0)
        pin();
    run_live();
    return 0;
}
