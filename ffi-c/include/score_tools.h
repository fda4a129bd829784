/*
 * score_tools.h - messages between a tool and the tool control service of a job (docs/dev/tools.md;
 * Blue Gene/Q Code Development and Tools Interface, chapter 4), on x86-64.
 *
 * A message is one record of a socket of type SOCK_SEQPACKET, of at most SCORE_TOOLS_MAX_MESSAGE
 * bytes, in the byte order of the host. It begins with struct score_tools_header, whose member
 * length is the length of the whole record.
 *
 * Query and Update have the number of commands (uint16_t) at SCORE_TOOLS_COMMANDS. 16 descriptors
 * begin at SCORE_TOOLS_DESCRIPTORS, even if there are fewer commands. The data of the commands
 * follow, each at a multiple of 8. Data begin with the thread id. 0 means the thread of the last
 * signal notice, or the process leader if there was none. Acknowledgements have the same form. A
 * command that failed has no data.
 *
 * Bytes or entries follow some structures. The member count is their number. The macro with _TAIL
 * at the end of its name is the offset of the first byte or entry, which may be within the padding
 * of the structure.
 *
 * ShareMemory and Copy Memory are extensions of CDTI, for tools that read much memory. A tool sends
 * ShareMemory, a header alone, with the descriptor of a memfd (SCM_RIGHTS). The memfd has 1 to
 * SCORE_TOOLS_MAX_SHARED bytes of ordinary pages, can be written, and has the seals F_SEAL_SHRINK,
 * F_SEAL_GROW and F_SEAL_SEAL. Copy Memory makes the service copy memory of a process to the memfd.
 * The memory belongs to the connection. A further ShareMemory replaces it for the messages that
 * follow.
 * No other message may have a descriptor.
 *
 * A later version of the service may append bytes; existing members keep their offsets. Members
 * named reserved are 0.
 */
#ifndef SCORE_SCORE_TOOLS_H
#define SCORE_SCORE_TOOLS_H

#include <stddef.h>
#include <stdint.h>

#include <score_tools_numbers.h>

/* The header of each message. */
struct score_tools_header {
    uint8_t service;       /* SCORE_TOOLS_SERVICE */
    uint8_t version;       /* Version of the sender. */
    uint16_t kind;         /* SCORE_TOOLS_MSG_* */
    uint32_t rank;         /* Rank to which the message goes, or from which it comes. */
    uint32_t sequence;     /* Chosen by the sender. The acknowledgement repeats it; 0 in notices. */
    uint32_t return_code;  /* SCORE_TOOLS_RC_*, in an acknowledgement. */
    uint32_t error_code;   /* Detail: an errno value, or 0. */
    uint32_t length;       /* Bytes of the whole message. */
    uint64_t job;          /* Number of the job. */
    uint32_t tool;         /* Number of the tool; 0 in an Attach requests a number. */
};

/* The body of Attach. */
struct score_tools_attach {
    struct score_tools_header header;
    uint8_t tag[8];                    /* Tag of the tool. */
    uint8_t priority;                  /* Its priority, 0 to 99; 99 is the highest. */
    uint8_t reserved[3];
    uint32_t select;                   /* SCORE_TOOLS_PROCESS_SELECT_* */
};

/* The body of Detach. */
struct score_tools_detach {
    struct score_tools_header header;
    uint32_t select;                   /* SCORE_TOOLS_PROCESS_SELECT_* */
};

/* The head of AttachAck and DetachAck: number of ranks at 40 (u16), ranks (u32) from 44. An
 * AttachAck with SCORE_TOOLS_RC_REQUEST_FAILED has no ranks. It may have one line of text without
 * NUL from 44 up to `length`: the reason why the kernel does not let the service trace the process.
 */
struct score_tools_rank_list_head {
    struct score_tools_header header;
    uint16_t count;                    /* Number of ranks. */
};
#define SCORE_TOOLS_RANK_LIST_HEAD_TAIL 44

/* The body of Control. */
struct score_tools_control {
    struct score_tools_header header;
    /* Signals that the service reports to the tool: bit (signal - 1). */
    uint64_t notify_set;
    /* Signal that the process leader gets when the tool gets authority, or 0. */
    uint32_t signal;
    uint32_t start_notice;             /* SCORE_TOOLS_START_NOTICE_* */
    uint32_t trap_mode;                /* SCORE_TOOLS_TRAP_MODE_* */
    uint32_t watch_policy;             /* SCORE_TOOLS_WATCH_POLICY_* */
};

/* The body of ControlAck: the tool that has authority. */
struct score_tools_control_ack {
    struct score_tools_header header;
    uint16_t short_tool;               /* The low 16 bits of its number. */
    uint8_t tag[8];                    /* Its tag. */
    uint8_t priority;                  /* Its priority. */
    uint8_t reserved;
    uint32_t controller;               /* Its number. */
};

/* The body of ShareMemoryAck. The errors of SCORE_TOOLS_RC_REQUEST_FAILED are EBADMSG: the message
 * does not have exactly one descriptor; EINVAL: the descriptor is not a memfd of ordinary pages;
 * EPERM: a seal is missing, or the memfd cannot be written; EFBIG: its size is out of range. */
struct score_tools_shared_length {
    struct score_tools_header header;
    uint64_t length;                   /* Bytes that the service shares with the tool, or 0. */
};

/* A notice of a signal. The thread is stopped. */
struct score_tools_signal_notice {
    struct score_tools_header header;
    uint32_t type;                     /* SCORE_TOOLS_NOTICE_TYPE_* */
    uint32_t reserved;
    uint32_t signal;                   /* Number of the signal. */
    uint32_t thread;                   /* Thread that has stopped. */
    uint64_t instruction;              /* Its instruction address. */
    uint64_t access;                   /* Address of the access, for faults and watchpoints. */
    uint32_t reason;                   /* SCORE_TOOLS_SIGNAL_REASON_* */
    uint32_t execute_mode;             /* Speculation: always 0. */
    uint64_t restart[4];               /* Speculation: always 0. */
};

/* A notice of the end of a process. */
struct score_tools_exit_notice {
    struct score_tools_header header;
    uint32_t type;                     /* SCORE_TOOLS_NOTICE_TYPE_* */
    uint32_t reserved;
    int32_t status;                    /* Its status, as wait(2) returns it. */
};

/* A notice about Control authority. */
struct score_tools_control_notice {
    struct score_tools_header header;
    uint32_t type;                     /* SCORE_TOOLS_NOTICE_TYPE_* */
    uint32_t reserved;
    uint32_t tool;                     /* Number of the other tool. */
    uint8_t tag[8];                    /* Its tag. */
    uint8_t priority;                  /* Its priority. */
    uint8_t reserved1[3];
    uint32_t reason;                   /* SCORE_TOOLS_CONTROL_REASON_* */
};

/* The descriptor of a command. */
struct score_tools_command_descriptor {
    uint16_t kind;         /* SCORE_TOOLS_CMD_*; in an acknowledgement that number plus 1. */
    uint16_t reserved;     /* Not used. */
    uint32_t offset;       /* Offset of its data in the message. */
    uint32_t length;       /* Bytes of its data. */
    uint32_t return_code;  /* SCORE_TOOLS_CC_*, in an acknowledgement. */
};

/* No data except the thread id. */
struct score_tools_no_data {
    uint32_t thread;
};

/* The special registers. */
struct score_tools_special_registers {
    uint32_t thread, reserved;
    uint64_t values[SCORE_TOOLS_SPECIAL_REGISTERS];  /* By SCORE_TOOLS_SPECIAL_REGISTER_*. */
};

/* The general purpose registers. */
struct score_tools_general_registers {
    uint32_t thread, reserved;
    uint64_t values[SCORE_TOOLS_GENERAL_REGISTERS];  /* By SCORE_TOOLS_GENERAL_REGISTER_*. */
};

/* The debug registers. */
struct score_tools_debug_registers {
    uint32_t thread, reserved;
    uint64_t values[SCORE_TOOLS_DEBUG_REGISTERS];  /* DR0 to DR7. DR4 and DR5 are 0. */
};

/* The head of an XSAVE area: its length in bytes at 16, the area from 24. */
struct score_tools_float_registers_head {
    uint32_t thread, reserved;
    uint64_t features;          /* State components of the area (XCR0). */
    uint32_t count;             /* Bytes of the area. */
};
#define SCORE_TOOLS_FLOAT_REGISTERS_HEAD_TAIL 24

/* A new value of a general purpose register. */
struct score_tools_set_general {
    uint32_t thread, reserved;
    uint32_t selection;         /* The register. */
    uint32_t reserved1;
    uint64_t value;             /* The value. */
};

/* A new value of a special register. */
struct score_tools_set_special {
    uint32_t thread, reserved;
    uint32_t selection;         /* The register. */
    uint32_t reserved1;
    uint64_t value;             /* The value. */
};

/* A new value of a debug register. */
struct score_tools_set_debug {
    uint32_t thread, reserved;
    uint32_t selection;         /* The register. */
    uint32_t reserved1;
    uint64_t value;             /* The value. */
};

/* A new value of a floating point register. */
struct score_tools_set_float {
    uint32_t thread, reserved;
    uint32_t selection;         /* The register. */
    uint32_t reserved1;
    uint8_t value[64];          /* The value, as many bytes as the register has. */
};

/* The memory that Get Memory reads. */
struct score_tools_memory_range {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte. */
    uint32_t length;            /* Bytes, 1 to 65,024. */
    uint32_t access;            /* No effect. */
};

/* The head of memory that was read: number of bytes at 16, the bytes from 20. */
struct score_tools_memory_head {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte. */
    uint32_t count;             /* Number of bytes. */
};
#define SCORE_TOOLS_MEMORY_HEAD_TAIL 20

/* The memory that Copy Memory copies to the shared memory, and in the answer the memory that it has
 * copied. SCORE_TOOLS_CC_LENGTH_ERROR: the bytes do not fit into the shared memory.
 * SCORE_TOOLS_CC_ADDRESS_ERROR: the first byte cannot be read. */
struct score_tools_memory_copy {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte. */
    uint32_t length;            /* Bytes; in the answer only those before an unreadable page. */
    uint32_t offset;            /* Offset of the first byte in the shared memory. */
};

/* The head of memory to be written: number of bytes at 16, the bytes from 28. */
struct score_tools_set_memory_head {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte. */
    uint32_t count;             /* Number of bytes. */
    uint32_t access;            /* No effect. */
    uint32_t shared;            /* SCORE_TOOLS_SHARED_ACCESS_* */
};
#define SCORE_TOOLS_SET_MEMORY_HEAD_TAIL 28

/* The memory that Set Memory has written. */
struct score_tools_written_memory {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte. */
    uint32_t length;            /* Bytes. */
};

/* The head of a list of threads: their number at 8, entries from 12. */
struct score_tools_thread_list_head {
    uint32_t thread, reserved;
    uint32_t count;             /* Number of entries. */
};
#define SCORE_TOOLS_THREAD_LIST_HEAD_TAIL 12

/* A thread of the process. */
struct score_tools_thread_entry {
    uint32_t tid;    /* Its id in the host's PID namespace. */
    uint32_t flags;  /* SCORE_TOOLS_COMMUNICATION_THREAD, or 0. */
};

/* The head of the auxiliary vector: number of words at 8, words from 16. */
struct score_tools_aux_vector_head {
    uint32_t thread, reserved;
    uint32_t count;             /* Number of words. */
};
#define SCORE_TOOLS_AUX_VECTOR_HEAD_TAIL 16

/* A process. */
struct score_tools_process_data {
    uint32_t thread, reserved;
    uint32_t rank;                  /* Its rank. */
    uint32_t tgid;                  /* Its thread group. */
    /* A: number of the host in the job; B to E: 0; T: number of the process on the host. */
    uint32_t coordinates[6];
    uint64_t shared_memory[2];      /* Begin and end of shared memory. */
    uint64_t persistent_memory[2];  /* Not on Linux: 0. */
    uint64_t heap[2];               /* Begin and end of the heap. */
    uint64_t heap_break;            /* The end of the used heap. */
    uint64_t mappings[2];           /* Lowest and highest mapping. */
    int64_t job_seconds;            /* Time that the job has run, in seconds. */
    int64_t job_microseconds;       /* The fraction of a second, in microseconds. */
};

/* A thread. Its frames follow: their number at 64, entries from 72. */
struct score_tools_thread_data_head {
    uint32_t thread, reserved;
    int32_t core;                /* Core on which it runs, or has run last. */
    int32_t core_thread;         /* Hardware thread of the core. */
    uint32_t state;              /* SCORE_TOOLS_THREAD_STATE_* */
    uint32_t tool_state;         /* SCORE_TOOLS_TOOL_STATE_* */
    uint32_t speculative_state;  /* Always 0. */
    uint32_t reserved1;
    uint64_t guard[2];           /* Begin and end of the guard page of its stack. */
    uint64_t stack_start;        /* Address where its stack begins. */
    uint64_t stack_current;      /* Its stack pointer. */
    uint32_t count;              /* Number of frames. */
};
#define SCORE_TOOLS_THREAD_DATA_HEAD_TAIL 72

/* A frame of a stack. */
struct score_tools_frame_entry {
    uint64_t frame;           /* The address of the frame. */
    uint64_t return_address;  /* The return address. */
};

/* The head of a list of file names: their number at 8, the names from 12. */
struct score_tools_file_names_head {
    uint32_t thread, reserved;
    uint32_t count;             /* Number of names. */
};
#define SCORE_TOOLS_FILE_NAMES_HEAD_TAIL 12

/* The file of Get File Stat Data. */
struct score_tools_file_stat_path {
    uint32_t thread, reserved;
    char path[SCORE_TOOLS_PATH_LEN];  /* Its path in the job's directory. */
};

/* The struct stat of x86-64. */
struct score_tools_file_stat {
    uint32_t thread, reserved;
    uint64_t device;            /* The file system. */
    uint64_t inode;             /* The inode. */
    uint64_t links;             /* Number of links. */
    uint32_t mode;              /* Type and permissions. */
    uint32_t uid;               /* Owner. */
    uint32_t gid;               /* Group. */
    uint32_t reserved1;
    uint64_t special_device;    /* The device, if it is one. */
    int64_t size;               /* Bytes. */
    int64_t block_size;         /* Bytes of a block. */
    int64_t blocks;             /* Number of blocks of 512 bytes. */
    int64_t accessed[2];        /* Last access: seconds, nanoseconds. */
    int64_t modified[2];        /* Last change of the contents. */
    int64_t changed[2];         /* Last change of the state. */
};

/* The part of a file that Get File Contents reads. */
struct score_tools_file_range {
    uint32_t thread, reserved;
    char path[SCORE_TOOLS_PATH_LEN];  /* Its path in the job's directory. */
    uint64_t offset;                  /* The first byte. */
    uint64_t number;                  /* Bytes, 1 to 65,024. */
};

/* The head of a part of a file: number of bytes at 8, the bytes from 16. */
struct score_tools_file_contents_head {
    uint32_t thread, reserved;
    uint32_t count;             /* Number of bytes. */
};
#define SCORE_TOOLS_FILE_CONTENTS_HEAD_TAIL 16

/* The SIGTRAP handler of the process. */
struct score_tools_trap_handler {
    uint32_t thread, reserved;
    uint64_t address;           /* The address of its code. */
};

/* The memory that Allocate Memory is to allocate. */
struct score_tools_allocation_size {
    uint32_t thread, reserved;
    uint64_t size;              /* Bytes. */
};

/* The memory that Allocate Memory has allocated. */
struct score_tools_allocated_memory {
    uint32_t thread, reserved;
    uint64_t address;           /* Its address. */
};

/* The memory that Free Memory frees. */
struct score_tools_freed_memory {
    uint32_t thread, reserved;
    uint64_t address;           /* Its address. */
    uint64_t size;              /* Bytes. */
};

/* A signal. */
struct score_tools_signal_number {
    uint32_t thread, reserved;
    uint32_t signal;            /* 1 to 64; in Set Continuation Signal also 0 for no signal. */
};

/* Preferences of a process. */
struct score_tools_preferences {
    uint32_t thread, reserved;
    uint32_t fast_breakpoints;  /* SCORE_TOOLS_PREFERENCE_* */
    uint32_t fast_watchpoints;  /* SCORE_TOOLS_PREFERENCE_* */
    uint32_t trap_mode;         /* SCORE_TOOLS_TRAP_MODE_* */
};

/* A new breakpoint. */
struct score_tools_new_breakpoint {
    uint32_t thread, reserved;
    uint64_t address;           /* The address of the instruction. */
    uint32_t kind;              /* SCORE_TOOLS_BREAKPOINT_KIND_* */
};

/* A breakpoint to be removed. */
struct score_tools_old_breakpoint {
    uint32_t thread, reserved;
    uint64_t address;           /* The address of the instruction. */
    uint32_t instruction;       /* The original four bytes at this address. */
};

/* A new watchpoint. */
struct score_tools_new_watchpoint {
    uint32_t thread, reserved;
    uint64_t address;           /* The first byte, aligned to the length. */
    uint32_t length;            /* Bytes: a power of two. */
    uint32_t kind;              /* SCORE_TOOLS_WATCH_TYPE_* */
};

/* A watchpoint to be removed. */
struct score_tools_old_watchpoint {
    uint32_t thread, reserved;
    uint64_t address;           /* Its first byte. */
};

/* An option of Release Control. */
struct score_tools_release_option {
    uint32_t thread, reserved;
    uint32_t notify;            /* SCORE_TOOLS_RELEASE_NOTIFY_* */
};

/* The compiler checks the layout, except in C99, which has no static assertion. A test compares the
 * layouts in C and in Rust. */
#if defined(__cplusplus)
#define SCORE_TOOLS_ASSERT_(condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define SCORE_TOOLS_ASSERT_(condition) _Static_assert(condition, #condition)
#else
#define SCORE_TOOLS_ASSERT_(condition) struct score_tools_no_assertion
#endif
#define SCORE_TOOLS_SIZE_(name, size) SCORE_TOOLS_ASSERT_(sizeof(struct score_tools_##name) == size)
#define SCORE_TOOLS_AT_(name, member, place)                                                       \
    SCORE_TOOLS_ASSERT_(offsetof(struct score_tools_##name, member) == place)

SCORE_TOOLS_AT_(header, service, 0); SCORE_TOOLS_AT_(header, version, 1);
SCORE_TOOLS_AT_(header, kind, 2); SCORE_TOOLS_AT_(header, rank, 4);
SCORE_TOOLS_AT_(header, sequence, 8); SCORE_TOOLS_AT_(header, return_code, 12);
SCORE_TOOLS_AT_(header, error_code, 16); SCORE_TOOLS_AT_(header, length, 20);
SCORE_TOOLS_AT_(header, job, 24); SCORE_TOOLS_AT_(header, tool, 32); SCORE_TOOLS_SIZE_(header, 40);
SCORE_TOOLS_AT_(attach, tag, 40); SCORE_TOOLS_AT_(attach, priority, 48);
SCORE_TOOLS_AT_(attach, select, 52); SCORE_TOOLS_SIZE_(attach, 56);
SCORE_TOOLS_AT_(detach, select, 40); SCORE_TOOLS_SIZE_(detach, 48);
SCORE_TOOLS_AT_(rank_list_head, count, 40); SCORE_TOOLS_SIZE_(rank_list_head, 48);
SCORE_TOOLS_AT_(control, notify_set, 40); SCORE_TOOLS_AT_(control, signal, 48);
SCORE_TOOLS_AT_(control, start_notice, 52); SCORE_TOOLS_AT_(control, trap_mode, 56);
SCORE_TOOLS_AT_(control, watch_policy, 60); SCORE_TOOLS_SIZE_(control, 64);
SCORE_TOOLS_AT_(control_ack, short_tool, 40); SCORE_TOOLS_AT_(control_ack, tag, 42);
SCORE_TOOLS_AT_(control_ack, priority, 50); SCORE_TOOLS_AT_(control_ack, controller, 52);
SCORE_TOOLS_SIZE_(control_ack, 56);
SCORE_TOOLS_AT_(shared_length, length, 40); SCORE_TOOLS_SIZE_(shared_length, 48);
SCORE_TOOLS_AT_(signal_notice, type, 40); SCORE_TOOLS_AT_(signal_notice, signal, 48);
SCORE_TOOLS_AT_(signal_notice, thread, 52); SCORE_TOOLS_AT_(signal_notice, instruction, 56);
SCORE_TOOLS_AT_(signal_notice, access, 64); SCORE_TOOLS_AT_(signal_notice, reason, 72);
SCORE_TOOLS_AT_(signal_notice, execute_mode, 76); SCORE_TOOLS_AT_(signal_notice, restart, 80);
SCORE_TOOLS_SIZE_(signal_notice, 112);
SCORE_TOOLS_AT_(exit_notice, type, 40); SCORE_TOOLS_AT_(exit_notice, status, 48);
SCORE_TOOLS_SIZE_(exit_notice, 56);
SCORE_TOOLS_AT_(control_notice, type, 40); SCORE_TOOLS_AT_(control_notice, tool, 48);
SCORE_TOOLS_AT_(control_notice, tag, 52); SCORE_TOOLS_AT_(control_notice, priority, 60);
SCORE_TOOLS_AT_(control_notice, reason, 64); SCORE_TOOLS_SIZE_(control_notice, 72);
SCORE_TOOLS_AT_(command_descriptor, kind, 0); SCORE_TOOLS_AT_(command_descriptor, reserved, 2);
SCORE_TOOLS_AT_(command_descriptor, offset, 4); SCORE_TOOLS_AT_(command_descriptor, length, 8);
SCORE_TOOLS_AT_(command_descriptor, return_code, 12); SCORE_TOOLS_SIZE_(command_descriptor, 16);
SCORE_TOOLS_SIZE_(no_data, 4);
SCORE_TOOLS_AT_(special_registers, values, 8); SCORE_TOOLS_SIZE_(special_registers, 128);
SCORE_TOOLS_AT_(general_registers, values, 8); SCORE_TOOLS_SIZE_(general_registers, 136);
SCORE_TOOLS_AT_(debug_registers, values, 8); SCORE_TOOLS_SIZE_(debug_registers, 72);
SCORE_TOOLS_AT_(float_registers_head, features, 8);
SCORE_TOOLS_AT_(float_registers_head, count, 16); SCORE_TOOLS_SIZE_(float_registers_head, 24);
SCORE_TOOLS_AT_(set_general, selection, 8); SCORE_TOOLS_AT_(set_general, value, 16);
SCORE_TOOLS_SIZE_(set_general, 24);
SCORE_TOOLS_AT_(set_special, selection, 8); SCORE_TOOLS_AT_(set_special, value, 16);
SCORE_TOOLS_SIZE_(set_special, 24);
SCORE_TOOLS_AT_(set_debug, selection, 8); SCORE_TOOLS_AT_(set_debug, value, 16);
SCORE_TOOLS_SIZE_(set_debug, 24);
SCORE_TOOLS_AT_(set_float, selection, 8); SCORE_TOOLS_AT_(set_float, value, 16);
SCORE_TOOLS_SIZE_(set_float, 80);
SCORE_TOOLS_AT_(memory_range, address, 8); SCORE_TOOLS_AT_(memory_range, length, 16);
SCORE_TOOLS_AT_(memory_range, access, 20); SCORE_TOOLS_SIZE_(memory_range, 24);
SCORE_TOOLS_AT_(memory_head, address, 8); SCORE_TOOLS_AT_(memory_head, count, 16);
SCORE_TOOLS_SIZE_(memory_head, 24);
SCORE_TOOLS_AT_(memory_copy, address, 8); SCORE_TOOLS_AT_(memory_copy, length, 16);
SCORE_TOOLS_AT_(memory_copy, offset, 20); SCORE_TOOLS_SIZE_(memory_copy, 24);
SCORE_TOOLS_AT_(set_memory_head, address, 8); SCORE_TOOLS_AT_(set_memory_head, count, 16);
SCORE_TOOLS_AT_(set_memory_head, access, 20); SCORE_TOOLS_AT_(set_memory_head, shared, 24);
SCORE_TOOLS_SIZE_(set_memory_head, 32);
SCORE_TOOLS_AT_(written_memory, address, 8); SCORE_TOOLS_AT_(written_memory, length, 16);
SCORE_TOOLS_SIZE_(written_memory, 24);
SCORE_TOOLS_AT_(thread_list_head, count, 8); SCORE_TOOLS_SIZE_(thread_list_head, 12);
SCORE_TOOLS_AT_(thread_entry, tid, 0); SCORE_TOOLS_AT_(thread_entry, flags, 4);
SCORE_TOOLS_SIZE_(thread_entry, 8);
SCORE_TOOLS_AT_(aux_vector_head, count, 8); SCORE_TOOLS_SIZE_(aux_vector_head, 12);
SCORE_TOOLS_AT_(process_data, rank, 8); SCORE_TOOLS_AT_(process_data, tgid, 12);
SCORE_TOOLS_AT_(process_data, coordinates, 16); SCORE_TOOLS_AT_(process_data, shared_memory, 40);
SCORE_TOOLS_AT_(process_data, persistent_memory, 56); SCORE_TOOLS_AT_(process_data, heap, 72);
SCORE_TOOLS_AT_(process_data, heap_break, 88); SCORE_TOOLS_AT_(process_data, mappings, 96);
SCORE_TOOLS_AT_(process_data, job_seconds, 112);
SCORE_TOOLS_AT_(process_data, job_microseconds, 120); SCORE_TOOLS_SIZE_(process_data, 128);
SCORE_TOOLS_AT_(thread_data_head, core, 8); SCORE_TOOLS_AT_(thread_data_head, core_thread, 12);
SCORE_TOOLS_AT_(thread_data_head, state, 16); SCORE_TOOLS_AT_(thread_data_head, tool_state, 20);
SCORE_TOOLS_AT_(thread_data_head, speculative_state, 24);
SCORE_TOOLS_AT_(thread_data_head, guard, 32); SCORE_TOOLS_AT_(thread_data_head, stack_start, 48);
SCORE_TOOLS_AT_(thread_data_head, stack_current, 56); SCORE_TOOLS_AT_(thread_data_head, count, 64);
SCORE_TOOLS_SIZE_(thread_data_head, 72);
SCORE_TOOLS_AT_(frame_entry, frame, 0); SCORE_TOOLS_AT_(frame_entry, return_address, 8);
SCORE_TOOLS_SIZE_(frame_entry, 16);
SCORE_TOOLS_AT_(file_names_head, count, 8); SCORE_TOOLS_SIZE_(file_names_head, 12);
SCORE_TOOLS_AT_(file_stat_path, path, 8); SCORE_TOOLS_SIZE_(file_stat_path, 136);
SCORE_TOOLS_AT_(file_stat, device, 8); SCORE_TOOLS_AT_(file_stat, inode, 16);
SCORE_TOOLS_AT_(file_stat, links, 24); SCORE_TOOLS_AT_(file_stat, mode, 32);
SCORE_TOOLS_AT_(file_stat, uid, 36); SCORE_TOOLS_AT_(file_stat, gid, 40);
SCORE_TOOLS_AT_(file_stat, special_device, 48); SCORE_TOOLS_AT_(file_stat, size, 56);
SCORE_TOOLS_AT_(file_stat, block_size, 64); SCORE_TOOLS_AT_(file_stat, blocks, 72);
SCORE_TOOLS_AT_(file_stat, accessed, 80); SCORE_TOOLS_AT_(file_stat, modified, 96);
SCORE_TOOLS_AT_(file_stat, changed, 112); SCORE_TOOLS_SIZE_(file_stat, 128);
SCORE_TOOLS_AT_(file_range, path, 8); SCORE_TOOLS_AT_(file_range, offset, 136);
SCORE_TOOLS_AT_(file_range, number, 144); SCORE_TOOLS_SIZE_(file_range, 152);
SCORE_TOOLS_AT_(file_contents_head, count, 8); SCORE_TOOLS_SIZE_(file_contents_head, 12);
SCORE_TOOLS_AT_(trap_handler, address, 8); SCORE_TOOLS_SIZE_(trap_handler, 16);
SCORE_TOOLS_AT_(allocation_size, size, 8); SCORE_TOOLS_SIZE_(allocation_size, 16);
SCORE_TOOLS_AT_(allocated_memory, address, 8); SCORE_TOOLS_SIZE_(allocated_memory, 16);
SCORE_TOOLS_AT_(freed_memory, address, 8); SCORE_TOOLS_AT_(freed_memory, size, 16);
SCORE_TOOLS_SIZE_(freed_memory, 24);
SCORE_TOOLS_AT_(signal_number, signal, 8); SCORE_TOOLS_SIZE_(signal_number, 12);
SCORE_TOOLS_AT_(preferences, fast_breakpoints, 8);
SCORE_TOOLS_AT_(preferences, fast_watchpoints, 12); SCORE_TOOLS_AT_(preferences, trap_mode, 16);
SCORE_TOOLS_SIZE_(preferences, 20);
SCORE_TOOLS_AT_(new_breakpoint, address, 8); SCORE_TOOLS_AT_(new_breakpoint, kind, 16);
SCORE_TOOLS_SIZE_(new_breakpoint, 24);
SCORE_TOOLS_AT_(old_breakpoint, address, 8); SCORE_TOOLS_AT_(old_breakpoint, instruction, 16);
SCORE_TOOLS_SIZE_(old_breakpoint, 24);
SCORE_TOOLS_AT_(new_watchpoint, address, 8); SCORE_TOOLS_AT_(new_watchpoint, length, 16);
SCORE_TOOLS_AT_(new_watchpoint, kind, 20); SCORE_TOOLS_SIZE_(new_watchpoint, 24);
SCORE_TOOLS_AT_(old_watchpoint, address, 8); SCORE_TOOLS_SIZE_(old_watchpoint, 16);
SCORE_TOOLS_AT_(release_option, notify, 8); SCORE_TOOLS_SIZE_(release_option, 12);

#undef SCORE_TOOLS_AT_
#undef SCORE_TOOLS_SIZE_
#undef SCORE_TOOLS_ASSERT_

#endif /* SCORE_SCORE_TOOLS_H */
