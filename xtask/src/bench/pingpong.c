/*
 * The measurements of pmtest, for any MPI: bounces a message between ranks 0 and 1, each pinned to
 * its own core, and sends messages one way with a window of receives posted in advance.
 *
 *   pingpong latency SIZE...   prints "SIZE BEST_NS MEDIAN_NS" for each size, one way
 *   pingpong rate SIZE...      prints "SIZE MESSAGES_PER_S" for each size, best batch
 *   pingpong posted COUNT      latency of 8 bytes if COUNT receives are posted before: "8 ..."
 *   pingpong unexpected COUNT  latency of 8 bytes if COUNT unexpected messages have arrived before
 *   pingpong put 8             latency by MPI_Put and MPI_Win_flush of a word for which the other
 *                              process waits in its memory
 *   pingpong allreduce SIZE... the time of a whole MPI_Allreduce, on any number of ranks
 *   pingpong alltoall SIZE...  the time of MPI_Alltoall with SIZE bytes for each rank
 *   pingpong start             only MPI_Init and MPI_Finalize
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, BATCHES = 1000, WARM_UP = 1000, LONGEST = 4 << 20 };
enum { WINDOW = 64, WINDOWS = 800, BURSTS = 12 };
/* Messages of this size or more are sent in smaller windows. */
enum { LONG = 65536, LONG_WINDOW = 8, LONG_WINDOWS = 30, MOST_BEHIND = 4096 };

static char out[LONGEST], in[LONGEST];
static int rank;

static void pin(void)
{
    cpu_set_t allowed, own;
    int cpu, seen = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    if (rank >= CPU_COUNT(&allowed)) return;
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && seen++ == rank) break;
    }
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void round_trips(int size, int count)
{
    int i, peer = 1 - rank;

    for (i = 0; i < count; i++) {
        if (rank == 0) MPI_Send(out, size, MPI_CHAR, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_CHAR, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) MPI_Send(out, size, MPI_CHAR, peer, 0, MPI_COMM_WORLD);
    }
}

/* Measures the latency. */
static void latency(int size)
{
    static double sample[BATCHES];
    int i;

    round_trips(size, WARM_UP);
    for (i = 0; i < BATCHES; i++) {
        double start = MPI_Wtime();
        round_trips(size, BATCH);
        sample[i] = (MPI_Wtime() - start) * 1e9 / (2 * BATCH);
    }
    qsort(sample, BATCHES, sizeof sample[0], by_value);
    if (rank == 0) printf("%d %.1f %.1f\n", size, sample[0], sample[BATCHES / 2]);
}

static void rate(int size)
{
    static MPI_Request request[WINDOW];
    static MPI_Status status[WINDOW];
    double best = 0;
    int length = size < LONG ? WINDOW : LONG_WINDOW, windows = size < LONG ? WINDOWS : LONG_WINDOWS;
    int burst, window, i;

    for (burst = 0; burst < BURSTS; burst++) {
        double start = MPI_Wtime(), now;
        for (window = 0; window < windows; window++) {
            for (i = 0; i < length; i++) {
                if (rank == 0) {
                    MPI_Isend(out, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request[i]);
                } else {
                    MPI_Irecv(in, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &request[i]);
                }
            }
            MPI_Waitall(length, request, status);
        }
        if (rank == 0) {
            MPI_Recv(in, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(out, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        }
        now = (double)length * windows / (MPI_Wtime() - start);
        if (now > best) best = now;
    }
    if (rank == 0) printf("%d %.0f\n", size, best);
}

/* Measures the latency while other receives are posted, or while other messages are unexpected. */
static void behind(int are_posted, int count)
{
    static MPI_Request request[MOST_BEHIND];
    static char word[MOST_BEHIND][8];
    int i, peer = 1 - rank;

    if (count > MOST_BEHIND) MPI_Abort(MPI_COMM_WORLD, 2);
    for (i = 0; i < count; i++) {
        if (are_posted) MPI_Irecv(word[i], 8, MPI_CHAR, peer, 1 + i, MPI_COMM_WORLD, &request[i]);
        else MPI_Send(out, 8, MPI_CHAR, peer, 1 + i, MPI_COMM_WORLD);
    }
    latency(8);
    for (i = 0; i < count; i++) {
        if (are_posted) MPI_Send(out, 8, MPI_CHAR, peer, 1 + i, MPI_COMM_WORLD);
        else MPI_Recv(word[i], 8, MPI_CHAR, peer, 1 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (are_posted) MPI_Waitall(count, request, MPI_STATUSES_IGNORE);
}

static void collective(int is_alltoall, int size)
{
    static double sample[BATCHES];
    int i, j, ranks, batches;

    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* Ranks that share processors may take a time slice of the kernel for each step. */
    batches = ranks > 2 ? BATCHES / 20 : BATCHES;
    for (i = -10; i < batches; i++) {
        double start = MPI_Wtime();
        for (j = 0; j < BATCH / 4; j++) {
            if (is_alltoall) {
                MPI_Alltoall(out, size, MPI_CHAR, in, size, MPI_CHAR, MPI_COMM_WORLD);
            } else {
                MPI_Allreduce(out, in, size / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            }
        }
        if (i >= 0) sample[i] = (MPI_Wtime() - start) * 1e9 / (BATCH / 4);
    }
    qsort(sample, batches, sizeof sample[0], by_value);
    if (rank == 0) printf("%d %.1f %.1f\n", size, sample[0], sample[batches / 2]);
}

/* Waits until the word has this value. If the origin does not execute puts by itself, the target
 * must call MPI meanwhile. */
static void wait_for_word(volatile long long *word, long long value, MPI_Win win)
{
    int found, looks = 0;

    while (*word != value) {
        MPI_Win_sync(win);
        if (++looks % 64 == 0) {
            MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        }
    }
}

/* Measures a put. The other process writes the first word of the window. */
static void put(int size)
{
    static double sample[BATCHES];
    volatile long long *window;
    long long trip = 0, word;
    MPI_Win win;
    int i, j, peer = 1 - rank;

    MPI_Win_allocate(2 * 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, (void *)&window, &win);
    *window = 0;
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (i = -WARM_UP / BATCH; i < BATCHES; i++) {
        double start = MPI_Wtime();
        for (j = 0; j < BATCH; j++) {
            word = ++trip;
            if (rank == 1) wait_for_word(window, trip, win);
            MPI_Put(&word, 1, MPI_LONG_LONG, peer, 0, 1, MPI_LONG_LONG, win);
            MPI_Win_flush(peer, win);
            if (rank == 0) wait_for_word(window, trip, win);
        }
        if (i >= 0) sample[i] = (MPI_Wtime() - start) * 1e9 / (2 * BATCH);
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    qsort(sample, BATCHES, sizeof sample[0], by_value);
    if (rank == 0) printf("%d %.1f %.1f\n", size, sample[0], sample[BATCHES / 2]);
}

int main(int argc, char **argv)
{
    int i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    pin();
    for (i = 2; i < argc; i++) {
        int size = atoi(argv[i]);
        if (size < 1 || size > LONGEST) MPI_Abort(MPI_COMM_WORLD, 2);
        if (strcmp(argv[1], "latency") == 0) latency(size);
        else if (strcmp(argv[1], "posted") == 0) behind(1, size);
        else if (strcmp(argv[1], "unexpected") == 0) behind(0, size);
        else if (strcmp(argv[1], "put") == 0) put(size);
        else if (strcmp(argv[1], "allreduce") == 0) collective(0, size);
        else if (strcmp(argv[1], "alltoall") == 0) collective(1, size);
        else rate(size);
    }
    MPI_Finalize();
    return 0;
}
