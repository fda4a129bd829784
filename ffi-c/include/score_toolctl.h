/*
 * score_toolctl.h - the client library of tool control, libscoretools.so (docs/dev/tools.md,
 * scoretools(3)).
 *
 * A connection leads to the tool control service of one host of a job. score_tools.h defines the
 * messages. One thread at a time may use a connection.
 *
 * Functions that return int return 0, a return code of the acknowledgement (SCORE_TOOLS_RC_*, above
 * 0), or a negative errno value: -ETIMEDOUT if the service does not answer for a minute, -EPIPE if
 * it has closed the connection. score_toolctl_error() returns the reason in words.
 *
 * The library also contains the callbacks of libthread_db, which <proc_service.h> declares.
 */
#ifndef SCORE_SCORE_TOOLCTL_H
#define SCORE_SCORE_TOOLCTL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <score_tools.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A connection. */
typedef struct score_toolctl score_toolctl;

/* A process, for libthread_db (td_ta_new) and for the functions of <proc_service.h>. */
struct ps_prochandle;

/* All ranks of the host. */
#define SCORE_TOOLCTL_ALL_RANKS (-1)
/* The most bytes that score_toolctl_view() reads. */
#define SCORE_TOOLCTL_MAX_VIEW (1 << 20)

/* A command of a Query or an Update. */
struct score_toolctl_command {
    uint16_t kind;         /* SCORE_TOOLS_CMD_* */
    uint16_t reserved;     /* 0 */
    uint32_t return_code;  /* OUT: SCORE_TOOLS_CC_* */
    const void *request;   /* Its data, which begin with the thread id. */
    size_t request_len;    /* Bytes of these data. */
    const void *answer;    /* OUT: data of the answer, valid until the next call, or NULL. */
    size_t answer_len;     /* OUT: bytes of the answer. */
};

/*
 * Connects a tool that start_tool or scrun has started to the service of its host. The environment
 * variables BG_JOBID, BG_TOOLID and SCORE_TOOL_DIR name the service. Returns NULL on failure, and
 * writes the reason to text, unless text is NULL.
 */
score_toolctl *score_toolctl_open(char *text, size_t text_len);

/*
 * Connects any process of the job's user, like score_toolctl_open().
 *   path IN a socket in the job's directories toolctl_rank or toolctl_node
 *   job  IN number of the job
 *   tool IN the number that start_tool has assigned, or 0
 */
score_toolctl *score_toolctl_connect(const char *path, uint64_t job, uint32_t tool, char *text,
                                     size_t text_len);

/*
 * Closes the connection; NULL has no effect. Without score_toolctl_leave() the service treats the
 * tool as dead. If the tool has Control authority, the service undoes the changes that the tool has
 * made. Otherwise these changes remain until no other tool is attached.
 */
void score_toolctl_close(score_toolctl *connection);

/*
 * Returns why the last call failed, with the object at fault and the remedy. The text is valid
 * until the next call.
 */
const char *score_toolctl_error(const score_toolctl *connection);

/* Returns the number of the tool. It is 0 before the tool attaches, if it was connected with 0. */
uint32_t score_toolctl_tool(const score_toolctl *connection);

/*
 * Returns a descriptor for poll(2). It is readable if the service has sent a notice. The library
 * may also have stored notices: before poll(2), call score_toolctl_notice() with 0 until it returns
 * -ETIMEDOUT.
 */
int score_toolctl_fd(const score_toolctl *connection);

/*
 * Attaches to a rank or to all ranks of the host.
 *   rank     IN  a rank, or SCORE_TOOLCTL_ALL_RANKS
 *   priority IN  0 to 99; no two tools of a process have the same priority
 *   tag      IN  name of the tool, at most 8 bytes
 *   ranks    OUT array for the attached ranks, or NULL
 *   number   IN  entries of the array; OUT number of attached ranks; may be NULL
 */
int score_toolctl_attach(score_toolctl *connection, int rank, int priority, const char *tag,
                         uint32_t *ranks, size_t *number);

/* Detaches from a rank, or from SCORE_TOOLCTL_ALL_RANKS. The changes of the tool remain. */
int score_toolctl_detach(score_toolctl *connection, int rank);

/*
 * Requests Control authority for a rank.
 *   settings IN  the settings, whose header is not used; NULL: the service reports no signals
 *   holder   OUT the message that names the tool that has authority; may be NULL
 * SCORE_TOOLS_RC_TOOL_CONTROL_CONFLICT: another tool has authority.
 */
int score_toolctl_control(score_toolctl *connection, uint32_t rank,
                          const struct score_tools_control *settings,
                          struct score_tools_control_ack *holder);

/* Releases Control authority. The changes of the tool remain, for the next tool with authority. */
int score_toolctl_release(score_toolctl *connection, uint32_t rank);

/*
 * Undoes all changes that this connection has made in a rank: breakpoints, watchpoints (also those
 * that new threads have inherited), memory, a trap handler, held threads. Then releases Control
 * authority. The program gets the signals of notices that the tool has not read. If something
 * cannot be undone, the tool keeps authority, and the result is not 0.
 */
int score_toolctl_clean_up(score_toolctl *connection, uint32_t rank);

/*
 * Calls score_toolctl_clean_up() for all ranks of which the tool has Control authority, then
 * score_toolctl_detach(). A tool calls this before it ends, and when it gets SIGTERM.
 */
int score_toolctl_leave(score_toolctl *connection);

/*
 * Carry out 1 to 16 commands. 0 means that the service has processed the message; the result of
 * each command is its return_code. score_toolctl_query() needs no authority.
 */
int score_toolctl_query(score_toolctl *connection, uint32_t rank,
                        struct score_toolctl_command *commands, size_t number);
int score_toolctl_update(score_toolctl *connection, uint32_t rank,
                         struct score_toolctl_command *commands, size_t number);

/*
 * Reads memory of a rank without a buffer of the tool. The kernel copies the bytes into memory that
 * the library shares with the service. To read much memory, use this function instead of
 * ps_pdread(). The tool must be attached to the rank.
 *   address IN  address in the process
 *   len     IN  1 to SCORE_TOOLCTL_MAX_VIEW bytes
 *   bytes   OUT the bytes, valid until the next call; NULL on failure
 * -EIO: the process does not have all of this memory; -EINVAL: len is out of range.
 */
int score_toolctl_view(score_toolctl *connection, uint32_t rank, uint64_t address, size_t len,
                       const void **bytes);

/*
 * Returns the next notice.
 *   milliseconds IN  time limit; 0: do not wait; -1: wait without limit
 *   notice       OUT the notice (struct score_tools_signal_notice and so on), valid until the next
 *                    call
 *   len          OUT its length in bytes
 * -ETIMEDOUT: there is no notice; -EINTR: a signal has interrupted the call.
 */
int score_toolctl_notice(score_toolctl *connection, int milliseconds, const void **notice,
                         size_t *len);

/*
 * Returns the process of a rank. It belongs to the connection, and is valid until the connection is
 * closed. To read the process the tool must be attached to the rank. All other functions also need
 * Control authority.
 */
struct ps_prochandle *score_toolctl_process(score_toolctl *connection, uint32_t rank);

/*
 * Returns the id of a thread in messages, from its id in td_thrinfo_t (ti_lid), which is the id in
 * the PID namespace of the process. 0: the process has no such thread.
 */
uint32_t score_toolctl_thread(struct ps_prochandle *process, pid_t id);

/*
 * Returns a text that explains an error of td_ta_new(), valid until the next call. For TD_VERSION
 * and TD_NOLIBTHREAD it names the glibc versions of the rank and of the tool.
 */
const char *score_toolctl_thread_db_error(struct ps_prochandle *process, int td_error);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SCORE_TOOLCTL_H */
