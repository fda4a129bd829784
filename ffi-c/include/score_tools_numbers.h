/*
 * score_tools_numbers.h - the numbers in the messages of score_tools.h, which includes this file.
 */
#ifndef SCORE_SCORE_TOOLS_NUMBERS_H
#define SCORE_SCORE_TOOLS_NUMBERS_H

#define SCORE_TOOLS_SERVICE 5
#define SCORE_TOOLS_VERSION 7
#define SCORE_TOOLS_MAX_MESSAGE 65536
#define SCORE_TOOLS_COMMANDS 40
#define SCORE_TOOLS_DESCRIPTORS 44
#define SCORE_TOOLS_DATA 300
#define SCORE_TOOLS_MAX_COMMANDS 16

/* The largest number of bytes of memory or of a file in a command. */
#define SCORE_TOOLS_MAX_MEMORY 65024
/* The largest number of bytes of memory that a tool can share with the service. */
#define SCORE_TOOLS_MAX_SHARED 4194304
/* Bytes of a path in a command, including its NUL. */
#define SCORE_TOOLS_PATH_LEN 128
/* The highest priority, and the largest number of tools of a process. */
#define SCORE_TOOLS_MAX_PRIORITY 99
#define SCORE_TOOLS_MAX_TOOLS 4
/* The first number of tools that start_tool did not start. */
#define SCORE_TOOLS_FIRST_OWN_TOOL 0x80000000u
/* Bit in the flags of a thread: it is a communication thread of libpm. */
#define SCORE_TOOLS_COMMUNICATION_THREAD 1u

#define SCORE_TOOLS_GENERAL_REGISTERS 16
#define SCORE_TOOLS_SPECIAL_REGISTERS 15
#define SCORE_TOOLS_DEBUG_REGISTERS 8

/* Selections of one floating point register, by its number. */
#define SCORE_TOOLS_X87_REGISTER(number) (0x000u + (number))
#define SCORE_TOOLS_XMM_REGISTER(number) (0x100u + (number))
#define SCORE_TOOLS_YMM_REGISTER(number) (0x200u + (number))
#define SCORE_TOOLS_ZMM_REGISTER(number) (0x300u + (number))
#define SCORE_TOOLS_MASK_REGISTER(number) (0x400u + (number))

/* The types of messages. */
enum {
    SCORE_TOOLS_MSG_ERROR_ACK = 5000,    /* The answer to a message that cannot be read. */
    SCORE_TOOLS_MSG_ATTACH = 5001,       /* A tool attaches to one process, or to all. */
    SCORE_TOOLS_MSG_ATTACH_ACK = 5002,   /* The answer to Attach. */
    SCORE_TOOLS_MSG_DETACH = 5003,       /* A tool detaches from one process, or all. */
    SCORE_TOOLS_MSG_DETACH_ACK = 5004,   /* The answer to Detach. */
    SCORE_TOOLS_MSG_QUERY = 5005,        /* A tool reads state. */
    SCORE_TOOLS_MSG_QUERY_ACK = 5006,    /* The answer to Query. */
    SCORE_TOOLS_MSG_UPDATE = 5007,       /* A tool changes state. */
    SCORE_TOOLS_MSG_UPDATE_ACK = 5008,   /* The answer to Update. */
    SCORE_TOOLS_MSG_NOTIFY = 5011,       /* The service reports an event. */
    SCORE_TOOLS_MSG_NOTIFY_ACK = 5012,   /* A tool may acknowledge Notify; this has no effect. */
    SCORE_TOOLS_MSG_CONTROL = 5013,      /* A tool requests Control authority. */
    SCORE_TOOLS_MSG_CONTROL_ACK = 5014,  /* The answer to Control. */
    /* A tool shares memory with the service, for COPY_MEMORY. Not a message of CDTI. */
    SCORE_TOOLS_MSG_SHARE_MEMORY = 5101,
    SCORE_TOOLS_MSG_SHARE_MEMORY_ACK = 5102,  /* The answer to ShareMemory. */
};

/* Results of messages. Codes that only the daemons of Blue Gene/Q used are not here. */
enum {
    /* The message was processed. Each of its commands has its own code. */
    SCORE_TOOLS_RC_SUCCESS = 0,
    /* The service in the header is not tool control. */
    SCORE_TOOLS_RC_WRONG_SERVICE = 1,
    /* The type of message does not exist, or a tool may not send it. */
    SCORE_TOOLS_RC_UNSUPPORTED_TYPE = 2,
    /* The job in the header is not the job of this service. */
    SCORE_TOOLS_RC_JOB_ID_ERROR = 3,
    /* There is no such rank on this host, or its process has not started. */
    SCORE_TOOLS_RC_PROCESS_ID_ERROR = 4,
    /* The request failed; the error code is an errno value. */
    SCORE_TOOLS_RC_REQUEST_FAILED = 5,
    /* The service does not support this version. */
    SCORE_TOOLS_RC_VERSION_MISMATCH = 9,
    SCORE_TOOLS_RC_TOOL_START_ERROR = 27,               /* A tool could not be started. */
    SCORE_TOOLS_RC_TOOL_AUTHORITY_ERROR = 28,           /* The user may not do this. */
    /* The tool in the header is not the tool of this connection, or is not a valid number. */
    SCORE_TOOLS_RC_TOOL_ID_ERROR = 29,
    SCORE_TOOLS_RC_TOOL_TIMEOUT_EXPIRED = 30,           /* A tool did not answer in time. */
    SCORE_TOOLS_RC_TOOL_PRIORITY_CONFLICT = 31,         /* Another tool has this priority. */
    /* Four tools are attached to the process. */
    SCORE_TOOLS_RC_TOOL_MAX_ATTACHED_EXCEEDED = 32,
    /* A tool with this number is attached to the process. */
    SCORE_TOOLS_RC_TOOL_ID_CONFLICT = 33,
    SCORE_TOOLS_RC_JOBS_OBJECT_ERROR = 35,              /* The job's table cannot be read. */
    SCORE_TOOLS_RC_TOOL_PRIORITY_ERROR = 36,            /* The priority is above 99. */
    /* The tool is not attached to the process. */
    SCORE_TOOLS_RC_TOOL_RANK_NOT_FOUND = 37,
    SCORE_TOOLS_RC_TOOL_NUMBER_OF_CMDS_EXCEEDED = 44,   /* The message has more than 16 commands. */
    SCORE_TOOLS_RC_REQUEST_INCOMPLETE = 45,             /* The message ends too early. */
    SCORE_TOOLS_RC_TOOL_CONTROL_CONFLICT = 51,          /* Another tool has Control authority. */
    /* The message has several action commands. */
    SCORE_TOOLS_RC_TOOL_CONFLICTING_CMDS = 53,
    SCORE_TOOLS_RC_TOOL_CONTROL_REQUIRED = 54,          /* The tool has no Control authority. */
    /* The tool must release Control authority first. */
    SCORE_TOOLS_RC_TOOL_CONTROL_RELEASE_REQUIRED = 55,
    SCORE_TOOLS_RC_TOOL_PROCESS_EXITING = 57,           /* The process exits, or has exited. */
};

/* Results of commands. */
enum {
    SCORE_TOOLS_CC_SUCCESS = 0,                   /* Done. */
    /* The process has no such thread, or the thread is not in the state that the command needs. */
    SCORE_TOOLS_CC_THREAD_INVALID = 1,
    /* This type of message does not have this command. */
    SCORE_TOOLS_CC_COMMAND_INVALID = 2,
    SCORE_TOOLS_CC_TIMEOUT = 3,                   /* The thread did not respond in time. */
    /* The answer does not fit into the acknowledgement. */
    SCORE_TOOLS_CC_ALLOCATION_ERROR = 4,
    SCORE_TOOLS_CC_PARAMETER_ERROR = 5,           /* A parameter is invalid. */
    SCORE_TOOLS_CC_BREAKPOINT_FAILED = 6,         /* A breakpoint could not be set or removed. */
    SCORE_TOOLS_CC_ADDRESS_ERROR = 7,             /* The address is invalid. */
    /* A length is invalid, or the data of the command are too short. */
    SCORE_TOOLS_CC_LENGTH_ERROR = 8,
    SCORE_TOOLS_CC_HARDWARE_UNAVAILABLE = 9,      /* No hardware resource is free. */
    SCORE_TOOLS_CC_MEMORY_UNAVAILABLE = 10,       /* Memory could not be allocated. */
    SCORE_TOOLS_CC_FILE_NOT_FOUND = 11,           /* There is no such file. */
    /* The command conflicts with another command of the message. */
    SCORE_TOOLS_CC_CONFLICT = 12,
    SCORE_TOOLS_CC_PENDING_NOTIFY = 13,           /* A notice of a signal is pending. */
    SCORE_TOOLS_CC_PREVIOUS_COMMAND_FAILED = 14,  /* An earlier command of the message failed. */
    SCORE_TOOLS_CC_PROCESS_EXITING = 15,          /* The process exits. */
    SCORE_TOOLS_CC_WATCH_CONFLICT = 16,           /* The range overlaps a watchpoint. */
};

/*
 * Commands of Query: numbers of requests. The number of the answer is the next one. The comments
 * name the data of request and answer.
 */
enum {
    SCORE_TOOLS_CMD_GET_SPECIAL_REGISTERS = 101,  /* no_data -> special_registers */
    SCORE_TOOLS_CMD_GET_GENERAL_REGISTERS = 103,  /* no_data -> general_registers */
    SCORE_TOOLS_CMD_GET_FLOAT_REGISTERS = 105,    /* no_data -> float_registers_head */
    SCORE_TOOLS_CMD_GET_DEBUG_REGISTERS = 107,    /* no_data -> debug_registers */
    SCORE_TOOLS_CMD_GET_MEMORY = 109,             /* memory_range -> memory_head */
    SCORE_TOOLS_CMD_GET_THREAD_LIST = 111,        /* no_data -> thread_list_head */
    SCORE_TOOLS_CMD_GET_AUX_VECTORS = 113,        /* no_data -> aux_vector_head */
    SCORE_TOOLS_CMD_GET_PROCESS_DATA = 115,       /* no_data -> process_data */
    SCORE_TOOLS_CMD_GET_THREAD_DATA = 117,        /* no_data -> thread_data_head */
    SCORE_TOOLS_CMD_GET_FILE_NAMES = 121,         /* no_data -> file_names_head */
    SCORE_TOOLS_CMD_GET_FILE_STAT = 123,          /* file_stat_path -> file_stat */
    SCORE_TOOLS_CMD_GET_FILE_CONTENTS = 125,      /* file_range -> file_contents_head */
    /* memory_copy -> memory_copy. Not a command of CDTI. */
    SCORE_TOOLS_CMD_COPY_MEMORY = 127,
};

/*
 * Commands of Update: request -> answer. A message may have one of CONTINUE_PROCESS, STEP_THREAD,
 * RELEASE_CONTROL and SUSPEND_PROCESS, as its last command.
 */
enum {
    SCORE_TOOLS_CMD_SET_GENERAL_REGISTER = 201,     /* set_general -> no_data */
    SCORE_TOOLS_CMD_SET_FLOAT_REGISTER = 203,       /* set_float -> no_data */
    SCORE_TOOLS_CMD_SET_DEBUG_REGISTER = 205,       /* set_debug -> no_data */
    SCORE_TOOLS_CMD_SET_MEMORY = 207,               /* set_memory_head -> written_memory */
    SCORE_TOOLS_CMD_HOLD_THREAD = 209,              /* no_data -> no_data */
    SCORE_TOOLS_CMD_RELEASE_THREAD = 211,           /* no_data -> no_data */
    SCORE_TOOLS_CMD_INSTALL_TRAP_HANDLER = 213,     /* trap_handler -> no_data */
    SCORE_TOOLS_CMD_ALLOCATE_MEMORY = 215,          /* allocation_size -> allocated_memory */
    SCORE_TOOLS_CMD_SEND_SIGNAL = 217,              /* signal_number -> no_data */
    SCORE_TOOLS_CMD_CONTINUE_PROCESS = 219,         /* no_data -> no_data */
    SCORE_TOOLS_CMD_STEP_THREAD = 221,              /* no_data -> no_data */
    SCORE_TOOLS_CMD_SET_BREAKPOINT = 223,           /* new_breakpoint -> no_data */
    SCORE_TOOLS_CMD_RESET_BREAKPOINT = 225,         /* old_breakpoint -> no_data */
    SCORE_TOOLS_CMD_SET_WATCHPOINT = 227,           /* new_watchpoint -> no_data */
    SCORE_TOOLS_CMD_RESET_WATCHPOINT = 229,         /* old_watchpoint -> no_data */
    SCORE_TOOLS_CMD_REMOVE_TRAP_HANDLER = 233,      /* trap_handler -> no_data */
    SCORE_TOOLS_CMD_SET_PREFERENCES = 235,          /* preferences -> no_data */
    SCORE_TOOLS_CMD_FREE_MEMORY = 237,              /* freed_memory -> no_data */
    SCORE_TOOLS_CMD_SET_SPECIAL_REGISTER = 239,     /* set_special -> no_data */
    SCORE_TOOLS_CMD_SET_GENERAL_REGISTERS = 241,    /* general_registers -> no_data */
    SCORE_TOOLS_CMD_SET_FLOAT_REGISTERS = 243,      /* float_registers_head -> no_data */
    SCORE_TOOLS_CMD_SET_DEBUG_REGISTERS = 245,      /* debug_registers -> no_data */
    SCORE_TOOLS_CMD_SET_SPECIAL_REGISTERS = 247,    /* special_registers -> no_data */
    SCORE_TOOLS_CMD_RELEASE_CONTROL = 249,          /* release_option -> no_data */
    SCORE_TOOLS_CMD_SET_CONTINUATION_SIGNAL = 251,  /* signal_number -> no_data */
    SCORE_TOOLS_CMD_SEND_SIGNAL_TO_PROCESS = 253,   /* signal_number -> no_data */
    SCORE_TOOLS_CMD_SUSPEND_PROCESS = 255,          /* no_data -> no_data */
};

/* The processes that Attach and Detach address. */
enum {
    SCORE_TOOLS_PROCESS_SELECT_RANK_IN_HEADER = 0,  /* The process whose rank is in the header. */
    /* All processes of the host that have not exited; on the socket of a rank, its process. */
    SCORE_TOOLS_PROCESS_SELECT_RANKS_IN_NODE = 1,
};

/* The first stop of a dynamic program, if a tool got authority before its start. */
enum {
    /* At the first instruction, which is in the dynamic loader. */
    SCORE_TOOLS_START_NOTICE_DYNAMIC_LOADER = 0,
    SCORE_TOOLS_START_NOTICE_ENTRY_POINT = 1,     /* At the entry point of the program. */
};

/* The instruction at which a watchpoint stops the thread. */
enum {
    SCORE_TOOLS_TRAP_MODE_NO_CHANGE = 0,     /* As before. */
    SCORE_TOOLS_TRAP_MODE_ON_ACCESS = 1,     /* At the access. x86-64 cannot do this. */
    SCORE_TOOLS_TRAP_MODE_AFTER_ACCESS = 2,  /* After the access. This is the default. */
};

/* Whether new threads inherit the watchpoints of the thread that creates them. */
enum {
    SCORE_TOOLS_WATCH_POLICY_PROPAGATE = 0,     /* New threads inherit the watchpoints (default). */
    SCORE_TOOLS_WATCH_POLICY_NO_PROPAGATE = 1,  /* New threads inherit no watchpoints. */
};

/* The types of notices. */
enum {
    SCORE_TOOLS_NOTICE_TYPE_SIGNAL = 0,       /* A signal, or a trap. */
    SCORE_TOOLS_NOTICE_TYPE_TERMINATION = 1,  /* The process has exited. */
    SCORE_TOOLS_NOTICE_TYPE_CONTROL = 2,      /* A change of Control authority. */
};

/* The reasons why a thread has stopped. */
enum {
    /* A signal that the program or another process has sent. */
    SCORE_TOOLS_SIGNAL_REASON_GENERIC = 0,
    SCORE_TOOLS_SIGNAL_REASON_BREAKPOINT = 1,        /* A breakpoint that a tool has set. */
    SCORE_TOOLS_SIGNAL_REASON_READ_WATCHPOINT = 2,   /* Watchpoint: the bytes have not changed. */
    SCORE_TOOLS_SIGNAL_REASON_WRITE_WATCHPOINT = 3,  /* Watchpoint: the bytes have changed. */
    SCORE_TOOLS_SIGNAL_REASON_STEP_COMPLETED = 4,    /* The end of Step Thread. */
};

/* The changes of Control authority. */
enum {
    SCORE_TOOLS_CONTROL_REASON_CONFLICT = 0,   /* Another tool has requested the authority. */
    SCORE_TOOLS_CONTROL_REASON_AVAILABLE = 1,  /* A tool has released the authority. */
};

/* Access to speculative memory. No effect, because x86-64 has one view of memory. */
enum {
    SCORE_TOOLS_SPECULATIVE_ACCESS_PERMITTED = 0,  /* Permitted. */
    SCORE_TOOLS_SPECULATIVE_ACCESS_FORBIDDEN = 1,  /* Forbidden. */
};

/* Whether Set Memory may write memory that processes share. */
enum {
    SCORE_TOOLS_SHARED_ACCESS_REFUSED = 0,  /* Set Memory returns an error. */
    SCORE_TOOLS_SHARED_ACCESS_ALLOWED = 1,  /* Permitted. */
};

/* The states of a thread. */
enum {
    SCORE_TOOLS_THREAD_STATE_RUN = 1,         /* The thread runs or is runnable. */
    SCORE_TOOLS_THREAD_STATE_SLEEP = 2,       /* The thread waits in a system call. */
    SCORE_TOOLS_THREAD_STATE_FUTEX_WAIT = 3,  /* The thread waits for a futex. */
    SCORE_TOOLS_THREAD_STATE_IDLE = 4,        /* Not on Linux. */
    SCORE_TOOLS_THREAD_STATE_FILE_LOCK = 5,   /* The thread waits for a lock of a file. */
};

/* The states of a thread that tools cause. */
enum {
    SCORE_TOOLS_TOOL_STATE_ACTIVE = 1,        /* The thread is neither held nor suspended. */
    SCORE_TOOLS_TOOL_STATE_HOLD = 2,          /* The thread is held by Hold Thread. */
    SCORE_TOOLS_TOOL_STATE_SUSPEND = 3,       /* The process is suspended. */
    SCORE_TOOLS_TOOL_STATE_HOLD_SUSPEND = 4,  /* Both. */
};

/* A preference of a process. */
enum {
    SCORE_TOOLS_PREFERENCE_NO_CHANGE = 0,  /* As before. */
    SCORE_TOOLS_PREFERENCE_DISABLE = 1,    /* Off. */
    SCORE_TOOLS_PREFERENCE_ENABLE = 2,     /* On. */
};

/* The accesses that a watchpoint reports. */
enum {
    SCORE_TOOLS_WATCH_TYPE_READ = 1,        /* Reads. */
    SCORE_TOOLS_WATCH_TYPE_WRITE = 2,       /* Writes. */
    SCORE_TOOLS_WATCH_TYPE_READ_WRITE = 3,  /* Both. */
};

/* Whether a tool that releases authority gets a notice when the next tool releases authority. */
enum {
    SCORE_TOOLS_RELEASE_NOTIFY_NO = 0,   /* No. */
    SCORE_TOOLS_RELEASE_NOTIFY_YES = 1,  /* Yes. */
};

/* The kinds of breakpoints. In memory, both are the byte int3. */
enum {
    SCORE_TOOLS_BREAKPOINT_KIND_NORMAL = 0xCC,  /* The tool gets a notice. */
    /* If fast breakpoints are enabled, the handler of the process gets SIGTRAP instead. */
    SCORE_TOOLS_BREAKPOINT_KIND_FAST = 0xCD03,
};

/* General purpose registers. The number is the index in the array. */
enum {
    SCORE_TOOLS_GENERAL_REGISTER_RAX = 0, SCORE_TOOLS_GENERAL_REGISTER_RBX = 1,
    SCORE_TOOLS_GENERAL_REGISTER_RCX = 2, SCORE_TOOLS_GENERAL_REGISTER_RDX = 3,
    SCORE_TOOLS_GENERAL_REGISTER_RSI = 4, SCORE_TOOLS_GENERAL_REGISTER_RDI = 5,
    SCORE_TOOLS_GENERAL_REGISTER_RBP = 6, SCORE_TOOLS_GENERAL_REGISTER_RSP = 7,
    SCORE_TOOLS_GENERAL_REGISTER_R8 = 8, SCORE_TOOLS_GENERAL_REGISTER_R9 = 9,
    SCORE_TOOLS_GENERAL_REGISTER_R10 = 10, SCORE_TOOLS_GENERAL_REGISTER_R11 = 11,
    SCORE_TOOLS_GENERAL_REGISTER_R12 = 12, SCORE_TOOLS_GENERAL_REGISTER_R13 = 13,
    SCORE_TOOLS_GENERAL_REGISTER_R14 = 14, SCORE_TOOLS_GENERAL_REGISTER_R15 = 15,
};

/* Special registers. The number is the index in the array. */
enum {
    SCORE_TOOLS_SPECIAL_REGISTER_RIP = 0,             /* The instruction address. */
    SCORE_TOOLS_SPECIAL_REGISTER_EFLAGS = 1,          /* Conditions and exceptions. */
    SCORE_TOOLS_SPECIAL_REGISTER_CS = 2,              /* Code segment. */
    SCORE_TOOLS_SPECIAL_REGISTER_SS = 3,              /* Stack segment. */
    SCORE_TOOLS_SPECIAL_REGISTER_DS = 4,              /* Data segment. */
    SCORE_TOOLS_SPECIAL_REGISTER_ES = 5,              /* Segment es. */
    SCORE_TOOLS_SPECIAL_REGISTER_FS = 6,              /* Segment fs. */
    SCORE_TOOLS_SPECIAL_REGISTER_GS = 7,              /* Segment gs. */
    SCORE_TOOLS_SPECIAL_REGISTER_FS_BASE = 8,         /* The base of fs: thread-local storage. */
    SCORE_TOOLS_SPECIAL_REGISTER_GS_BASE = 9,         /* The base of gs. */
    /* The number of the system call in which the thread is, or -1. */
    SCORE_TOOLS_SPECIAL_REGISTER_ORIG_RAX = 10,
    SCORE_TOOLS_SPECIAL_REGISTER_MXCSR = 11,          /* Control and status of SSE. */
    SCORE_TOOLS_SPECIAL_REGISTER_X87_CONTROL = 12,    /* The x87 control word. */
    SCORE_TOOLS_SPECIAL_REGISTER_X87_STATUS = 13,     /* The x87 status word. */
    /* The address of the fault at which the thread has stopped, or else 0. Set has no effect. */
    SCORE_TOOLS_SPECIAL_REGISTER_FAULT_ADDRESS = 14,
};

/* Debug registers that can be set. The number is the index in the array; 4 and 5 are 0. */
enum {
    SCORE_TOOLS_DEBUG_REGISTER_DR0 = 0,  /* Address 0. */
    SCORE_TOOLS_DEBUG_REGISTER_DR1 = 1,  /* Address 1. */
    SCORE_TOOLS_DEBUG_REGISTER_DR2 = 2,  /* Address 2. */
    SCORE_TOOLS_DEBUG_REGISTER_DR3 = 3,  /* Address 3. */
    SCORE_TOOLS_DEBUG_REGISTER_DR6 = 6,  /* Status. */
    SCORE_TOOLS_DEBUG_REGISTER_DR7 = 7,  /* Control. */
};

#endif /* SCORE_SCORE_TOOLS_NUMBERS_H */
