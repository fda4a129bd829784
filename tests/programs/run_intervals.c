/*
 * Records when it runs. A thread that spins reads the clock. The time between two readings counts
 * as run time only if it is shorter than any slice. Prints "FROM TO" lines, in nanoseconds of a
 * clock that all processes of the host share.
 *
 *   run_intervals SECONDS            one thread
 *   run_intervals SECONDS stubborn   ignores all signals that it can; two threads, a child, and a
 *                                    grandchild in its own session spin as well
 *   run_intervals SECONDS stopped    node 1 stops itself; node 0 spins for SECONDS, then continues
 *                                    node 1
 *   run_intervals SECONDS sleep      calls sc_sleep
 *   run_intervals SECONDS forks      creates processes one after the other, which end at once
 *   run_intervals SECONDS threads    outside a job: a thousand threads wait for SECONDS
 *   run_intervals SECONDS yield      gives up its slices
 *   run_intervals SECONDS idle       computes for half a second, alternates between busy and idle
 *                                    for half a second, then has nothing to do for SECONDS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sc.h>
#include <score.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_INTERVALS = 100000, SPINNERS = 5 };
static const long long MAX_STALL_NS = 1000000; /* a millisecond */

struct spinner {
    int count;
    long long from[MAX_INTERVALS], to[MAX_INTERVALS];
};

static double seconds;
static int yields;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void *spin(void *argument) {
    struct spinner *spinner = argument;
    long long begin = now(), last = begin, time;
    spinner->from[0] = begin;
    while ((time = now()) - begin < (long long)(seconds * 1e9)) {
        if (time - last > MAX_STALL_NS && spinner->count + 1 < MAX_INTERVALS) {
            spinner->to[spinner->count++] = last;
            spinner->from[spinner->count] = time;
        }
        last = time;
        if (yields) sc_yield();
    }
    spinner->to[spinner->count++] = last;
    return NULL;
}

static struct spinner *all;

/* Starts a spinner in its own process and session. With `deeper`, its child is another one. */
static pid_t spin_apart(int number, int deeper) {
    pid_t child = fork();
    if (child != 0) return child;
    if (deeper) {
        pid_t grandchild;
        setsid();
        grandchild = spin_apart(number + 1, 0);
        spin(&all[number]);
        waitpid(grandchild, NULL, 0);
    } else {
        setsid();
        spin(&all[number]);
    }
    _exit(0);
}

static void be_stubborn(void) {
    pthread_t threads[2];
    pid_t child;
    int number;
    for (number = 1; number < 65; number++)
        if (number != SIGCHLD) signal(number, SIG_IGN);
    child = spin_apart(3, 1);
    for (number = 0; number < 2; number++)
        pthread_create(&threads[number], NULL, spin, &all[number + 1]);
    spin(&all[0]);
    for (number = 0; number < 2; number++) pthread_join(threads[number], NULL);
    waitpid(child, NULL, 0);
}

/* Node 1 stops itself, and prints when it continues. Node 0 prints when it continues node 1. */
static void stop_one(void) {
    char *directory = getenv("SCORE_JOB_DIR"), name[4096], woken[4096];
    FILE *file;
    int pid = 0;
    snprintf(woken, sizeof woken, "%s/woken", directory == NULL ? "." : directory);
    snprintf(name, sizeof name, "%s/pid", directory == NULL ? "." : directory);
    if (score_self_node == 1) {
        file = fopen(name, "w");
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
        sc_barrier();
        raise(SIGSTOP);
        printf("woken %lld\n", now());
        file = fopen(woken, "w");
        if (file != NULL) fclose(file);
        return;
    }
    sc_barrier();
    file = fopen(name, "r");
    if (file == NULL || fscanf(file, "%d", &pid) != 1) exit(9);
    spin(&all[0]);
    printf("wakes %lld\n", now());
    fflush(stdout);
    /* A SIGCONT before the stop has no effect, and node 1 may stop itself only now. */
    do {
        kill(pid, SIGCONT);
        usleep(10000);
    } while (access(woken, F_OK) != 0);
}

/* Each child ends at once. If a child were left stopped, this process would wait for ever. */
static void fork_always(void) {
    long long begin = now();
    while (now() - begin < (long long)(seconds * 1e9)) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0 || waitpid(child, NULL, 0) != child) exit(7);
    }
}

static void *wait_for_end(void *argument) {
    usleep((useconds_t)(seconds * 1e6));
    return argument;
}

static int have_many_threads(void) {
    enum { THREADS = 1000, STACK = 64 * 1024 };
    pthread_t thread;
    pthread_attr_t attributes;
    int count;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (count = 0; count < THREADS; count++)
        if (pthread_create(&thread, &attributes, wait_for_end, NULL) != 0) return 6;
    wait_for_end(NULL);
    return 0;
}

static void have_nothing_to_do(void) {
    long long begin = now();
    while (now() - begin < 500000000LL) continue;
    while (now() - begin < 1000000000LL) {
        score_become_idle();
        score_become_busy();
    }
    score_become_idle();
    usleep((useconds_t)(seconds * 1e6));
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[2] : "";
    int number, at;
    seconds = argc > 1 ? atof(argv[1]) : 1;
    if (strcmp(mode, "threads") == 0) return have_many_threads();
    score_initialize();
    all = mmap(NULL, SPINNERS * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
               -1, 0);
    if (all == MAP_FAILED) return 8;
    printf("up\n");
    fflush(stdout);
    if (strcmp(mode, "stubborn") == 0)
        be_stubborn();
    else if (strcmp(mode, "stopped") == 0)
        stop_one();
    else if (strcmp(mode, "forks") == 0)
        fork_always();
    else if (strcmp(mode, "idle") == 0)
        have_nothing_to_do();
    else if (strcmp(mode, "sleep") == 0)
        printf("slept %d\n", sc_sleep((int)seconds));
    else {
        yields = strcmp(mode, "yield") == 0;
        spin(&all[0]);
    }
    for (number = 0; number < SPINNERS; number++)
        for (at = 0; at < all[number].count; at++)
            printf("%lld %lld\n", all[number].from[at], all[number].to[at]);
    return 0;
}
