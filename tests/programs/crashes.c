/* Crashes for scenarios/crashes.rs: the first argument is the way, the other arguments are the
 * nodes. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

static volatile int zero;
static int *volatile nowhere;

__attribute__((noinline)) static void write_nowhere(void) { *nowhere = 1; }

__attribute__((noinline)) static int divide(void) { return 100 / zero; }

__attribute__((noinline)) static int recurse(int depth) {
    volatile char here[4096];
    here[0] = (char)depth;
    return depth > 0 ? recurse(depth - 1) + here[0] : 0;
}

static void *crash_in_thread(void *argument) {
    write_nowhere();
    return argument;
}

static void own_handler(int signal) {
    (void)signal;
    sc_exit(7);
}

static void write_at_signal(int signal) {
    (void)signal;
    write_nowhere();
}

static void crash(const char *how) {
    if (!strcmp(how, "segv")) write_nowhere();
    if (!strcmp(how, "fpe")) zero = divide();
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "overflow")) zero = recurse(1 << 20);
    if (!strcmp(how, "inspect")) sc_inspectme(NULL, SIGBUS);
    if (!strcmp(how, "thread")) {
        pthread_t threads[4];
        int i;
        for (i = 0; i < 4; i++) pthread_create(&threads[i], NULL, crash_in_thread, NULL);
        for (i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    if (!strcmp(how, "child")) {
        int status;
        if (fork() == 0) write_nowhere();
        wait(&status);
        sc_exit(WIFSIGNALED(status) ? WTERMSIG(status) : 1);
    }
    if (!strcmp(how, "later")) {
        signal(SIGUSR1, write_at_signal);
    }
    if (!strcmp(how, "own")) {
        signal(SIGSEGV, own_handler);
        write_nowhere();
    }
}

int main(int argc, char **argv) {
    int i;
    score_initialize();
    signal(SIGUSR1, SIG_IGN);
    /* SCore shows faults within 200 ms together, so no node may start long after the others. */
    (void)sc_barrier();
    for (i = 2; i < argc; i++) {
        if (atoi(argv[i]) == score_self_node) crash(argv[1]);
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
