/* A program that debuggers read and change. It has two threads, which count their calls. The
 * program ends when `stop` is not 0, or when the file in its argument exists. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

volatile int stop;
volatile int answer;
volatile long watched;
volatile long assisted;
volatile int is_over;
volatile int signals;
_Thread_local volatile int mark;

static void on_signal(int signal)
{
    signals += signal == SIGUSR1;
}

__attribute__((noinline)) static long work(int round)
{
    long twice = 2L * round;
    watched = twice + 1;
    return twice;
}

__attribute__((noinline)) static void assist(void)
{
    assisted++;
}

/* Waits until the other thread has run. */
__attribute__((noinline)) static void await_assistance(void)
{
    long seen = assisted;
    while (assisted == seen) continue;
}

static void *help(void *result)
{
    struct timespec pause = {0, 300000};
    long *calls = result;

    mark = 2;
    pthread_setname_np(pthread_self(), "helper");
    while (!is_over) {
        assist();
        ++*calls;
        nanosleep(&pause, NULL);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    struct timespec pause = {0, 500000};
    pthread_t thread;
    long sum = 0, calls = 0;
    int round = 0;

    mark = 1;
    signal(SIGUSR1, on_signal);
    if (count != 2 || pthread_create(&thread, NULL, help, &calls) != 0) return 1;
    printf("up\n");
    fflush(stdout);
    while (!stop && access(arguments[1], F_OK) != 0) {
        sum += work(++round);
        await_assistance();
        nanosleep(&pause, NULL);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("answer %d, %d signals %s\n", answer, signals,
           sum == (long)round * (round + 1) && calls == assisted ? "right" : "wrong");
    return 0;
}
