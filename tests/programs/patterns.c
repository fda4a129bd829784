/* Random patterns of communication, which always end or, with `dead`, never end. Every node
 * executes the same steps, which follow from the seed: patterns SEED STEPS alive|dead */
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
#define MAX_STEPS 512
#define ALL (score_num_node)
#define ME (score_self_node)

/* How a node waits for a message. Only the first three set the idle flag. */
enum { SPIN, BLOCK, DOZE, NAIVE, TEST, STYLES };
/* How and when a message is sent. */
enum { AT_ONCE, LATER, BUSY, HELPER, WOKEN, MISTAKE, ALARM, METHODS };

static uint64_t state;
static int deadlocks, alarms;
static int received[MAX_STEPS];

static uint64_t draw(void) {
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static int below(int bound) { return (int)(draw() % (uint64_t)bound); }

/* Pauses are mostly short, so that there are many, and sometimes longer than any interval between
 * samples of the idle flags. */
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

static void sleep_ms(int ms) {
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

static void send_now(int node, int step) {
    caddr_t buf;
    int cc;
    do
        cc = pmGetSendBuffer(NET, node, &buf, sizeof step);
    while (cc == ENOBUFS || cc == EBUSY);
    check(cc == PM_SUCCESS, "pmGetSendBuffer");
    memcpy(buf, &step, sizeof step);
    check(pmSend(NET) == PM_SUCCESS, "pmSend");
}

static void wait_in_select(void) {
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
static void receive_one(int style, int late) {
    caddr_t buf;
    size_t len;
    int cc, step;
    if (style == BLOCK)
        check(pmBeforeSelect(NET) == PM_SUCCESS, "pmBeforeSelect");
    while ((cc = pmReceive(NET, &buf, &len)) == ENOBUFS || cc == EBUSY) {
        if (style == SPIN || style == BLOCK || style == DOZE)
            score_become_idle();
        if (style == BLOCK)
            wait_in_select();
        if (style == DOZE)
            usleep(200);
        if (style == TEST)
            compute(1);
    }
    if (style == BLOCK)
        pmAfterSelect(NET);
    check(cc == PM_SUCCESS && len == sizeof step, "pmReceive");
    memcpy(&step, buf, sizeof step);
    check(step >= 0 && step < MAX_STEPS, "an invalid step number");
    if (late > 0)
        sleep_ms(late);
    score_become_busy();
    check(pmReleaseReceiveBuffer(NET) == PM_SUCCESS, "pmReleaseReceiveBuffer");
    received[step]++;
}

static void wait_for_messages(int step, int count, int style, int late) {
    while (received[step] < count)
        receive_one(style, late);
}

/* The work of a sender's thread. */
struct task {
    int node, step, ms;
    pthread_mutex_t lock;
    pthread_cond_t condition;
    int is_signalled;
};

static void *send_after_delay(void *arg) {
    struct task *task = arg;
    sleep_ms(task->ms);
    send_now(task->node, task->step);
    return NULL;
}

static void *signal_after_delay(void *arg) {
    struct task *task = arg;
    sleep_ms(task->ms);
    pthread_mutex_lock(&task->lock);
    task->is_signalled = 1;
    pthread_cond_signal(&task->condition);
    pthread_mutex_unlock(&task->lock);
    return NULL;
}

static void *wait_and_send(void *arg) {
    struct task *task = arg;
    pthread_mutex_lock(&task->lock);
    while (!task->is_signalled)
        pthread_cond_wait(&task->condition, &task->lock);
    pthread_mutex_unlock(&task->lock);
    send_now(task->node, task->step);
    return NULL;
}

static volatile int alarm_node, alarm_step;

static void on_alarm(int signal) {
    (void)signal;
    send_now(alarm_node, alarm_step);
}

static pthread_t threads[2 * MAX_STEPS];
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

static void send_message(int to, int step, int method, int ms) {
    struct task *task;
    struct itimerval timer = {{0, 0}, {0, (ms + 1) * 1000}};
    switch (method) {
    case LATER:
        sleep_ms(ms);
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
        if (method == WOKEN)
            start(wait_and_send, task);
        start(method == WOKEN ? signal_after_delay : send_after_delay, task);
        return;
    case ALARM:
        alarm_node = to;
        alarm_step = step;
        setitimer(ITIMER_REAL, &timer, NULL);
        /* The handler must not interrupt a send that is in progress. */
        score_become_idle();
        sleep_ms(ms + 2);
        score_become_busy();
        return;
    default:
        break;
    }
    send_now(to, step);
    score_become_busy();
}

/* Every node makes all draws of a step, so that the states of all nodes stay equal. */
static void run_step(int step, int lost) {
    int kind = below(10), from = below(ALL), to = (from + 1 + below(ALL - 1)) % ALL;
    int style = below(deadlocks ? NAIVE : STYLES);
    int method = below(deadlocks ? MISTAKE : alarms ? METHODS : ALARM);
    int ms = pause_ms(), late = below(4) == 0 ? pause_ms() : 0, i;
    if (method >= HELPER && method <= WOKEN && started > 20)
        method = LATER;
    if (kind < 6) { /* one message */
        if (ME == from && !lost)
            send_message(to, step, method, ms);
        if (ME == to)
            wait_for_messages(step, 1, style, late);
    } else if (kind == 6) { /* a ring */
        if (lost ? ME != from : 1)
            send_now((ME + 1) % ALL, step);
        wait_for_messages(step, 1, style, late);
    } else if (kind == 7) { /* all send to one node, which answers all */
        if (ME == to) {
            wait_for_messages(step, ALL - 1, style, late);
            sleep_ms(ms);
            for (i = 0; i < ALL; i++)
                if (i != to && !(lost && i == from))
                    send_now(i, step);
        } else {
            send_now(to, step);
            wait_for_messages(step, 1, style, 0);
        }
    } else { /* a barrier that one node reaches late */
        if (ME == from)
            sleep_ms(ms);
        if (!(lost && ME == from))
            sc_barrier();
        else
            wait_for_messages(step, 1, style, 0);
    }
}

int main(int argc, char **argv) {
    int steps, step, lost, i;
    score_initialize(argc, argv);
    check(argc > 3, "patterns SEED STEPS alive|dead");
    state = strtoull(argv[argc - 3], NULL, 10);
    steps = atoi(argv[argc - 2]);
    deadlocks = strcmp(argv[argc - 1], "dead") == 0;
    check(steps > 0 && steps < MAX_STEPS, "too many steps");
    /* A handler of SIGALRM prevents any verdict, so only some programs have one. */
    alarms = below(6) == 0;
    if (alarms && !deadlocks)
        signal(SIGALRM, on_alarm);
    lost = deadlocks ? below(steps) : -1;
    for (step = 0; step < steps; step++)
        run_step(step, step == lost);
    for (i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    sc_barrier();
    printf("node %d is done\n", ME);
    return 0;
}
