/*
 * Messages of MPI in all forms that a transport has to distinguish: lengths from 0 to 1 MiB,
 * expected and unexpected, in any order of tags, from any source, probed, synchronous, from memory
 * in pieces, to the sender itself, truncated, cancelled. Prints "ok" per rank if all are correct.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 1 << 20, UNEXPECTED = 3000, UNEXPECTED_LEN = 4000 };
/* The upper bound of tags that all MPI libraries support. */
enum { TAG_UB = 32767 };

static int rank, size;

static void fail(const char *what, long value)
{
    printf("rank %d: %s: %ld\n", rank, what, value);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char content(int seed, int index)
{
    return (unsigned char)(seed * 31 + index * 7 + index / 251);
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

/* Sends to the next rank, and receives from the previous one. */
static void all_lengths(unsigned char *out, unsigned char *in, int is_expected)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, got;
    MPI_Request receive, send;
    MPI_Status status;

    for (int len = 0; len <= LONGEST; len = len < 3 ? len + 1 : len * 3 / 2 + 1) {
        int tag = len % (TAG_UB + 1);

        fill(out, len, rank + len);
        memset(in, 0, len);
        if (is_expected) {
            MPI_Irecv(in, LONGEST, MPI_BYTE, previous, tag, MPI_COMM_WORLD, &receive);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Isend(out, len, MPI_BYTE, next, tag, MPI_COMM_WORLD, &send);
        if (!is_expected) {
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Irecv(in, LONGEST, MPI_BYTE, previous, tag, MPI_COMM_WORLD, &receive);
        }
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        MPI_Wait(&receive, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        if (got != len || status.MPI_SOURCE != previous) fail("length", got);
        check(in, len, previous + len, "content");
    }
}

/* Sends many unexpected messages, and receives them from the last to the first. */
static void many_unexpected(unsigned char *in)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    unsigned char *out = malloc((size_t)UNEXPECTED * UNEXPECTED_LEN);
    MPI_Request *sends = malloc(UNEXPECTED * sizeof *sends);

    for (int i = 0; i < UNEXPECTED; i++) {
        fill(out + (size_t)i * UNEXPECTED_LEN, UNEXPECTED_LEN, rank + i);
        MPI_Isend(out + (size_t)i * UNEXPECTED_LEN, UNEXPECTED_LEN, MPI_BYTE, next, i,
                  MPI_COMM_WORLD, &sends[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = UNEXPECTED - 1; i >= 0; i--) {
        MPI_Recv(in, UNEXPECTED_LEN, MPI_BYTE, previous, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check(in, UNEXPECTED_LEN, previous + i, "unexpected");
    }
    MPI_Waitall(UNEXPECTED, sends, MPI_STATUSES_IGNORE);
    free(sends);
    free(out);
}

/* Messages of one source keep their order, whichever call receives them. */
static void order(void)
{
    int last[64] = {0}, value[2];
    MPI_Status status;

    if (rank > 0) {
        for (int i = 1; i <= 500; i++) {
            value[0] = rank, value[1] = i;
            MPI_Send(value, 2, MPI_INT, 0, i % 3, MPI_COMM_WORLD);
        }
    } else {
        for (int i = 0; i < 500 * (size - 1); i++) {
            int tag = MPI_ANY_TAG, source = MPI_ANY_SOURCE;
            if (i % 4 == 1) {
                MPI_Message message;
                MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
                MPI_Mrecv(value, 2, MPI_INT, &message, &status);
            } else {
                if (i % 4 == 2) {
                    MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
                    tag = status.MPI_TAG, source = status.MPI_SOURCE;
                }
                MPI_Recv(value, 2, MPI_INT, source, tag, MPI_COMM_WORLD, &status);
            }
            if (value[0] != status.MPI_SOURCE || value[1] != last[value[0]] + 1) {
                fail("order", value[1]);
            }
            last[value[0]] = value[1];
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Sends columns of a matrix, and sends synchronously. */
static void pieces(unsigned char *out, unsigned char *in)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Datatype columns;
    MPI_Request send;

    for (int rows = 2; rows <= 4096; rows *= 8) {
        MPI_Type_vector(rows, 3, 16, MPI_BYTE, &columns);
        MPI_Type_commit(&columns);
        fill(out, rows * 16, rank);
        memset(in, 0, rows * 16);
        MPI_Issend(out, 1, columns, next, 1, MPI_COMM_WORLD, &send);
        MPI_Recv(in, 1, columns, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        for (int i = 0; i < (rows - 1) * 16 + 3; i++) {
            unsigned char expected = i % 16 < 3 ? content(previous, i) : 0;
            if (in[i] != expected) fail("pieces", i);
        }
        MPI_Type_free(&columns);
    }
}

static void to_oneself(unsigned char *out, unsigned char *in)
{
    MPI_Request send;

    for (int len = 1; len <= LONGEST; len *= 4) {
        fill(out, len, len);
        MPI_Isend(out, len, MPI_BYTE, rank, 3, MPI_COMM_WORLD, &send);
        MPI_Recv(in, len, MPI_BYTE, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        check(in, len, len, "oneself");
    }
}

static void truncated_and_cancelled(unsigned char *out, unsigned char *in)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, is_cancelled, class;
    MPI_Request send, receive;
    MPI_Status status;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int len = 100; len <= 300000; len += 299900) {
        memset(in, 0x55, len);
        MPI_Isend(out, len, MPI_BYTE, next, 5, MPI_COMM_WORLD, &send);
        int error = MPI_Recv(in, 10, MPI_BYTE, previous, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Error_class(error, &class);
        if (class != MPI_ERR_TRUNCATE) fail("truncated", class);
        for (int i = 10; i < len; i++) {
            if (in[i] != 0x55) fail("beyond the buffer", i);
        }
        MPI_Wait(&send, MPI_STATUS_IGNORE);
    }
    MPI_Irecv(in, 10, MPI_BYTE, previous, 6, MPI_COMM_WORLD, &receive);
    MPI_Cancel(&receive);
    MPI_Wait(&receive, &status);
    MPI_Test_cancelled(&status, &is_cancelled);
    if (!is_cancelled) fail("cancelled", 0);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* Probes for two kinds of messages alternately. Each is found as long as it is not received. */
static void probes_in_turn(void)
{
    int is_found[2] = {0, 0}, value = rank, received, looks;
    int previous = (rank + size - 1) % size;
    MPI_Request sends[2];

    MPI_Isend(&value, 1, MPI_INT, (rank + 1) % size, 8, MPI_COMM_WORLD, &sends[0]);
    MPI_Isend(&value, 1, MPI_INT, (rank + 1) % size, 9, MPI_COMM_WORLD, &sends[1]);
    for (looks = 0; looks < 100000000 && !(is_found[0] && is_found[1]); looks++) {
        int source = looks % 3 == 0 ? previous : MPI_ANY_SOURCE;
        MPI_Iprobe(MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &is_found[0], MPI_STATUS_IGNORE);
        MPI_Iprobe(source, 9, MPI_COMM_WORLD, &is_found[1], MPI_STATUS_IGNORE);
    }
    if (!is_found[0] || !is_found[1]) fail("probes in turn", looks);
    MPI_Recv(&received, 1, MPI_INT, previous, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Recv(&received, 1, MPI_INT, previous, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
}

/* The sender finishes long before the receiver calls MPI. */
static void last_messages(void)
{
    enum { COUNT = 10000 };

    for (int i = 0; i < COUNT && size > 1; i++) {
        int value = i;
        if (rank == 0) {
            MPI_Send(&value, 1, MPI_INT, 1, 4, MPI_COMM_WORLD);
        } else if (rank == 1) {
            if (i == 0) sleep(1);
            MPI_Recv(&value, 1, MPI_INT, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (value != i) fail("last messages", value);
        }
    }
}

int main(int argc, char **argv)
{
    unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    all_lengths(out, in, 1);
    all_lengths(out, in, 0);
    many_unexpected(in);
    order();
    pieces(out, in);
    to_oneself(out, in);
    truncated_and_cancelled(out, in);
    probes_in_turn();
    MPI_Barrier(MPI_COMM_WORLD);
    last_messages();
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
