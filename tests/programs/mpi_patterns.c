/*
 * Random patterns of communication, which always end or, with `dead`, never end. Every rank
 * executes the same steps, which follow from the seed: mpi_patterns SEED STEPS alive|dead
 *
 * In a program that ends, ranks may poll by MPI_Test or MPI_Iprobe between computations. In a
 * program that does not end, a rank receives at some step with a tag that no rank sends.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 1 << 20, MAX_STEPS = 512 };
/* How a rank waits for a message. The last two poll, and compute between the polls. */
enum { RECV, PROBE, WAIT, TEST, IPROBE, STYLES };

static const MPI_Comm world = MPI_COMM_WORLD;
static int rank, size, is_dead;
static char *out, *in;
static uint64_t state;

static uint64_t draw(void)
{
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;

    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static int below(int bound)
{
    return (int)(draw() % (uint64_t)bound);
}

static void fail(const char *what, int step)
{
    fprintf(stderr, "mpi_patterns: rank %d: %s in step %d\n", rank, what, step);
    MPI_Abort(world, 9);
}

static void compute(int us)
{
    struct timespec from, now;

    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

/* Works before a rank does its part of a step. All ranks make the draws, but only one works. */
static void work(int who)
{
    int us = below(8) == 0 ? 20000 + below(80000) : below(2) ? below(5000) : 0;
    int sleeps = below(2);

    if (rank == who && us > 0) sleeps ? (void)usleep((useconds_t)us) : compute(us);
}

static void receive(int source, int tag, int len, int style, int pause_us)
{
    MPI_Request request;
    MPI_Status status;
    int is_there = 0;

    switch (style) {
    case PROBE:
        MPI_Probe(source, tag, world, &status);
        break;
    case IPROBE:
        while (MPI_Iprobe(source, tag, world, &is_there, &status), !is_there) compute(pause_us);
        break;
    case WAIT:
    case TEST:
        MPI_Irecv(in, len, MPI_CHAR, source, tag, world, &request);
        if (style == WAIT) {
            MPI_Wait(&request, &status);
        } else {
            while (MPI_Test(&request, &is_there, &status), !is_there) compute(pause_us);
        }
        return;
    default:
        break;
    }
    MPI_Recv(in, len, MPI_CHAR, source, tag, world, &status);
}

/* If `is_lost`, the receiver of this step waits for a tag that no rank sends. */
static void run_step(int step, int is_lost)
{
    int kind = below(8), from = below(size), to = (from + 1 + below(size - 1)) % size;
    int style = below(is_dead ? TEST : STYLES), pause_us = 1 + below(2000);
    int len = below(3) == 0 ? LARGE : 1 + below(64), sum = 0;

    work(from);
    work(to);
    if (is_lost) {
        if (rank == to) receive(from, MAX_STEPS + step, len, style, pause_us);
        return;
    }
    if (kind < 4) {
        memset(out, step, (size_t)len);
        memset(in, ~step, (size_t)len);
        if (rank == from) MPI_Send(out, len, MPI_CHAR, to, step, world);
        if (rank == to) {
            receive(from, step, len, style, pause_us);
            if (memcmp(in, out, (size_t)len) != 0) fail("wrong bytes", step);
        }
    } else if (kind == 4) {
        MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, step, &sum, 1, MPI_INT,
                     (rank + size - 1) % size, step, world, MPI_STATUS_IGNORE);
        if (sum != (rank + size - 1) % size) fail("a wrong neighbour", step);
    } else if (kind == 5) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, world);
        if (sum != size * (size - 1) / 2) fail("a wrong sum", step);
    } else if (kind == 6) {
        MPI_Bcast(&step, 1, MPI_INT, from, world);
    } else {
        MPI_Barrier(world);
    }
}

int main(int argc, char **argv)
{
    int steps, lost;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    if (argc != 4 || size < 2) fail("mpi_patterns SEED STEPS alive|dead, two ranks or more", 0);
    state = strtoull(argv[1], NULL, 10);
    steps = atoi(argv[2]);
    if (steps < 1 || steps > MAX_STEPS) fail("too few or too many steps", steps);
    is_dead = strcmp(argv[3], "dead") == 0;
    out = malloc(LARGE);
    in = malloc(LARGE);
    lost = is_dead ? below(steps) : -1;
    for (int step = 0; step < steps; step++) run_step(step, step == lost);
    MPI_Barrier(world);
    printf("rank %d is done\n", rank);
    MPI_Finalize();
    return 0;
}
