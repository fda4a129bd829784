# A client of MPIR for gdb that prints the times at which scrun calls MPIR_Breakpoint. `held` is
# true if the client sets MPIR_being_debugged.

import struct
import time

import gdb

for line in ("set pagination off", "set confirm off", "set language c", "set width 0"):
    gdb.execute(line)
gdb.execute("break MPIR_Breakpoint")
gdb.execute("run")
print("\nBEGUN", time.monotonic(), flush=True)
if held:
    flag = int(gdb.parse_and_eval("(unsigned long)&MPIR_being_debugged"))
    gdb.selected_inferior().write_memory(flag, struct.pack("i", 1))
    gdb.execute("continue")
    print("\nSPAWNED", time.monotonic(), flush=True)
gdb.execute("continue")
