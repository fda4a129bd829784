/*
 * Failures in programs of MPI, and unusual programs without an error: mpi_faults CASE. A rank
 * without an error prints "ok" at the end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNEXPECTED = 100000, UNEXPECTED_LEN = 64 << 10, EXCHANGED_LEN = 1 << 20 };
enum { INJECTED = 250000, INJECTED_LEN = 64, MAX_COPIED_KIB = 32 << 10 };

static int rank, size;

static void fail(const char *what, long value)
{
    printf("rank %d: %s: %ld\n", rank, what, value);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void access_nothing(void)
{
    *(volatile int *)NULL = 1;
}

static int is_case(const char *given, const char *name)
{
    return strcmp(given, name) == 0;
}

static void exit_7(int number)
{
    (void)number;
    _exit(7);
}

/* Returns the largest memory of this process so far, in KiB. */
static long peak_memory(void)
{
    char line[256];
    long peak = 0;
    FILE *status = fopen("/proc/self/status", "r");

    while (fgets(line, sizeof line, status) && sscanf(line, "VmHWM: %ld", &peak) != 1) {
    }
    fclose(status);
    return peak;
}

/* Rank 0 sends all messages before rank 1 receives any of them. */
static void unexpected(void)
{
    static unsigned char out[UNEXPECTED_LEN], in[UNEXPECTED_LEN];
    int unused, flag;
    MPI_Status status;

    if (rank == 0) {
        MPI_Request *sends = malloc(UNEXPECTED * sizeof *sends);

        memset(out, 7, sizeof out);
        for (int tag = 0; tag < UNEXPECTED; tag++)
            MPI_Isend(out, sizeof out, MPI_BYTE, 1, tag, MPI_COMM_WORLD, &sends[tag]);
        MPI_Send(&rank, 1, MPI_INT, 1, UNEXPECTED, MPI_COMM_WORLD);
        MPI_Waitall(UNEXPECTED, sends, MPI_STATUSES_IGNORE);
        free(sends);
    } else if (rank == 1) {
        long before = peak_memory(), grown;

        MPI_Recv(&unused, 1, MPI_INT, 0, UNEXPECTED, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        grown = peak_memory() - before;
        if (grown > 64 << 10) fail("KiB of memory for unexpected messages", grown);
        for (int tag = UNEXPECTED; tag-- > 0;) {
            memset(in, 0, sizeof in);
            MPI_Recv(in, sizeof in, MPI_BYTE, 0, tag, MPI_COMM_WORLD, &status);
            for (size_t i = 0; i < sizeof in; i += 4095)
                if (in[i] != 7) fail("a wrong byte in message", tag);
        }
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
        if (flag) fail("one message too many, with tag", status.MPI_TAG);
    }
}

/* Rank 0 sends short messages as fast as it can, each of which MPI completes at once. The provider
 * keeps copies of the messages for which rank 1 has no room. Rank 1 makes progress, but receives
 * nothing until half of the allowed memory for copies is used, and for another second. Rank 0
 * creates a file when half is used. */
static void injected(void)
{
    unsigned char bytes[INJECTED_LEN];
    static const char is_half[] = "injected-half";
    MPI_Status status;
    int flag;

    if (rank == 0) unlink(is_half);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        long before = peak_memory(), grown;

        for (int each = 0; each < INJECTED; each++) {
            memset(bytes, each, sizeof bytes);
            MPI_Send(bytes, sizeof bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            if (each % 1000 == 0 && peak_memory() - before >= MAX_COPIED_KIB / 2)
                fclose(fopen(is_half, "w"));
        }
        grown = peak_memory() - before;
        if (grown > MAX_COPIED_KIB + (16 << 10)) fail("KiB of memory for copies", grown);
        if (grown < MAX_COPIED_KIB / 2) fail("KiB of copies are too few to prove a bound", grown);
    } else if (rank == 1) {
        for (double end = MPI_Wtime() + 1; MPI_Wtime() < end;) {
            MPI_Iprobe(0, 1, MPI_COMM_WORLD, &flag, &status);
            if (access(is_half, F_OK) != 0) end = MPI_Wtime() + 1;
        }
        for (int each = 0; each < INJECTED; each++) {
            MPI_Recv(bytes, sizeof bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int at = 0; at < INJECTED_LEN; at++)
                if (bytes[at] != (unsigned char)each) fail("a wrong byte in message", each);
        }
    }
}

/* Neighbours exchange long messages. During each exchange, `step` is called. */
static void exchange(int rounds, void (*step)(int round))
{
    unsigned char *out = malloc(EXCHANGED_LEN), *in = malloc(EXCHANGED_LEN);
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Request requests[2];

    for (int round = 0; round < rounds; round++) {
        memset(out, (unsigned char)(rank + round), EXCHANGED_LEN);
        MPI_Irecv(in, EXCHANGED_LEN, MPI_BYTE, previous, 5, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, EXCHANGED_LEN, MPI_BYTE, next, 5, MPI_COMM_WORLD, &requests[1]);
        step(round);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < EXCHANGED_LEN; i++)
            if (in[i] != (unsigned char)(previous + round)) fail("a wrong byte in round", round);
    }
    free(out);
    free(in);
}

/* A child runs another program, as Python's module subprocess does. */
static void run_program(int round)
{
    int status;
    pid_t child;

    if (round % 10 != 0) return;
    child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    if (waitpid(child, &status, 0) != child || status != 0) fail("the program's status", status);
}

/* A child is not a rank. If it sends, the call fails and no message arrives. */
static void send_in_child(int round)
{
    int status;
    pid_t child;

    if (round % 10 != 0) return;
    child = fork();
    if (child == 0) {
        char byte = 0;
        int error;

        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        error = MPI_Send(&byte, 1, MPI_CHAR, (rank + 1) % size, 99, MPI_COMM_WORLD);
        _exit(error == MPI_SUCCESS ? 1 : 0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) fail("the child's status", status);
}

static void print_round(int round)
{
    if (rank == 0 && round % 100 == 0) {
        printf("round %d\n", round);
        fflush(stdout);
    }
}

/* Counts refusals to start processes. The launcher starts none, and the program continues without
 * them. */
static int refused;

static void count_refusal(MPI_Comm *comm, int *code, ...)
{
    int class = MPI_SUCCESS;

    (void)comm;
    MPI_Error_class(*code, &class);
    if (class == MPI_ERR_SPAWN) refused++;
}

/* No rank waits, whichever rank is the root. Each rank gets an error. */
static void spawn(void)
{
    char *programs[] = {"/bin/true", "/bin/false"};
    int counts[] = {2, 1}, codes[4], i, is_root, class = MPI_SUCCESS;
    MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
    MPI_Errhandler handler;
    MPI_Comm intercomm;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Error_class(MPI_Comm_spawn(programs[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD,
                                   &intercomm, MPI_ERRCODES_IGNORE), &class);
    if (class != MPI_ERR_SPAWN) fail("the class of MPI_Comm_spawn's error", class);
    MPI_Barrier(MPI_COMM_WORLD);
    is_root = rank == size - 1;
    for (i = 0; i < 4; i++) codes[i] = MPI_SUCCESS;
    MPI_Comm_create_errhandler(count_refusal, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    MPI_Comm_spawn_multiple(2, programs, MPI_ARGVS_NULL, counts, infos, size - 1, MPI_COMM_WORLD,
                            &intercomm, codes);
    if (refused != 1) fail("calls of the error handler", refused);
    for (i = 0; i < 4; i++) {
        MPI_Error_class(codes[i], &class);
        if (class != (is_root && i < 3 ? MPI_ERR_SPAWN : MPI_SUCCESS)) fail("an error code", i);
    }
    MPI_Errhandler_free(&handler);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Each rank gets an error, and no rank waits for another. */
static void connect_by_port(void)
{
    MPI_Comm intercomm;
    int class = MPI_SUCCESS;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Error_class(MPI_Comm_accept("no port", MPI_INFO_NULL, 0, MPI_COMM_WORLD, &intercomm),
                    &class);
    if (class != MPI_ERR_PORT) fail("the class of MPI_Comm_accept's error", class);
    MPI_Error_class(MPI_Comm_connect("no port", MPI_INFO_NULL, size - 1, MPI_COMM_WORLD,
                                     &intercomm), &class);
    if (class != MPI_ERR_PORT) fail("the class of MPI_Comm_connect's error", class);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void *function(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void *address = handle ? dlsym(handle, name) : NULL;

    if (!address) fail(name, 0);
    return address;
}

/* Sends bytes that are not a message of the provider, by PM itself. */
static void forge(void)
{
    int (*get)(void *, int, void **, size_t);
    int (*send)(void *);
    void **context = *(void ***)function("libscore.so.6", "score_pmnet"), *buffer;

    *(void **)&get = function("libpm.so.2", "pmGetSendBuffer");
    *(void **)&send = function("libpm.so.2", "pmSend");
    if (get(context[0], 1, &buffer, 40) != 0) fail("pmGetSendBuffer", 0);
    memset(buffer, 0xa5, 40);
    if (send(context[0]) != 0) fail("pmSend", 0);
}

int main(int argc, char **argv)
{
    const char *test = argc > 1 ? argv[1] : "";
    int value, flag, status;
    MPI_Comm spawned;
    pid_t child;

    if (is_case(test, "own_handler")) signal(SIGSEGV, exit_7);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (is_case(test, "fault") || is_case(test, "own_handler")) {
        if (rank == 1) access_nothing();
        MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (is_case(test, "signal")) {
        if (rank == 1) raise(atoi(argv[2]));
        MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (is_case(test, "fault_of_child")) {
        child = fork();
        if (child == 0) access_nothing();
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)
            || WTERMSIG(status) != SIGSEGV)
            fail("the child's status", status);
    } else if (is_case(test, "spawn")) {
        spawn();
    } else if (is_case(test, "connect_by_port")) {
        connect_by_port();
    } else if (is_case(test, "spawn_unhandled")) {
        MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &spawned,
                       MPI_ERRCODES_IGNORE);
    } else if (is_case(test, "unexpected")) {
        unexpected();
    } else if (is_case(test, "injected")) {
        injected();
    } else if (is_case(test, "fork")) {
        exchange(200, run_program);
    } else if (is_case(test, "child_that_sends")) {
        exchange(50, send_in_child);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        if (flag) fail("a message of a child has arrived", 0);
    } else if (is_case(test, "stop")) {
        exchange(4000, print_round);
    } else if (is_case(test, "forge")) {
        if (rank == 0) forge();
        MPI_Recv(&value, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        fail("unknown case", 0);
    }
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
