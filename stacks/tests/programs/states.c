/* The argument selects what the process does while its stacks are read. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ready(const char *line) {
    puts(line);
    fflush(stdout);
}

/* A read and a sleep must continue unaffected. */
static void calls(void) {
    char byte;
    ready("ready");
    long got = read(0, &byte, 1);
    printf("read %ld errno %d\n", got, got < 0 ? errno : 0);
    fflush(stdout);
    struct timespec start, end, three = {3, 0};
    clock_gettime(CLOCK_MONOTONIC, &start);
    int slept = nanosleep(&three, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    long ms = (end.tv_sec - start.tv_sec) * 1000 + (end.tv_nsec - start.tv_nsec) / 1000000;
    printf("slept %d %s\n", slept, ms >= 3000 && ms < 5000 ? "whole" : "wrong");
    fflush(stdout);
}

static volatile long counted;
static void count(int signal) { (void)signal; counted++; }

/* Each queued real-time signal is delivered exactly once. */
static void queued(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN + 1, &action, 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(100000);
        for (int i = 0; i < 20000; i++) {
            while (sigqueue(parent, SIGRTMIN + 1, (union sigval){0}) != 0) usleep(100);
            if (i % 10 == 0) usleep(50);
        }
        _exit(0);
    }
    ready("ready");
    while (waitpid(child, 0, 0) < 0 && errno == EINTR);
    printf("counted %ld\n", counted);
    fflush(stdout);
}

__attribute__((noinline)) static long deep(long depth) {
    volatile char frame[32];
    frame[0] = (char)depth;
    if (depth == 0) {
        ready("ready");
        for (;;) pause();
    }
    return deep(depth - 1) + frame[0];
}

static void *end_at_once(void *argument) { return argument; }

/* Threads start and end all the time. */
static void churn(void) {
    ready("ready");
    for (;;) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, end_at_once, 0);
        for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    }
}

/* The return addresses of the outer functions are overwritten. */
__attribute__((noinline)) static void smash(unsigned long *from) {
    memset(from + 4, 0x5a, 600);
    ready("ready");
    for (;;) pause();
}

/* push rbp; mov rbp, rsp; call *rdi; pop rbp; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
static void wait_here(void) {
    ready("ready");
    for (;;) pause();
}
static void generated(void) {
    int access = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *at = mmap(0, 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(at, code, sizeof code);
    ((void (*)(void (*)(void)))at)(wait_here);
    __asm__ volatile("");
}

static void *stay(void *argument) {
    for (;;) pause();
    return argument;
}

static void spin(void) {
    ready("ready");
    for (;;) __asm__ volatile("");
}

int main(int argc, char **argv) {
    const char *mode = argv[argc - 1];
    if (!strcmp(mode, "calls")) calls();
    if (!strcmp(mode, "queued")) queued();
    if (!strcmp(mode, "deep")) deep(100000);
    if (!strcmp(mode, "churn")) churn();
    if (!strcmp(mode, "generated")) generated();
    if (!strcmp(mode, "spin")) spin();
    if (!strcmp(mode, "smash")) {
        unsigned long here[4] = {0};
        smash(here);
    }
    if (!strcmp(mode, "vfork")) {
        if (vfork() == 0) {
            ready("ready");
            for (;;) pause();
        }
    }
    if (!strcmp(mode, "leaderless")) {
        pthread_t thread;
        pthread_create(&thread, 0, stay, 0);
        ready("ready");
        pthread_exit(0);
    }
    if (!strcmp(mode, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0);
        ready("ready");
        for (;;) pause();
    }
    if (!strcmp(mode, "traced")) {
        pid_t child = fork();
        if (child == 0) for (;;) pause();
        ptrace(PTRACE_SEIZE, child, 0, 0);
        printf("%d\n", child);
        fflush(stdout);
        for (;;) pause();
    }
    return 0;
}
