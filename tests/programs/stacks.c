/* A program for tests of stacks: stacks SECONDS. Every fourth rank, from rank 3 on, sleeps. The
 * other ranks compute. Each rank prints "up" in the function in which it remains. A second thread
 * of each rank waits. All end with "ok" after SIGUSR1 or SECONDS. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SLEEPS_PER_SECOND 20

static volatile int ended, counts_down;
static volatile unsigned long work;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static void *count_down(void *seconds)
{
    long left = *(long *)seconds * SLEEPS_PER_SECOND;

    counts_down = 1;
    while (!ended && left-- > 0) usleep(1000000 / SLEEPS_PER_SECOND);
    ended = 1;
    return NULL;
}

static void report(void)
{
    puts("up");
    fflush(stdout);
}

__attribute__((noinline)) static void compute_something(void)
{
    report();
    while (!ended) work++;
}

__attribute__((noinline)) static void wait_for_the_end(void)
{
    report();
    while (!ended) usleep(20000);
}

int main(int argc, char **argv)
{
    const char *node = getenv("SCORE_SELF_NODE");
    long seconds = argc > 1 ? atol(argv[1]) : 1;
    pthread_t thread;

    signal(SIGUSR1, end);
    if (pthread_create(&thread, NULL, count_down, &seconds) != 0) return 1;
    while (!counts_down) usleep(1000);
    if (node && atoi(node) % 4 == 3) wait_for_the_end();
    else compute_something();
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
