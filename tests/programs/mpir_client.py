# A client of MPIR for gdb, like a debugger for MPI programs: it knows the symbols of the interface
# and nothing about the starter. gdb reads this file, then the lines of a test. `say` writes to the
# file CLIENT_LOG, so that the client's output does not mix with the job's output.

import os
import struct
import time

import gdb

LOG = open(os.environ["CLIENT_LOG"], "a", buffering=1)
for line in (
    "set pagination off",
    "set confirm off",
    "set language c",
    "set debuginfod enabled off",
    "set width 0",
):
    gdb.execute(line)


def say(*words):
    print(*words, file=LOG)


def address(symbol):
    return int(gdb.parse_and_eval("(unsigned long)&" + symbol))


def read(start, count):
    return bytes(gdb.selected_inferior().read_memory(start, count))


def write(symbol, data):
    gdb.selected_inferior().write_memory(address(symbol), data)


def number(symbol):
    return struct.unpack("i", read(address(symbol), 4))[0]


def pointer(symbol):
    return struct.unpack("Q", read(address(symbol), 8))[0]


def text(start):
    data = b""
    while not data.endswith(b"\0"):
        data += read(start + len(data), 1)
    return data[:-1].decode()


def set_flag(value):
    write("MPIR_being_debugged", struct.pack("i", value))


def state():
    return number("MPIR_debug_state")


# Returns the rows of the table: host, program, process.
def table():
    rows = []
    for row in range(number("MPIR_proctable_size")):
        entry = struct.unpack("QQi4x", read(pointer("MPIR_proctable") + 24 * row, 24))
        rows.append((text(entry[0]), text(entry[1]), entry[2]))
    return rows


# Returns the number of processes with this command line. Waits for the wanted number, because a
# shell may not have executed the command yet.
def count_of(command_line, wanted):
    deadline = time.time() + 20
    while True:
        count = int(os.popen('pgrep -cx -f "%s"' % command_line).read())
        if count == wanted or time.time() > deadline:
            return count
        time.sleep(0.02)


def say_table():
    for row in table():
        say("row", *row)


# Whether the only thread of a process is stopped at the first instruction: that of its dynamic
# loader, or of the program if it has none.
def is_at_first_instruction(process):
    with open("/proc/%d/stat" % process) as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    # State and number of threads.
    if fields[0] != "T" or fields[17] != "1":
        return False
    with open("/proc/%d/auxv" % process, "rb") as auxv:
        data = auxv.read()
    values = dict(struct.unpack_from("QQ", data, at) for at in range(0, len(data), 16))
    base, entry = values.get(7, 0), values[9]
    if base:
        with open("/proc/%d/mem" % process, "rb") as memory:
            memory.seek(base + 24)
            entry = base + struct.unpack("Q", memory.read(8))[0]
    with open("/proc/%d/syscall" % process) as call:
        return int(call.read().split()[-1], 16) == entry


def say_held():
    rows = table()
    held = [process for _, _, process in rows if is_at_first_instruction(process)]
    say("held", len(held), "of", len(rows))


def run():
    gdb.execute("break MPIR_Breakpoint")
    gdb.execute("run")


# Continues scrun. Returns whether it is at the breakpoint again.
def go_on():
    gdb.execute("continue")
    if not gdb.selected_inferior().pid:
        say("code", gdb.parse_and_eval("$_exitcode"))
        return False
    # gdb finds the function by its symbol, without debug information.
    return gdb.selected_frame().name() == "MPIR_Breakpoint"
