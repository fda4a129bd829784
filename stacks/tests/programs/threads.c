/* Threads that wait in a known chain of functions, the last of which is inlined. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline __attribute__((always_inline)) void wait_for_ever(void) {
    for (;;) pause();
}

__attribute__((noinline)) void descend(int depth) {
    if (depth == 0) wait_for_ever();
    descend(depth - 1);
    __asm__ volatile("");
}

static void *work(void *argument) {
    descend(3);
    return argument;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    pthread_t thread;
    for (int i = 0; i < threads; i++) pthread_create(&thread, 0, work, 0);
    puts("ready");
    fflush(stdout);
    descend(1);
}
