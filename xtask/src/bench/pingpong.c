/*
 * What pmtest measures, for any MPI: bounces a message between ranks 0 and 1, each pinned to a core
 * of its own, and sends messages one way with a window of receives posted ahead.
 *
 *   pingpong latency SIZE...   a line "SIZE BEST_NS MEDIAN_NS" each, one way
 *   pingpong rate SIZE         a line "SIZE MESSAGES_PER_S", best batch
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, BATCHES = 1000, WARM_UP = 1000, LONGEST = 1 << 20 };
enum { WINDOW = 64, WINDOWS = 800, BURSTS = 12 };

static char out[LONGEST], in[LONGEST];
static int rank;

static void pin(void)
{
    cpu_set_t allowed, own;
    int cpu, seen = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
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
    int burst, window, i;

    for (burst = 0; burst < BURSTS; burst++) {
        double start = MPI_Wtime(), now;
        for (window = 0; window < WINDOWS; window++) {
            for (i = 0; i < WINDOW; i++) {
                if (rank == 0) {
                    MPI_Isend(out, size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request[i]);
                } else {
                    MPI_Irecv(in, size, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &request[i]);
                }
            }
            MPI_Waitall(WINDOW, request, status);
        }
        if (rank == 0) {
            MPI_Recv(in, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(out, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        }
        now = (double)WINDOW * WINDOWS / (MPI_Wtime() - start);
        if (now > best) best = now;
    }
    if (rank == 0) printf("%d %.0f\n", size, best);
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
        else rate(size);
    }
    MPI_Finalize();
    return 0;
}
