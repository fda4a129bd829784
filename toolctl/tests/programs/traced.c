/* A program with threads that the tests of the tracer stop and change. Each input line is a
   command. */

#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 8 };

volatile long counters[WORKERS];
volatile long spots;
volatile long handled;
volatile long traps;
volatile long last_trap_address;
volatile long finish;
volatile long started;
volatile long churned;
volatile long wants_exec;
volatile long pace = 200;
volatile long __attribute__((aligned(64))) watched[8];
volatile long fault_address;
const char constant[16] = "constant bytes";
static volatile long *shared;
enum { BLOCK_LEN = 1 << 20 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The function for breakpoints. */
__attribute__((noinline, noclone)) void spot(long number) {
    __sync_fetch_and_add(&spots, number);
}

/* Executes an int3 of the program itself. */
__attribute__((noinline, noclone)) void own_trap(void) { __asm__ volatile("int3"); }

static void count(int signal) { (void)signal; __sync_fetch_and_add(&handled, 1); }

/* A SIGTRAP handler that a tool installs. */
void trap_handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    last_trap_address = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    __sync_fetch_and_add(&traps, 1);
}

static void *work(void *argument) {
    long number = (long)argument;
    char name[16];
    snprintf(name, sizeof name, number == 1 ? "score-pm" : "worker-%ld", number);
    prctl(PR_SET_NAME, name);
    __sync_fetch_and_add(&started, 1);
    while (!finish) {
        if (wants_exec && number == 0)
            execl("/proc/self/exe", "traced", "0", NULL);
        spot(1);
        counters[number]++;
        if (pace)
            usleep(pace);
    }
    return NULL;
}

static void *count_up(void *argument) {
    __sync_fetch_and_add(&churned, 1);
    return argument;
}

/* Creates threads as fast as possible. */
static void *churn(void *argument) {
    while (!finish) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            if (pthread_create(&threads[i], NULL, count_up, NULL))
                abort();
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
    }
    return argument;
}

/* Writes to the watched memory. */
static void *write_watched(void *argument) {
    watched[0]++;
    return argument;
}

static int count_once(void *argument) { return count_up(argument) != NULL; }

/* Creates a thread that the kernel attaches to the tracer of this thread, without a report. */
static void create_unreported_thread(void) {
    enum { STACK_LEN = 1 << 16 };
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                CLONE_UNTRACED | CLONE_PTRACE;
    char *stack = malloc(STACK_LEN);
    if (!stack || clone(count_once, stack + STACK_LEN, flags, NULL) < 0)
        abort();
}

static void block(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(how, &set, NULL);
}

static void *wait_for_mutex(void *argument) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return argument;
}

static void start(void *(*function)(void *), long number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, (void *)number))
        abort();
}

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void report_child(pid_t child) {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    printf("child %d\n", status);
}

static void clone_with_memory(void) {
    pid_t child = vfork();
    if (child == 0) {
        spot(0);
        spot(0);
        execl("/bin/true", "true", NULL);
        _exit(99);
    }
    report_child(child);
}

static void run(char command, char **arguments) {
    struct timespec delay = {0, 300000000};
    long start_ms = milliseconds();
    pid_t child;
    switch (command) {
    case 'f':
        if ((child = fork()) == 0) {
            for (int i = 0; i < 3; i++)
                spot(0);
            _exit(5);
        }
        report_child(child);
        break;
    case 'v': clone_with_memory(); break;
    case 'e': execl("/proc/self/exe", arguments[0], "0", NULL); abort();
    case 'E': wants_exec = 1; pause(); abort();
    case 'p': handled += syscall(SYS_ptrace, 0, 0, 0, 0) == 0; break;
    case 'b':
        for (int i = 0; i < 300; i++)
            if (fork() == 0) {
                for (int j = 0; j < 3; j++)
                    spot(0);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
        break;
    case 'z': pthread_exit(NULL);
    case 'x': exit(7);
    case 'a': abort();
    case 'q': finish = 1; break;
    case 'i': own_trap(); break;
    case 's': spot(0); break;
    case 'w': watched[0]++; break;
    case 'l': handled += watched[0] ? 0 : 0; break;
    case 'r': raise(SIGUSR1); break;
    case 'g': *(volatile long *)0x1230 = 1; break;
    case 'n': {
        int result = nanosleep(&delay, NULL);
        printf("slept %d %d\n", result, milliseconds() - start_ms >= 300);
        break;
    }
    case 'm': start(wait_for_mutex, 0); break;
    case 't': start(work, 2); break;
    case 'c': start(churn, 0); break;
    case 'W': {
        pthread_t thread;
        if (pthread_create(&thread, NULL, write_watched, NULL))
            abort();
        pthread_join(thread, NULL);
        break;
    }
    case 'k': create_unreported_thread(); break;
    case 'B': block(SIG_BLOCK); break;
    case 'U': block(SIG_UNBLOCK); break;
    case 'd': prctl(PR_SET_DUMPABLE, 0); break;
    }
    printf("done %c spots %ld handled %ld traps %ld\n", command, spots, handled, traps);
    fflush(stdout);
}

/* Simulates the gang scheduler: stops and continues a program every 10 ms, and counts the stops. */
static int schedule(char **arguments) {
    int slices = atoi(arguments[2]);
    pid_t child = fork();
    if (child == 0) {
        execv("/proc/self/exe", arguments + 2);
        _exit(99);
    }
    long stops = 0;
    int status;
    usleep(100000);
    for (int i = 0; i < slices; i++) {
        kill(child, SIGSTOP);
        usleep(10000);
        if (waitpid(child, &status, WNOHANG | WUNTRACED) > 0) {
            if (!WIFSTOPPED(status)) {
                fprintf(stderr, "scheduled ended %d\n", status);
                return 1;
            }
            stops++;
        }
        kill(child, SIGCONT);
        usleep(10000);
    }
    fprintf(stderr, "slices %d stops %ld\n", slices, stops);
    waitpid(child, &status, 0);
    fprintf(stderr, "scheduled status %d\n", status);
    return 0;
}

/* Executes a program under a seccomp filter that forbids ptrace. */
static int filter(char **arguments) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
        return 98;
    execv(arguments[2], arguments + 2);
    return 99;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "schedule") == 0)
        return schedule(argv);
    if (argc > 2 && strcmp(argv[1], "filter") == 0)
        return filter(argv);
    long workers = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2)
        workers = atoi(argv[argc - 1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, count);
    pthread_mutex_lock(&mutex);
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* A block of memory. The page after it is not mapped. */
    char *block = mmap(NULL, BLOCK_LEN + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    munmap(block + BLOCK_LEN, 4096);
    printf("block %#lx\n", (long)block);
    printf("pid %#x\n", getpid());
    printf("spot %#lx\nown_trap %#lx\n", (long)spot, (long)own_trap);
    printf("trap_handler %#lx\ncount %#lx\n", (long)trap_handler, (long)count);
    printf("counters %#lx\nspots %#lx\nhandled %#lx\n", (long)counters, (long)&spots, (long)&handled);
    printf("traps %#lx\nlast_trap_address %#lx\n", (long)&traps, (long)&last_trap_address);
    printf("churned %#lx\n", (long)&churned);
    printf("pace %#lx\nwatched %#lx\n", (long)&pace, (long)watched);
    printf("constant %#lx\nshared %#lx\n", (long)constant, (long)shared);
    for (long i = 0; i < workers; i++)
        start(work, i);
    while (started < workers)
        usleep(100);
    printf("ready\n");
    fflush(stdout);
    char line[80];
    while (fgets(line, sizeof line, stdin))
        run(line[0], argv);
    return 0;
}
