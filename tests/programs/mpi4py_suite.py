"""Runs the test suite of mpi4py without tests that the MPI library cannot run.

usage: mpi4py_suite.py NAME[,NAME...] SUITE [OPTION...]

NAME is the name of a test function that is left out. SUITE is the program of the test suite.
"""

import runpy
import sys
import unittest

left_out = sys.argv[1].split(",")
names_of_all = unittest.TestLoader.getTestCaseNames


def names_without(loader, test_case):
    return [name for name in names_of_all(loader, test_case) if name not in left_out]


unittest.TestLoader.getTestCaseNames = names_without
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
