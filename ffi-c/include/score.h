/*
 * score.h - the runtime library of SCore: initialization, the numbers of the process in its job,
 * and the idle flag (score_initialize(3), score_become_idle(3), score_become_busy(3)).
 *
 * "Manual" is the SCore and PM Programming Manual. All functions may be called by several threads
 * at the same time. sc.h has the SCore-D system calls, score_resource.h the resource macros and
 * score_options.h scrun's options.
 */
#ifndef SCORE_SCORE_H
#define SCORE_SCORE_H

#include <pm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The numbers of this process in its job (manual, table 2.1). score_initialize sets them, and a
 * program must not change them. Without scrun, and before score_initialize, there is one node and
 * no network.
 */
extern int score_self_node; /* node number of this process, from 0 */
extern int score_self_proc; /* number of this process on its host */
extern int score_self_host; /* number of this host */
extern int score_num_node;  /* nodes of this parallel process */
extern int score_num_proc;  /* processes on this host */
extern int score_num_host;  /* hosts of this parallel process */
extern int score_num_pmnet; /* network sets; 0 if there is only one node */

/*
 * One PM/Composite context per network set, each of which reaches every other node. NULL follows
 * the last context, so that score_pmnet[0] is NULL if there is only one node.
 */
extern pmContext **score_pmnet;

/*
 * Makes this process a node of its parallel process. A program calls it once, before anything else,
 * and before it writes to standard output. A further call has no effect.
 *
 * Both score_initialize() and score_initialize(argc, argv) are valid and do the same; the arguments
 * are ignored. (In C, a macro distinguishes the two forms; in C++, an overload.)
 *
 * In a process that scrun has started, the function returns after all nodes have called it. If it
 * fails, it prints the reason on standard error and ends the process with code 1. If scrun runs the
 * program for its resource request (see SCORE_RSRC_RUN), the program ends here with code 0.
 * Otherwise the process runs alone (manual 1.4.4).
 * Manual page score_initialize(3).
 */
void score_initialize(void);
void score_initialize_args(int argc, char **argv);

/*
 * score_become_idle declares that the calling thread only waits for a message. score_become_busy
 * declares that the thread has other work (manual 3.5.2). The process is idle if all its threads
 * that have ever called one of the functions are idle; score_initialize calls score_become_busy.
 * Call score_become_busy before pmReleaseReceiveBuffer and before pmSend. If an idle thread sends,
 * the library marks it busy and prints a warning once. The functions have no effect before
 * score_initialize, without scrun and in a child of fork().
 * Manual pages score_become_idle(3), score_become_busy(3).
 */
void score_become_idle(void);
void score_become_busy(void);

/*
 * Like score_become_idle, in a call of MPI that waits for other processes. The report of a deadlock
 * contains the call and its arguments. This function is for the part of an MPI library that uses
 * PM. The numbers are those of proto/src/mpi_call.rs, which may change with each version of SCore.
 */
void score_become_idle_in_mpi_call(unsigned int call, const unsigned int arguments[4]);

#ifdef __cplusplus
}

inline void score_initialize(int argc, char **argv) {
    score_initialize_args(argc, argv);
}
#else
/* PICK is its third argument: with two arguments the _args function, with none the other. */
#define score_initialize(...)                                                                      \
    SCORE_INITIALIZE_PICK(__VA_ARGS__, score_initialize_args, score_initialize, 0)(__VA_ARGS__)
#define SCORE_INITIALIZE_PICK(first, second, function, ...) function
#endif

#endif /* SCORE_SCORE_H */
