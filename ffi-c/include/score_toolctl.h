/*
 * score_toolctl.h - a tool's end of tool control (docs/tools.md, scoretools(3)): libscoretools.so.
 *
 * A connection leads to the tool control service of one host of a job. The messages are those of
 * score_tools.h. A connection is used by one thread at a time.
 *
 * Functions that return int return 0, a return code of the acknowledgement (SCORE_TOOLS_RC_*, above
 * 0), or a negative errno value: -ETIMEDOUT if the service does not answer for a minute, -EPIPE if
 * it has closed the connection. score_toolctl_error() has the reason in words.
 *
 * The library also has the callbacks of libthread_db, which <proc_service.h> declares.
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

/* A command of a Query or an Update. */
struct score_toolctl_command {
    uint16_t kind;         /* SCORE_TOOLS_CMD_* */
    uint16_t reserved;     /* 0 */
    uint32_t return_code;  /* OUT: SCORE_TOOLS_CC_* */
    const void *request;   /* Its data, which begin with the thread id, and their bytes. */
    size_t request_len;
    const void *answer;    /* OUT: data of the answer until the next call, or NULL. */
    size_t answer_len;     /* OUT: their bytes. */
};

/*
 * Connects a tool that start_tool or scrun has started to its host, by BG_JOBID, BG_TOOLID and
 * SCORE_TOOL_DIR. NULL: it failed; the reason is in the text, if it is not NULL.
 */
score_toolctl *score_toolctl_open(char *text, size_t text_len);

/*
 * The same for any process of the job's user. path: a socket in a directory of the job
 * (toolctl_rank or toolctl_node); tool: the number that start_tool has given, or 0.
 */
score_toolctl *score_toolctl_connect(const char *path, uint64_t job, uint32_t tool, char *text,
                                     size_t text_len);

/*
 * Closes the connection. Without score_toolctl_leave() the tool counts as dead: what it has set is
 * undone if it has Control authority, and stays as long as other tools are attached if it has not.
 * NULL is nothing.
 */
void score_toolctl_close(score_toolctl *connection);

/* Why the last call failed, with the object at fault and the remedy. Valid until the next call. */
const char *score_toolctl_error(const score_toolctl *connection);

/* The number of the tool: 0 until it is attached, if it had none. */
uint32_t score_toolctl_tool(const score_toolctl *connection);

/* A descriptor for poll(2): readable when score_toolctl_notice() may have a notice. */
int score_toolctl_fd(const score_toolctl *connection);

/*
 * Attaches to a rank, or to SCORE_TOOLCTL_ALL_RANKS, with this priority and this tag of at most 8
 * bytes. ranks: IN the places of the array, OUT the number of ranks; the array may be NULL, and so
 * may the number.
 */
int score_toolctl_attach(score_toolctl *connection, int rank, int priority, const char *tag,
                         uint32_t *ranks, size_t *number);

/* Detaches from a rank, or from SCORE_TOOLCTL_ALL_RANKS. What the tool has set stays. */
int score_toolctl_detach(score_toolctl *connection, int rank);

/*
 * Asks for Control authority for a rank. Of settings the header is not used; NULL: no signals are
 * notified. If another tool has authority the result is SCORE_TOOLS_RC_TOOL_CONTROL_CONFLICT.
 * holder: OUT the message that names the tool that has authority; or NULL.
 */
int score_toolctl_control(score_toolctl *connection, uint32_t rank,
                          const struct score_tools_control *settings,
                          struct score_tools_control_ack *holder);

/* Releases Control authority. What the tool has set stays, for the tool that takes it over. */
int score_toolctl_release(score_toolctl *connection, uint32_t rank);

/*
 * Takes back all that this connection has set in a rank: breakpoints, watchpoints, memory, a trap
 * handler, held threads. Then releases Control authority. Notices of signals that the tool has not
 * taken are satisfied, and their signals go to the program. If something cannot be taken back the
 * tool keeps authority, and the result is not 0.
 */
int score_toolctl_clean_up(score_toolctl *connection, uint32_t rank);

/*
 * score_toolctl_clean_up() for all ranks of which the tool has Control authority, then
 * score_toolctl_detach(): what a tool does before it ends, and when it gets SIGTERM.
 */
int score_toolctl_leave(score_toolctl *connection);

/*
 * Carries out 1 to 16 commands. 0: the message could be looked at; each command has its code.
 * score_toolctl_query() needs no authority.
 */
int score_toolctl_query(score_toolctl *connection, uint32_t rank,
                        struct score_toolctl_command *commands, size_t number);
int score_toolctl_update(score_toolctl *connection, uint32_t rank,
                         struct score_toolctl_command *commands, size_t number);

/*
 * The next notice (score_tools_signal_notice and so on), until the next call. Milliseconds: 0 does
 * not wait, -1 waits without end. Without a notice -ETIMEDOUT, or -EINTR if a signal has come.
 */
int score_toolctl_notice(score_toolctl *connection, int milliseconds, const void **notice,
                         size_t *len);

/*
 * The process of a rank. It belongs to the connection, and is valid until that is closed. The rank
 * should be attached; reading needs no more, all else needs Control authority.
 */
struct ps_prochandle *score_toolctl_process(score_toolctl *connection, uint32_t rank);

/*
 * The id by which messages know a thread, from an id of td_thrinfo_t (ti_lid), which is the one
 * that the process itself sees in its PID namespace. 0: it has no such thread.
 */
uint32_t score_toolctl_thread(struct ps_prochandle *process, pid_t id);

/*
 * What an error of td_ta_new() means, in words, valid until the next call. For TD_VERSION and
 * TD_NOLIBTHREAD it names the versions of glibc of the rank and of the tool.
 */
const char *score_toolctl_thread_db_error(struct ps_prochandle *process, int td_error);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SCORE_TOOLCTL_H */
