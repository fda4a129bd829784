/*
 * MPI and OpenMP in one program. `funneled`: all threads compute, and the main thread exchanges the
 * results (MPI_THREAD_FUNNELED). `multiple`: each thread exchanges messages on a communicator of
 * its own, all at once (MPI_THREAD_MULTIPLE). Prints "ok" on each rank.
 */
#include <mpi.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 3, ROUNDS = 200, LONGEST = 40000, CELLS = 30000 };

static int rank, size;

static void fail(const char *what, long detail)
{
    fprintf(stderr, "rank %d: %s: %ld\n", rank, what, detail);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Computes the sum of 1..CELLS*size. Each rank has a part of it, and each thread a part of that. */
static void funneled(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        double sum = 0, total = 0, cells = (double)CELLS * size;
#pragma omp parallel for reduction(+ : sum)
        for (int i = 0; i < CELLS; i++) sum += (double)rank * CELLS + i + 1;
        MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (total != cells * (cells + 1) / 2) fail("sum", round);
    }
}

/* Sends to the next rank, and receives from the previous one. Lengths differ between threads. */
static void exchange(int thread, MPI_Comm comm)
{
    static char outs[THREADS][LONGEST], ins[THREADS][LONGEST];
    char *out = outs[thread], *in = ins[thread];
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, got;
    MPI_Status status;

    for (int round = 0; round < ROUNDS; round++) {
        int len = (round * 397 + thread * 5003) % LONGEST;
        memset(out, rank + thread + round, len);
        MPI_Sendrecv(out, len, MPI_CHAR, next, thread, in, LONGEST, MPI_CHAR, previous, thread,
                     comm, &status);
        MPI_Get_count(&status, MPI_CHAR, &got);
        if (got != len) fail("length", got);
        for (int i = 0; i < len; i++) {
            if (in[i] != (char)(previous + thread + round)) fail("content", i);
        }
        if (round % 50 == 0) MPI_Barrier(comm);
    }
}

static void multiple(void)
{
    MPI_Comm comms[THREADS];

    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
#pragma omp parallel num_threads(THREADS)
    exchange(omp_get_thread_num(), comms[omp_get_thread_num()]);
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comms[i]);
}

int main(int argc, char **argv)
{
    int is_multiple = argc > 1 && strcmp(argv[1], "multiple") == 0, provided;
    int required = is_multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;

    omp_set_dynamic(0);
    MPI_Init_thread(&argc, &argv, required, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < required) fail("thread level", provided);
    if (is_multiple) {
        multiple();
    } else {
        funneled();
    }
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
