# Commands of gdb for a process that has crashed, or has called sc_inspectme(2), in a job with the
# option debug and without X display or terminal. A file score.gdb in the directory of scrun is used
# instead of this one.
set pagination off
backtrace
