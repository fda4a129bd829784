/* A signal handler on a separate stack: "null" interrupts a call of address 0, "raise" a
   system call. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char stack[1 << 16];

static void handler(int signal) {
    (void)signal;
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}

__attribute__((noinline)) void call(void (*function)(void)) {
    function();
    __asm__ volatile("");
}

static void raise_signal(void) {
    raise(SIGUSR1);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&alternate, 0);
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    call(argc > 1 && !strcmp(argv[1], "null") ? (void (*)(void))0 : raise_signal);
}
