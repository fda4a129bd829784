/* A program for tests of stacks: stacks SECONDS. Of each four ranks, rank 3 waits for its input and
 * the others compute; each prints "up" in the function in which it remains. A second thread of each
 * rank waits. All end with "ok" after SECONDS. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile int ended;
static volatile unsigned long work;

static void *count_down(void *seconds)
{
    struct timespec left = {*(long *)seconds, 0};

    while (nanosleep(&left, &left) != 0) { }
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

    if (pthread_create(&thread, NULL, count_down, &seconds) != 0) return 1;
    if (node && atoi(node) % 4 == 3) wait_for_the_end();
    else compute_something();
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
