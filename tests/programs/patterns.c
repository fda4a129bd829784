/* Random patterns of communication that always end or, with `dead`, never do: every node executes
 * the same steps, which follow from the seed. patterns SEED STEPS alive|dead */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <pm.h>
#include <sc.h>
#include <score.h>

#define NET score_pmnet[0]
#define MOST 512
#define ALL (score_num_node)
#define ME (score_self_node)

/* How a node waits for a message. Only the first three set the idle flag. */
enum { SPIN, BLOCK, DOZE, NAIVE, TEST, STYLES };
/* How and when a message is sent. */
enum { AT_ONCE, LATER, BUSY, HELPER, WOKEN, MISTAKE, ALARM, WAYS };

static uint64_t state;
static int dead, alarms;
static int arrived[MOST];

static uint64_t draw(void) {
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static int below(int bound) { return (int)(draw() % (uint64_t)bound); }

/* Mostly short, so that there are many; sometimes long enough for every sampling of idle flags. */
static int pause_ms(void) {
    int kind = below(8);
    return kind == 0 ? 20 + below(80) : kind < 4 ? below(8) : 0;
}

static void check(int ok, const char *step) {
    if (!ok) {
        fprintf(stderr, "patterns: node %d: %s\n", ME, step);
        sc_exit(9);
    }
}

static void nap(int ms) {
    struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&t, &t) && errno == EINTR) {
    }
}

static void compute(int ms) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < ms);
}

static void post(int node, int step) {
    caddr_t buf;
    int cc;
    do
        cc = pmGetSendBuffer(NET, node, &buf, sizeof step);
    while (cc == ENOBUFS || cc == EBUSY);
    check(cc == PM_SUCCESS, "pmGetSendBuffer");
    memcpy(buf, &step, sizeof step);
    check(pmSend(NET) == PM_SUCCESS, "pmSend");
}

static void arm(void) {
    int fds[8], n = 8, i, top = 0;
    fd_set set;
    FD_ZERO(&set);
    check(pmGetFd(NET, fds, &n) == PM_SUCCESS, "pmGetFd");
    for (i = 0; i < n; i++) {
        FD_SET(fds[i], &set);
        if (fds[i] > top)
            top = fds[i];
    }
    select(top + 1, &set, NULL, NULL, NULL);
}

/* Receives one message, and releases it `late` milliseconds later. */
static void take(int style, int late) {
    caddr_t buf;
    size_t len;
    int cc, step;
    if (style == BLOCK)
        check(pmBeforeSelect(NET) == PM_SUCCESS, "pmBeforeSelect");
    while ((cc = pmReceive(NET, &buf, &len)) == ENOBUFS || cc == EBUSY) {
        if (style == SPIN || style == BLOCK || style == DOZE)
            score_become_idle();
        if (style == BLOCK)
            arm();
        if (style == DOZE)
            usleep(200);
        if (style == TEST)
            compute(1);
    }
    if (style == BLOCK)
        pmAfterSelect(NET);
    check(cc == PM_SUCCESS && len == sizeof step, "pmReceive");
    memcpy(&step, buf, sizeof step);
    check(step >= 0 && step < MOST, "a step that is none");
    if (late > 0)
        nap(late);
    score_become_busy();
    check(pmReleaseReceiveBuffer(NET) == PM_SUCCESS, "pmReleaseReceiveBuffer");
    arrived[step]++;
}

static void await(int step, int count, int style, int late) {
    while (arrived[step] < count)
        take(style, late);
}

/* The work of a sender's thread. */
struct task {
    int node, step, ms;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int go;
};

static void *helper(void *arg) {
    struct task *task = arg;
    nap(task->ms);
    post(task->node, task->step);
    return NULL;
}

static void *waker(void *arg) {
    struct task *task = arg;
    nap(task->ms);
    pthread_mutex_lock(&task->lock);
    task->go = 1;
    pthread_cond_signal(&task->turn);
    pthread_mutex_unlock(&task->lock);
    return NULL;
}

static void *woken(void *arg) {
    struct task *task = arg;
    pthread_mutex_lock(&task->lock);
    while (!task->go)
        pthread_cond_wait(&task->turn, &task->lock);
    pthread_mutex_unlock(&task->lock);
    post(task->node, task->step);
    return NULL;
}

static volatile int alarm_node, alarm_step;

static void on_alarm(int signal) {
    (void)signal;
    post(alarm_node, alarm_step);
}

static pthread_t threads[2 * MOST];
static int started;

static void start(void *(*body)(void *), struct task *task) {
    sigset_t alarm;
    /* The SIGALRM handler must not interrupt a send of this thread. */
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    check(pthread_create(&threads[started++], NULL, body, task) == 0, "pthread_create");
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
}

static void send_message(int to, int step, int way, int ms) {
    struct task *task;
    struct itimerval timer = {{0, 0}, {0, (ms + 1) * 1000}};
    switch (way) {
    case LATER:
        nap(ms);
        break;
    case BUSY:
        compute(ms);
        break;
    case MISTAKE:
        score_become_idle();
        compute(ms);
        break;
    case HELPER:
    case WOKEN:
        task = calloc(1, sizeof *task);
        *task = (struct task){to, step, ms, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        if (way == WOKEN)
            start(woken, task);
        start(way == WOKEN ? waker : helper, task);
        return;
    case ALARM:
        alarm_node = to;
        alarm_step = step;
        setitimer(ITIMER_REAL, &timer, NULL);
        /* The handler must not interrupt a send that is in progress. */
        score_become_idle();
        nap(ms + 2);
        score_become_busy();
        return;
    default:
        break;
    }
    post(to, step);
    score_become_busy();
}

/* Every node makes all draws of a step, so that the states of all nodes stay equal. */
static void step_of(int step, int lost) {
    int kind = below(10), from = below(ALL), to = (from + 1 + below(ALL - 1)) % ALL;
    int style = below(dead ? NAIVE : STYLES), way = below(dead ? MISTAKE : alarms ? WAYS : ALARM);
    int ms = pause_ms(), late = below(4) == 0 ? pause_ms() : 0, i;
    if (way >= HELPER && way <= WOKEN && started > 20)
        way = LATER;
    if (kind < 6) { /* one message */
        if (ME == from && !lost)
            send_message(to, step, way, ms);
        if (ME == to)
            await(step, 1, style, late);
    } else if (kind == 6) { /* a ring */
        if (lost ? ME != from : 1)
            post((ME + 1) % ALL, step);
        await(step, 1, style, late);
    } else if (kind == 7) { /* all send to one node, which answers all */
        if (ME == to) {
            await(step, ALL - 1, style, late);
            nap(ms);
            for (i = 0; i < ALL; i++)
                if (i != to && !(lost && i == from))
                    post(i, step);
        } else {
            post(to, step);
            await(step, 1, style, 0);
        }
    } else { /* a barrier that one node reaches late */
        if (ME == from)
            nap(ms);
        if (!(lost && ME == from))
            sc_barrier();
        else
            await(step, 1, style, 0);
    }
}

int main(int argc, char **argv) {
    int steps, step, lost, i;
    score_initialize(argc, argv);
    check(argc > 3, "patterns SEED STEPS alive|dead");
    state = strtoull(argv[argc - 3], NULL, 10);
    steps = atoi(argv[argc - 2]);
    dead = strcmp(argv[argc - 1], "dead") == 0;
    check(steps > 0 && steps < MOST, "too many steps");
    /* A handler of SIGALRM rules out any verdict, and few programs have one. */
    alarms = below(6) == 0;
    if (alarms && !dead)
        signal(SIGALRM, on_alarm);
    lost = dead ? below(steps) : -1;
    for (step = 0; step < steps; step++)
        step_of(step, step == lost);
    for (i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    sc_barrier();
    printf("node %d is done\n", ME);
    return 0;
}
