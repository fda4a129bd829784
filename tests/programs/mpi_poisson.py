"""Solves the equation of Poisson on a square with PETSc: conjugate gradients, two ways."""
import sys

import petsc4py

petsc4py.init(sys.argv)
from petsc4py import PETSc

SIDE = 40
matrix = PETSc.Mat().createAIJ([SIDE * SIDE, SIDE * SIDE], nnz=5)
first, last = matrix.getOwnershipRange()
for row in range(first, last):
    line, column = divmod(row, SIDE)
    matrix[row, row] = 4.0
    for other_line, other_column in ((line - 1, column), (line + 1, column),
                                     (line, column - 1), (line, column + 1)):
        if 0 <= other_line < SIDE and 0 <= other_column < SIDE:
            matrix[row, other_line * SIDE + other_column] = -1.0
matrix.assemble()
right, solution = matrix.createVecs()
right.set(1.0)
for name in ("none", "jacobi"):
    solver = PETSc.KSP().create()
    solver.setOperators(matrix)
    solver.setType("cg")
    solver.getPC().setType(name)
    solver.setTolerances(rtol=1e-10)
    solution.set(0.0)
    solver.solve(right, solution)
    PETSc.Sys.Print(f"{name}: {solver.its} iterations, norm {solution.norm():.8g}")
