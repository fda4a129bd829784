/*
 * score_resource.h - the resource request of a program, declared in the program (manual 4.1).
 *
 * Each macro is a declaration and is followed by a semicolon. It may be used any number of times,
 * inside or outside of functions, in the program or in a shared library that the program needs. (In
 * C++, it must not be in inline functions or templates.) Its arguments are constant expressions.
 * scrun reads the declarations from the executable file (ELF notes in the section .note.score;
 * layout in proto/src/elf_note.rs) without running it. The declarations of all programs of a job
 * together must allow the job, or scrun refuses it.
 */
#ifndef SCORE_SCORE_RESOURCE_H
#define SCORE_SCORE_RESOURCE_H

/* At least MIN nodes and at most MAX. */
#define SCORE_RSRC_NUM_NODES(MIN, MAX) SCORE_RSRC_NOTE_(2, 2, (MIN), (MAX))

/* N processes on each host. */
#define SCORE_RSRC_NUM_PROCS(N) SCORE_RSRC_NOTE_(3, 1, (N), 0)

/* At least N network sets, at most 16. */
#define SCORE_RSRC_NUM_NETS(N) SCORE_RSRC_NOTE_(4, 1, (N), 0)

/* A network with one-sided communication. All networks that jobs use provide it. */
#define SCORE_RSRC_ZEROCOPY SCORE_RSRC_NOTE_(5, 0, 0, 0)

/* The program can run on hosts of different kinds. */
#define SCORE_RSRC_HETERO_NODES SCORE_RSRC_NOTE_(6, 0, 0, 0)

/* The program must not be checkpointed. */
#define SCORE_RSRC_NOCKPT SCORE_RSRC_NOTE_(7, 0, 0, 0)

/*
 * Extension: scrun first runs the program on its own host, up to score_initialize, to get its
 * request from score_request_nodes (manual 1.4.2).
 */
#define SCORE_RSRC_RUN SCORE_RSRC_NOTE_(8, 0, 0, 0)

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Extension: requests at least min and at most max nodes, which the program has computed. Call this
 * function before score_initialize, in a program with SCORE_RSRC_RUN. The last call takes effect.
 * In other programs the function has no effect.
 * EINVAL: no number of nodes meets the limits.
 */
int score_request_nodes(int min, int max);

#ifdef __cplusplus
}
#endif

/*
 * An ELF note consists of the lengths of owner and descriptor, the type, the owner padded to 8
 * bytes, and a descriptor of at most two 32-bit words. __COUNTER__ makes the names different, so
 * that declarations do not clash.
 */
#define SCORE_RSRC_NOTE_(type, words, first, second)                                               \
    SCORE_RSRC_PLACE_(__COUNTER__, type, words, first, second)
#define SCORE_RSRC_PLACE_(number, type, words, first, second)                                      \
    SCORE_RSRC_DECLARE_(number, type, words, first, second)
#define SCORE_RSRC_DECLARE_(number, type, words, first, second)                                    \
    static const struct score_rsrc_##words##_ score_rsrc_note_##number##_                          \
        __attribute__((section(".note.score"), used, unused, aligned(4))) =                        \
            SCORE_RSRC_VALUE_##words##_(type, first, second)

struct score_rsrc_0_ {
    unsigned int head[3];
    char owner[8];
};
struct score_rsrc_1_ {
    unsigned int head[3];
    char owner[8];
    unsigned int word[1];
};
struct score_rsrc_2_ {
    unsigned int head[3];
    char owner[8];
    unsigned int word[2];
};
#define SCORE_RSRC_OWNER_ {'S', 'C', 'o', 'r', 'e', 0, 0, 0}
#define SCORE_RSRC_VALUE_0_(type, first, second) {{6, 0, type}, SCORE_RSRC_OWNER_}
#define SCORE_RSRC_VALUE_1_(type, first, second)                                                   \
    {{6, 4, type}, SCORE_RSRC_OWNER_, {(unsigned int)(first)}}
#define SCORE_RSRC_VALUE_2_(type, first, second)                                                   \
    {{6, 8, type}, SCORE_RSRC_OWNER_, {(unsigned int)(first), (unsigned int)(second)}}

#endif /* SCORE_SCORE_RESOURCE_H */
