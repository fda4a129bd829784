/* Rank 1 accumulates into its own memory, and then into memory of rank 0. When rank 2 sees the
 * second value, it accumulates into the same memory of rank 1. Rank 1 prints the final value.
 *
 * MPI does not promise that the value of rank 2 is the last one, because rank 1 has not completed
 * its first operation before it starts the second one. But the locks of mpi4py.util.sync rely on
 * this order. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

/* Rank 1 makes no progress for this time, in which the operation of rank 2 arrives. */
#define PAUSE_US 300000

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, *memory, own = 1, of_other = 2, seen = 0;
    MPI_Win window;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Win_allocate(sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    *memory = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    if (rank == 1) {
        MPI_Accumulate(&own, 1, MPI_INT, 1, 0, 1, MPI_INT, MPI_REPLACE, window);
        MPI_Fetch_and_op(&own, &seen, MPI_INT, 0, 0, MPI_REPLACE, window);
        usleep(PAUSE_US);
        MPI_Win_flush(0, window);
    } else if (rank == 2) {
        while (seen != own) {
            MPI_Fetch_and_op(NULL, &seen, MPI_INT, 0, 0, MPI_NO_OP, window);
            MPI_Win_flush(0, window);
        }
        MPI_Accumulate(&of_other, 1, MPI_INT, 1, 0, 1, MPI_INT, MPI_REPLACE, window);
        MPI_Win_flush(1, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        printf("the value is %d\n", *memory);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
