/*
 * A node that executes commands: it reads one command per line from standard input, and writes one
 * line of answer to standard output. Compiled as C99, C23 and C++17.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>
#include <score_options.h>
#include <score_resource.h>

SCORE_RSRC_NUM_NODES(1, 16);

#define THREADS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting, released;

static void *idle_thread(void *argument) {
    (void)argument;
    score_become_idle();
    pthread_mutex_lock(&lock);
    waiting++;
    pthread_cond_broadcast(&changed);
    while (!released) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Calls of two kinds from many threads at the same time; every call must get its own answer. */
static void *calling_thread(void *argument) {
    long failures = 0;
    int round;
    (void)argument;
    for (round = 0; round < 50; round++) {
        failures += sc_signal_bcast(0) != 0;
        failures += sc_flush() != 0;
        failures += sc_signal_bcast(SIGHUP) != ESRCH; /* the answer of the test's shepherd */
    }
    return (void *)failures;
}

static void threads(int count) {
    static pthread_t started[THREADS];
    static int number;
    int i;
    if (count > 0) {
        number = count < THREADS ? count : THREADS;
        waiting = released = 0;
        for (i = 0; i < number; i++) pthread_create(&started[i], NULL, idle_thread, NULL);
        pthread_mutex_lock(&lock);
        while (waiting < number) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    } else {
        pthread_mutex_lock(&lock);
        released = 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        for (i = 0; i < number; i++) pthread_join(started[i], NULL);
    }
    printf("%d\n", number);
}

static void calls(int count) {
    pthread_t started[THREADS];
    long failures = 0;
    int i;
    for (i = 0; i < count; i++) pthread_create(&started[i], NULL, calling_thread, NULL);
    for (i = 0; i < count; i++) {
        void *result;
        pthread_join(started[i], &result);
        failures += (long)result;
    }
    printf("%ld\n", failures);
}

static void on_signal(int number) { (void)number; }

/* A large depth overflows the stack. Only a handler with its own stack can run then. */
static volatile char *volatile nowhere;

static int fault(int depth) {
    volatile char frame[64 << 10];
    frame[0] = (char)depth;
    if (depth > 0) return fault(depth - 1) + frame[0];
    *nowhere = 1;
    return 0;
}

static void on_crash(int number) {
    (void)sc_inspectme((char *)":7", number);
}

static void catch_signal(int number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler; /* without SA_RESTART */
    sigaction(number, &action, NULL);
}

/* The results in a child of fork(); its end must not affect its parent. */
static void in_child(void) {
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        int job = 0, fd = -1;
        score_initialize();
        score_become_idle();
        score_become_busy();
        sc_set_monitor(0, 99);
        sc_getpid(&job);
        printf("%d %d %d %d %d job %d file %d %d\n", sc_barrier(), sc_flush(),
               sc_signal_bcast(SIGTERM), sc_sleep(1), sc_yield(), job,
               sc_create_temporary_file((char *)"of-child", &fd),
               score_pmnet[0] == NULL ? 0 : pmSend(score_pmnet[0]));
        sc_exit(7);
    }
    waitpid(child, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* Polls until the process ends. */
static void *polling_thread(void *argument) {
    caddr_t buffer;
    size_t length;
    for (;;) {
        score_become_idle();
        if (pmReceive(score_pmnet[0], &buffer, &length) == PM_SUCCESS)
            pmReleaseReceiveBuffer(score_pmnet[0]);
        score_become_busy();
        if (pmGetSendBuffer(score_pmnet[0], 1 - score_self_node, &buffer, 8) == PM_SUCCESS)
            pmSend(score_pmnet[0]);
    }
    return argument;
}

static void poll_in_background(int count) {
    pthread_t started;
    while (count-- > 0) pthread_create(&started, NULL, polling_thread, NULL);
    printf("polling\n");
}

static int flags_of(int fd) {
    int flags = fcntl(fd, F_GETFD);
    close(fd);
    return flags;
}

static void file(const char *how, char *name) {
    int fd = -1, error;
    if (strcmp(how, "unlink") == 0) {
        printf("%d\n", sc_unlink_temporary_file(name));
        return;
    }
    error = strcmp(how, "create") == 0 ? sc_create_temporary_file(name, &fd)
                                       : sc_open_temporary_file(name, &fd);
    if (error == 0)
        printf("0 %s\n", flags_of(fd) == FD_CLOEXEC ? "cloexec" : "inherited");
    else
        printf("%d\n", error);
}

static void send_text(int dest, const char *text) {
    caddr_t buffer;
    int error;
    do {
        error = pmGetSendBuffer(score_pmnet[0], dest, &buffer, strlen(text) + 1);
    } while (error == ENOBUFS);
    if (error == PM_SUCCESS) {
        strcpy((char *)buffer, text);
        error = pmSend(score_pmnet[0]);
    }
    printf("%d\n", error);
}

static void receive_text(void) {
    caddr_t buffer;
    size_t length;
    int error, polls;
    score_become_idle();
    for (polls = 0; polls < 50000000; polls++) {
        error = pmReceive(score_pmnet[0], &buffer, &length);
        if (error != ENOBUFS) break;
    }
    score_become_busy();
    if (error == PM_SUCCESS) {
        printf("%s\n", (char *)buffer);
        pmReleaseReceiveBuffer(score_pmnet[0]);
    } else {
        printf("error %d\n", error);
    }
}

static void obey(char *what, char *first, char *second) {
    int number = atoi(first), job = -1;
    if (strcmp(what, "place") == 0)
        printf("node %d/%d proc %d/%d host %d/%d nets %d %s\n", score_self_node, score_num_node,
               score_self_proc, score_num_proc, score_self_host, score_num_host, score_num_pmnet,
               score_pmnet[score_num_pmnet] == NULL ? "closed" : "open");
    else if (strcmp(what, "again") == 0)
        score_initialize(), printf("again\n");
    else if (strcmp(what, "option") == 0)
        printf("[%s]\n", score_get_opt(first) == NULL ? "(none)" : score_get_opt(first));
    else if (strcmp(what, "job") == 0)
        number = sc_getpid(&job), printf("%d %d %d\n", number, job, sc_getpid(NULL));
    else if (strcmp(what, "barrier") == 0)
        printf("%d\n", sc_barrier());
    else if (strcmp(what, "flush") == 0)
        printf("said before\n"), printf("%d\n", sc_flush());
    else if (strcmp(what, "broadcast") == 0)
        printf("%d\n", sc_signal_bcast(number));
    else if (strcmp(what, "idle") == 0)
        score_become_idle(), printf("idle\n");
    else if (strcmp(what, "busy") == 0)
        score_become_busy(), printf("busy\n");
    else if (strcmp(what, "monitor") == 0)
        sc_set_monitor(number, (unsigned char)atoi(second)), printf("set\n");
    else if (strcmp(what, "enter") == 0)
        printf("%d\n", score_ckpt_enter_uncheckpointable());
    else if (strcmp(what, "leave") == 0)
        printf("%d\n", score_ckpt_leave_uncheckpointable());
    else if (strcmp(what, "later") == 0)
        printf("%d\n", sc_checkpoint());
    else if (strcmp(what, "sleep") == 0)
        printf("%d\n", sc_sleep(number));
    else if (strcmp(what, "yield") == 0)
        printf("%d\n", sc_yield());
    else if (strcmp(what, "create") == 0 || strcmp(what, "open") == 0 ||
             strcmp(what, "unlink") == 0)
        file(what, first);
    else if (strcmp(what, "threads") == 0)
        threads(number);
    else if (strcmp(what, "calls") == 0)
        calls(number);
    else if (strcmp(what, "handle") == 0)
        catch_signal(number, on_signal), printf("handled\n");
    else if (strcmp(what, "crash") == 0)
        catch_signal(SIGSEGV, on_crash), printf("unflushed"), raise(SIGSEGV);
    else if (strcmp(what, "fault") == 0)
        fault(number);
    else if (strcmp(what, "child") == 0)
        in_child();
    else if (strcmp(what, "program") == 0)
        fflush(stdout), number = system("echo control ${SCORE_CONTROL_FD-none} "
                                        "sockets $(ls -l /proc/self/fd | grep -c socket)");
    else if (strcmp(what, "send") == 0)
        send_text(number, second);
    else if (strcmp(what, "poll") == 0)
        poll_in_background(number);
    else if (strcmp(what, "receive") == 0)
        receive_text();
    else if (strcmp(what, "sc_exit") == 0)
        printf("last words"), sc_exit(number);
    else if (strcmp(what, "sc_terminate") == 0)
        sc_terminate();
    else if (strcmp(what, "sc_inspectme") == 0)
        sc_inspectme(NULL, number);
    else if (strcmp(what, "exit") == 0)
        exit(number);
    else
        printf("unknown command\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[256];
    if (argc > 2) (void)score_request_nodes(atoi(argv[1]), atoi(argv[2]));
    score_initialize(argc, argv);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, (int)sizeof line, stdin) != NULL) {
        char what[64] = "", first[128] = "", second[64] = "";
        sscanf(line, "%63s %127s %63s", what, first, second);
        obey(what, first, second);
    }
    return 0;
}
