/* A program that tests of tool control read and change. One thread counts, the main thread waits.
 * The program prints the addresses of its parts, and ends when `stop` is not 0. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile long counter;
volatile long watched;
volatile long traps;
volatile long user_signals;
volatile long stop;

__attribute__((noinline)) static void tick(void)
{
    counter++;
    if (counter % 16 == 0) watched++;
}

static void on_user_signal(int signal)
{
    (void)signal;
    user_signals++;
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    (void)context;
    traps++;
}

static void *count(void *unused)
{
    struct timespec pause = {0, 200000};

    while (!stop) {
        tick();
        nanosleep(&pause, NULL);
    }
    return unused;
}

int main(void)
{
    struct sigaction action;
    pthread_t thread;
    char directory[4096];

    memset(&action, 0, sizeof action);
    action.sa_handler = on_user_signal;
    if (sigaction(SIGUSR1, &action, NULL) != 0) return 1;
    if (!getcwd(directory, sizeof directory)) return 1;
    if (pthread_create(&thread, NULL, count, NULL) != 0) return 1;
    printf("target %s %p %p %p %p %p %p %p %s\n", getenv("SCORE_SELF_NODE"), (void *)tick, (void *)on_trap, (void *)&counter,
           (void *)&watched, (void *)&traps, (void *)&user_signals, (void *)&stop, directory);
    fflush(stdout);
    pthread_join(thread, NULL);
    printf("ended %ld\n", user_signals);
    return 0;
}
