/*
 * sc.h - the SCore-D system calls (manual, table 1.4).
 *
 * Each returns 0 or a positive errno value; errno itself is not set. All may be called by
 * several threads at the same time. Stops and continues of the job never cause errors. If the
 * connection to SCore-D is lost, a call ends the process with code 1.
 *
 * Without scrun (manual 1.4.4) and before score_initialize the calls act on the process itself.
 * In a child of fork(), which is not a node, sc_barrier, sc_flush and sc_signal_bcast return EPERM.
 */
#ifndef SCORE_SC_H
#define SCORE_SC_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Waits until all nodes of the parallel process have called sc_barrier. The thread counts as idle
 * during the call and as busy afterwards.
 * EBUSY: another thread of this node is in the call; EINTR: the job has been restarted from a
 * checkpoint; EPERM: the process is a child of fork().
 * Manual page sc_barrier(2).
 */
int sc_barrier(void);

/*
 * Requests a checkpoint.
 * ENOSYS: checkpoints are not implemented.
 * Manual page sc_checkpoint(2).
 */
int sc_checkpoint(void);

/*
 * Ends the parallel process with this exit code. Does not return. Output that the process has
 * printed is kept; exit handlers do not run. Without scrun, sc_exit calls exit(3).
 * Manual page sc_exit(2).
 */
int sc_exit(int exno);

/*
 * Calls sc_exit(0), as in earlier versions (manual 2.4.2). Does not return.
 */
int sc_terminate(void);

/*
 * Waits until scrun has written everything that this process has printed on standard output and
 * error. The buffers of stdout and stderr are flushed first.
 * EINTR: the job has been restarted from a checkpoint; EPERM: the process is a child of fork().
 * Manual page sc_flush(2).
 */
int sc_flush(void);

/*
 * Stores the number of the job, as scrun prints it, or 0 without scrun.
 *   scpid OUT the number
 * EINVAL: scpid is NULL.
 * Manual page sc_getpid(2).
 */
int sc_getpid(int *scpid);

/*
 * Requests a debugger and ends the parallel process: scrun prints the stack, the node and the
 * signal. Does not return. May be called in a signal handler.
 *   display IN X display; NULL: the environment variable DISPLAY
 *   signal  IN the suspected cause, used only in the message
 * Manual page sc_inspectme(2).
 */
int sc_inspectme(char *display, int signal);

/*
 * Sets the value of a user monitor (manual 3.5.3): the first one if `which` is 0, else the second.
 * Manual page sc_set_monitor(3).
 */
void sc_set_monitor(int which, unsigned char value);

/*
 * Sends a signal to every process of the parallel process, also to this one.
 * EINVAL: signal is negative, above SIGRTMAX, SIGSTOP, SIGCONT or SIGKILL; EPERM: the process is a
 * child of fork().
 * Manual page sc_signal_bcast(2).
 */
int sc_signal_bcast(int signal);

/*
 * Sleeps, and lets the whole job sleep for the same time. Other jobs run on its processors
 * meanwhile.
 * EINVAL: sec is negative; EPERM: the process is a child of fork().
 * Manual page sc_sleep(2).
 */
int sc_sleep(int sec);

/*
 * Gives up the rest of the slice of the whole job to other jobs. Has no effect if no job waits.
 * EPERM: the process is a child of fork().
 * Manual page sc_yield(2).
 */
int sc_yield(void);

/*
 * Creates (or truncates) or opens a temporary file for reading and writing. The file exists on this
 * host as long as the job, for all processes of the job on this host. The descriptor is closed on
 * exec.
 *   filename IN  a name without slash
 *   fd       OUT the descriptor
 * EINVAL: filename contains a slash or an argument is NULL. Other errors are those of open(2).
 * Manual pages sc_create_temporary_file(3), sc_open_temporary_file(3).
 */
int sc_create_temporary_file(char *filename, int *fd);
int sc_open_temporary_file(char *filename, int *fd);

/*
 * Removes a temporary file.
 * EINVAL: filename contains a slash or is NULL. Other errors are those of unlink(2).
 * Manual page sc_unlink_temporary_file(3).
 */
int sc_unlink_temporary_file(char *filename);

/*
 * Begins and ends a region in which no checkpoint is taken (manual 3.2). Regions nest.
 * EINVAL: there is no region to end (score_ckpt_leave_uncheckpointable).
 */
int score_ckpt_enter_uncheckpointable(void);
int score_ckpt_leave_uncheckpointable(void);

#ifdef __cplusplus
}
#endif

#endif /* SCORE_SC_H */
