"""Each process writes its part of an HDF5 file by MPI-IO, and reads the next part."""
import sys

from mpi4py import MPI
import h5py

ROWS, COLUMNS = 64, 1000
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def cell(row):
    return [(row * 31 + column) % 1009 for column in range(COLUMNS)]


with h5py.File("parallel.h5", "w", driver="mpio", comm=comm) as file:
    table = file.create_dataset("table", (ROWS * size, COLUMNS), dtype="i4")
    for row in range(rank * ROWS, (rank + 1) * ROWS):
        table[row] = cell(row)
    with table.collective:
        table[rank * ROWS] = cell(rank * ROWS)
    file.attrs["processes"] = size

with h5py.File("parallel.h5", "r", driver="mpio", comm=comm) as file:
    table = file["table"]
    first = (rank + 1) % size * ROWS
    for row in range(first, first + ROWS):
        if list(table[row]) != cell(row):
            sys.exit(f"rank {rank}: row {row} differs")
    total = comm.allreduce(int(table[first:first + ROWS].sum()))
    print(f"rank {rank} of {file.attrs['processes']}: sum {total}", flush=True)
