/*
 * Makes the SCore-D system call that its first argument names, and prints the result.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>
#include <score_options.h>

static volatile sig_atomic_t caught_signal;

static void catch(int number) { caught_signal = number; }

static int print_identity(void) {
    printf("node %d of %d, proc %d of %d, host %d of %d, networks %d\n", score_self_node,
           score_num_node, score_self_proc, score_num_proc, score_self_host, score_num_host,
           score_num_pmnet);
    return 0;
}

static int option(char *name) {
    const char *value = score_get_opt(name);

    if (value == NULL) {
        printf("(none)\n");
    } else {
        printf("[%s]\n", value);
    }
    return 0;
}

static int barrier(void) {
    int round;

    for (round = 0; round < 100; round++) {
        if (sc_barrier() != 0) {
            printf("sc_barrier failed\n");
            return 1;
        }
    }
    printf("through\n");
    return 0;
}

/* Prints one line per node in the order of nodes. After sc_flush and the barrier, the line of a
 * node has been written. */
static int order(void) {
    int turn;

    for (turn = 0; turn < score_num_node; turn++) {
        if (turn == score_self_node) {
            printf("turn of %d\n", turn);
            (void)fflush(stdout);
            if (sc_flush() != 0) {
                return 1;
            }
        }
        if (sc_barrier() != 0) {
            return 1;
        }
    }
    return 0;
}

static int flush(void) {
    printf("%d\n", sc_flush());
    return 0;
}

static int files(void) {
    char name[64], back[6] = "";
    int fd = -1;

    (void)snprintf(name, sizeof name, "file-%d", score_self_node);
    if (sc_create_temporary_file(name, &fd) != 0 || write(fd, "hello", 5) != 5 || close(fd) != 0) {
        return 1;
    }
    if (sc_open_temporary_file(name, &fd) != 0 || read(fd, back, 5) != 5 || close(fd) != 0 ||
        strcmp(back, "hello") != 0) {
        return 2;
    }
    if (sc_unlink_temporary_file(name) != 0 || sc_open_temporary_file(name, &fd) != ENOENT ||
        sc_unlink_temporary_file(name) != ENOENT) {
        return 3;
    }
    /* A file that is not unlinked is removed with the job. */
    if (sc_create_temporary_file(name, &fd) != 0 || close(fd) != 0) {
        return 4;
    }
    if (sc_create_temporary_file((char *)"a/b", &fd) == 0) {
        return 5;
    }
    printf("written and read\n");
    return 0;
}

/* Node 0 broadcasts a signal. All nodes receive it, including node 0. */
static int broadcast(void) {
    struct sigaction action;
    sigset_t blocked, before;

    memset(&action, 0, sizeof action);
    action.sa_handler = catch;
    (void)sigaction(SIGUSR1, &action, NULL);
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &blocked, &before);
    if (sc_signal_bcast(SIGSTOP) != EINVAL || sc_signal_bcast(SIGCONT) != EINVAL ||
        sc_signal_bcast(SIGKILL) != EINVAL || sc_signal_bcast(-1) != EINVAL) {
        printf("a forbidden signal was accepted\n");
        return 1;
    }
    (void)sc_barrier();
    if (score_self_node == 0 && sc_signal_bcast(SIGUSR1) != 0) {
        return 2;
    }
    while (caught_signal == 0) {
        (void)sigsuspend(&before);
    }
    printf("got SIGUSR1\n");
    return 0;
}

static int number(void) {
    int job = -1;

    if (sc_getpid(&job) != 0 || job < 1) {
        return 1;
    }
    printf("job %d\n", job);
    return 0;
}

static int later(void) {
    printf("%d %d %d\n", sc_sleep(0) == 0, sc_yield() == 0, sc_checkpoint() == ENOSYS);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "who";

    score_initialize();
    if (strcmp(what, "who") == 0) {
        return print_identity();
    } else if (strcmp(what, "option") == 0 && argc > 2) {
        return option(argv[2]);
    } else if (strcmp(what, "barrier") == 0) {
        return barrier();
    } else if (strcmp(what, "order") == 0) {
        return order();
    } else if (strcmp(what, "flush") == 0) {
        return flush();
    } else if (strcmp(what, "files") == 0) {
        return files();
    } else if (strcmp(what, "broadcast") == 0) {
        return broadcast();
    } else if (strcmp(what, "number") == 0) {
        return number();
    } else if (strcmp(what, "later") == 0) {
        return later();
    } else if (strcmp(what, "inspect") == 0 && score_self_node == 1) {
        (void)sc_inspectme(NULL, SIGSEGV);
        printf("sc_inspectme returned\n");
        return 1;
    }
    for (;;) {
        (void)pause();
    }
}
