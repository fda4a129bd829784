/*
 * tracer PID: attaches to a process like a debugger, until the process exits. Passes on the
 * process's signals, and does not interfere with its stops. Prints "attached".
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
    int status;
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) {
        perror("PTRACE_SEIZE");
        return 1;
    }
    printf("attached\n");
    fflush(stdout);
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        if (status >> 16 == PTRACE_EVENT_STOP) {
            /* If the whole process stops, the stop lasts until SIGCONT. */
            int stays = signal == SIGSTOP || signal == SIGTSTP;
            ptrace(stays ? PTRACE_LISTEN : PTRACE_CONT, pid, NULL, NULL);
        } else {
            ptrace(PTRACE_CONT, pid, NULL, (void *)(long)signal);
        }
    }
    return 0;
}
