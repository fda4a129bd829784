/* Windows of MPI of all kinds (MPI 5.0, chapter 12): data that is put, got and accumulated is at
 * its place after the synchronisation. Prints "ok" on each rank. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1 << 20, ROUNDS = 200 };

static int rank, size;

static void fail(const char *what, long detail)
{
    fprintf(stderr, "rank %d: %s: %ld\n", rank, what, detail);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char content(int seed, int i)
{
    return (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static void fill(unsigned char *bytes, int len, int seed)
{
    for (int i = 0; i < len; i++) bytes[i] = content(seed, i);
}

static void check(const unsigned char *bytes, int len, int seed, const char *what)
{
    for (int i = 0; i < len; i++) {
        if (bytes[i] != content(seed, i)) fail(what, i);
    }
}

/* Between two fences each rank writes to the next rank, and reads from the previous one. */
static void put_and_get(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    unsigned char *window, *out = malloc(LONGEST), *in = malloc(LONGEST);
    MPI_Win win;

    MPI_Win_allocate(2 * LONGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    for (int len = 1; len <= LONGEST; len *= 4) {
        fill(window + LONGEST, len, rank + len);
        fill(out, len, rank + 2 * len);
        memset(in, 0, len);
        MPI_Win_fence(0, win);
        MPI_Put(out, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
        MPI_Get(in, len, MPI_BYTE, previous, LONGEST, len, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        check(window, len, previous + 2 * len, "put");
        check(in, len, previous + len, "get");
    }
    MPI_Win_free(&win);
    free(out);
    free(in);
}

/* Transfers columns of a matrix, which are in many pieces on both sides. */
static void pieces(void)
{
    enum { ROWS = 64, COLUMNS = 48 };
    static unsigned char matrix[ROWS * COLUMNS], window[ROWS * COLUMNS];
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Datatype columns;
    MPI_Win win;

    MPI_Type_vector(ROWS, 16, COLUMNS, MPI_BYTE, &columns);
    MPI_Type_commit(&columns);
    fill(matrix, sizeof matrix, rank);
    memset(window, 0, sizeof window);
    MPI_Win_create(window, sizeof window, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Put(matrix, 1, columns, next, 0, 1, columns, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        unsigned char expected = i % COLUMNS < 16 ? content(previous, i) : 0;
        if (window[i] != expected) fail("pieces", i);
    }
    MPI_Win_free(&win);
    MPI_Type_free(&columns);
}

/* All ranks add to the same numbers of rank 0, by different types and calls. */
static void accumulate(MPI_Info info)
{
    struct {
        int64_t sum;
        double real;
        int32_t greatest;
        uint32_t bits;
        int64_t many[40];
    } *window;
    int64_t one = 1, many[40];
    double half = 0.5;
    int32_t own = rank * 3;
    uint32_t bit = 1u << rank;
    MPI_Win win;

    MPI_Win_allocate(sizeof *window, 1, info, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, sizeof *window);
    for (int i = 0; i < 40; i++) many[i] = i + rank;
    MPI_Win_fence(0, win);
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, MPI_SUM, win);
        MPI_Accumulate(&half, 1, MPI_DOUBLE, 0, 8, 1, MPI_DOUBLE, MPI_SUM, win);
    }
    MPI_Accumulate(&own, 1, MPI_INT32_T, 0, 16, 1, MPI_INT32_T, MPI_MAX, win);
    MPI_Accumulate(&bit, 1, MPI_UINT32_T, 0, 20, 1, MPI_UINT32_T, MPI_BOR, win);
    MPI_Accumulate(many, 40, MPI_INT64_T, 0, 24, 40, MPI_INT64_T, MPI_SUM, win);
    MPI_Win_fence(0, win);
    if (rank == 0) {
        if (window->sum != (int64_t)ROUNDS * size) fail("sum", window->sum);
        if (window->real != 0.5 * ROUNDS * size) fail("real", (long)window->real);
        if (window->greatest != 3 * (size - 1)) fail("greatest", window->greatest);
        if (window->bits != (1u << size) - 1) fail("bits", window->bits);
        for (int i = 0; i < 40; i++) {
            if (window->many[i] != i * size + size * (size - 1) / 2) fail("many", i);
        }
    }
    MPI_Win_free(&win);
}

/* A counter at the last rank, of which each value is fetched once, and a lock by compare and
 * swap. */
static void fetch(MPI_Info info)
{
    int last = size - 1, count = ROUNDS, free_value = -1, owner, seen;
    int32_t *window, one = 1, former, *all = calloc((size_t)size * ROUNDS, sizeof *all);
    int32_t mine[ROUNDS];
    MPI_Win win;

    MPI_Win_allocate(3 * sizeof *window, sizeof *window, info, MPI_COMM_WORLD, &window, &win);
    window[0] = 0, window[1] = -1, window[2] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int i = 0; i < count; i++) {
        MPI_Fetch_and_op(&one, &former, MPI_INT32_T, last, 0, MPI_SUM, win);
        MPI_Win_flush(last, win);
        if (i > 0 && former <= mine[i - 1]) fail("fetched out of order", former);
        mine[i] = former;
    }
    for (int i = 0; i < 10; i++) {
        do {
            MPI_Compare_and_swap(&rank, &free_value, &owner, MPI_INT32_T, last, 1, win);
            MPI_Win_flush(last, win);
        } while (owner != free_value);
        MPI_Get_accumulate(NULL, 0, MPI_INT32_T, &seen, 1, MPI_INT32_T, last, 2, 1, MPI_INT32_T,
                           MPI_NO_OP, win);
        MPI_Win_flush(last, win);
        seen++;
        MPI_Accumulate(&seen, 1, MPI_INT32_T, last, 2, 1, MPI_INT32_T, MPI_REPLACE, win);
        MPI_Win_flush(last, win);
        MPI_Compare_and_swap(&free_value, &rank, &owner, MPI_INT32_T, last, 1, win);
        MPI_Win_flush(last, win);
        if (owner != rank) fail("the lock was lost to", owner);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Gather(mine, count, MPI_INT32_T, all, count, MPI_INT32_T, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        char *is_seen = calloc((size_t)size * count, 1);
        for (int i = 0; i < size * count; i++) {
            if (all[i] < 0 || all[i] >= size * count || is_seen[all[i]]++) fail("fetched", all[i]);
        }
        free(is_seen);
    }
    MPI_Win_lock(MPI_LOCK_SHARED, last, 0, win);
    MPI_Get(&seen, 1, MPI_INT32_T, last, 2, 1, MPI_INT32_T, win);
    MPI_Win_unlock(last, win);
    if (seen != 10 * size) fail("guarded by the lock", seen);
    MPI_Win_free(&win);
    free(all);
}

/* Passive target: the target does not call MPI until all data has arrived. */
static void passive(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, token = 0;
    unsigned char *window = malloc(LONGEST), *out = malloc(LONGEST), *in = malloc(LONGEST);
    MPI_Request requests[2];
    MPI_Win win;

    MPI_Win_create(window, LONGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int len = 8; len <= LONGEST; len *= 8) {
        fill(out, len, rank + len);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, win);
        MPI_Put(out, len, MPI_BYTE, next, 0, len, MPI_BYTE, win);
        MPI_Win_flush(next, win);
        MPI_Rget(in, len, MPI_BYTE, next, 0, len, MPI_BYTE, win, &requests[0]);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        check(in, len, rank + len, "read again");
        MPI_Win_unlock(next, win);
        MPI_Sendrecv_replace(&token, 1, MPI_INT, next, 1, previous, 1, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
        MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
        check(window, len, previous + len, "put by a passive target");
        MPI_Win_unlock(rank, win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Win_lock_all(0, win);
    fill(out, LONGEST, rank);
    for (int i = 0; i < 2; i++) {
        MPI_Rput(out + i * (LONGEST / 2), LONGEST / 2, MPI_BYTE, next, i * (LONGEST / 2),
                 LONGEST / 2, MPI_BYTE, win, &requests[i]);
    }
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    MPI_Win_flush_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    check(window, LONGEST, previous, "request-based put");
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    free(window);
    free(out);
    free(in);
}

/* Groups that start and post: each rank opens its window to its neighbours. */
static void groups(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, value = rank, window = -1;
    MPI_Group world, origins, targets;
    MPI_Win win;

    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &previous, &origins);
    MPI_Group_incl(world, 1, &next, &targets);
    MPI_Win_create(&window, sizeof window, sizeof window, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int i = 0; i < 20; i++) {
        MPI_Win_post(origins, 0, win);
        MPI_Win_start(targets, 0, win);
        value = rank + i;
        MPI_Put(&value, 1, MPI_INT, next, 0, 1, MPI_INT, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        if (window != previous + i) fail("groups", window);
    }
    MPI_Win_free(&win);
    MPI_Group_free(&origins);
    MPI_Group_free(&targets);
    MPI_Group_free(&world);
}

/* Attaches memory to an existing window. */
static void dynamic(void)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, value = 100 + rank;
    int *memory = calloc(16, sizeof *memory);
    MPI_Aint own, other;
    MPI_Win win;

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_attach(win, memory, 16 * sizeof *memory);
    MPI_Get_address(&memory[3], &own);
    MPI_Sendrecv(&own, 1, MPI_AINT, previous, 2, &other, 1, MPI_AINT, next, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Win_fence(0, win);
    MPI_Put(&value, 1, MPI_INT, next, other, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    if (memory[3] != 100 + previous) fail("dynamic", memory[3]);
    MPI_Win_detach(win, memory);
    MPI_Win_free(&win);
    free(memory);
}

/* Uses many windows at once, each with its own region. */
static void many_windows(void)
{
    enum { COUNT = 32 };
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, values[COUNT], own[COUNT];
    MPI_Win wins[COUNT];

    for (int i = 0; i < COUNT; i++) {
        values[i] = -1, own[i] = rank * COUNT + i;
        MPI_Win_create(&values[i], sizeof(int), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &wins[i]);
        MPI_Win_fence(0, wins[i]);
    }
    for (int i = 0; i < COUNT; i++) MPI_Put(&own[i], 1, MPI_INT, next, 0, 1, MPI_INT, wins[i]);
    for (int i = 0; i < COUNT; i++) MPI_Win_fence(0, wins[i]);
    for (int i = 0; i < COUNT; i++) {
        if (values[i] != previous * COUNT + i) fail("many windows", i);
        MPI_Win_free(&wins[i]);
    }
}

int main(int argc, char **argv)
{
    MPI_Info info;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    put_and_get();
    pieces();
    accumulate(MPI_INFO_NULL);
    fetch(MPI_INFO_NULL);
    /* MPICH uses libfabric's atomic operations only if the program declares that no other operation
     * is used on a number at the same time. Otherwise it sends messages. */
    MPI_Info_create(&info);
    MPI_Info_set(info, "accumulate_ops", "same_op");
    accumulate(info);
    fetch(info);
    MPI_Info_free(&info);
    passive();
    groups();
    dynamic();
    many_windows();
    MPI_Barrier(MPI_COMM_WORLD);
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
