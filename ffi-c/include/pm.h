/*
 * pm.h - the C interface of PMv2, SCore's user-level communication library (pm(3)).
 *
 * Every function except pmErrorString() returns PM_SUCCESS or a positive errno value; errno itself
 * is neither read nor set. Every function also returns EINVAL for a NULL argument, and for an
 * object that does not exist (any more). In a child of fork(), the objects of the parent do not
 * exist. ENOSYS is returned if an object does not offer a function. EPERM is returned by the
 * functions marked [SCore-D] on a context that was attached. In a process that has attached a
 * context (a user process), pmOpenDevice also returns EPERM for every device except a composite.
 *
 * "Manual" is the SCore and PM Programming Manual. If it names a function without a signature, the
 * signature is that of the public SCore man pages, or an extension ("signature ours").
 */
#ifndef SCORE_PM_H
#define SCORE_PM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* caddr_t is not part of ISO C: with -std=c99 or similar the C library does not define it. */
#if !defined(__daddr_t_defined) && !defined(_GNU_SOURCE) && !defined(_BSD_SOURCE)
typedef char *caddr_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Macros (manual, table 2.2 and table 3.5) ---- */

#define PM_SUCCESS 0          /* the return value of a successful call */
#define PM_MAX_NODE 1048576   /* node numbers are 0 to PM_MAX_NODE - 1 */
#define PM_MIN_MTU 1024       /* a message of this length can be sent to any node */
#define PM_RMA_MTU 1073741824 /* the longest remote memory access, 1 GiB */
#define PM_CONTROL_MTU 48     /* the longest control message (ours) */
#define PM_NODE_ANY (-1)      /* pmMLock, pmMUnlock: any node at the other end */

/* Bits of `option` in the configurations: the optional functions that an object offers. */
#define PM_OPT_REMOTE_WRITE 0x1ul /* pmWrite, pmIsWriteDone */
#define PM_OPT_REMOTE_READ 0x2ul  /* pmRead, pmIsReadDone */

/* ---- Types ---- */

typedef struct pm_device pmDevice;   /* one network, or the memory of this host */
typedef struct pm_context pmContext; /* an end-point of a device */

/*
 * An address in locked memory, of this node or another. Offsets may be added. A handle can be sent
 * to another node unchanged (manual 3.6.4).
 */
typedef uint64_t pmAddrHandle;

/* What pmGetContextConfig returns (manual, figure 3.12). */
typedef struct pm_context_config {
    const char *type;     /* device name; must not be freed or altered */
    int number;           /* context number */
    int nodes;            /* number of nodes */
    size_t mtu;           /* longest message in bytes that every node accepts */
    size_t size;          /* memory that the context maps, in bytes */
    unsigned long option; /* PM_OPT_ bits */
} pmContextConfig;

/* What pmGetDeviceConfig returns (ours). */
typedef struct pm_device_config {
    const char *type;     /* device name; must not be freed or altered */
    int nodes;            /* number of nodes */
    int contexts;         /* number of contexts */
    size_t mtu;           /* longest message in bytes */
    size_t size;          /* memory that one channel maps, in bytes */
    unsigned long option; /* PM_OPT_ bits */
} pmDeviceConfig;

/* What pmGetMessageQueueStatus returns (manual, figure 3.7). */
typedef struct pm_message_queue_status {
    int receive; /* messages received here that pmReceive has not returned yet */
    int send;    /* messages sent from here that may not be in their receiver's queue yet */
    int read;    /* outstanding remote reads */
} pmMessageQueueStatus;

/* What pmGetRemoteStatus returns (ours). */
typedef struct pm_remote_status {
    uint64_t started;   /* number of the last operation on that node that was started; 0: none */
    uint64_t completed; /* all operations up to this number have ended */
} pmRemoteStatus;

/* One region of memory that PM has mapped, as pmGetMmapInfo lists it (members ours). */
typedef struct pm_mmap_info {
    caddr_t addr;    /* start of the region */
    size_t len;      /* its length in bytes */
    uint64_t offset; /* start of the region in the file */
    int fd;          /* descriptor of the file, -1 if none is open */
    int prot;        /* PROT_ bits of mmap(2) */
} pmMmapInfo;

/* ---- Devices ---- */

/*
 * Lists the names of the devices that this library can open.
 *   types   OUT  array for the names, which must not be freed or altered
 *   ntypesp IN   entries of the array; OUT number of names, always set
 * ENOSPC: the array is too small; EINVAL: *ntypesp is below 0.
 * [SCore-D] Signature ours.
 */
int pmGetTypeList(char **types, int *ntypesp);

/*
 * Opens a device.
 *   type IN  its name: "shmem", "ethernet", "agent-udp", "verbs", "composite"
 *   argc, argv IN  its options, read during the call only. All devices: -nodes N (shmem: default is
 *              the number of processors); all except composite: -channels C (default 1).
 *              docs/dev/c-abi.md describes the options of ethernet and verbs.
 *   pmdp OUT the device
 * ENODEV: there is no such device, or this machine does not have it; EINVAL: the arguments are
 * invalid; EIO: the device could not be set up; ENOMEM, EMFILE: not enough memory or descriptors.
 * [SCore-D] except for "composite". Signature from the public man pages.
 */
int pmOpenDevice(char *type, int argc, char **argv, pmDevice **pmdp);

/*
 * Closes a device.
 * EBUSY: contexts of the device are open.
 * [SCore-D] Signature ours.
 */
int pmCloseDevice(pmDevice *pmd);

/*
 * Returns the configuration of a device.
 *   config OUT its configuration
 * [SCore-D] Signature ours.
 */
int pmGetDeviceConfig(pmDevice *pmd, pmDeviceConfig *config);

/*
 * Returns which optional functions a device offers.
 *   optionp OUT PM_OPT_ bits
 * [SCore-D] Signature ours.
 */
int pmGetOptionBit(pmDevice *pmd, unsigned long *optionp);

/*
 * Lists the nodes of a device.
 *   nodes   OUT  array for the node numbers
 *   nnodesp IN   entries of the array; OUT number of nodes, always set
 * ENOSPC: the array is too small; EINVAL: *nnodesp is below 0.
 * [SCore-D] Signature ours.
 */
int pmGetNodeList(pmDevice *pmd, int *nodes, int *nnodesp);

/*
 * Returns whether messages can reach a node.
 *   reachablep OUT 1 or 0
 * EINVAL: no such node.
 * [SCore-D] Signature ours.
 */
int pmIsReachable(pmDevice *pmd, int node, int *reachablep);

/* ---- Contexts ---- */

/*
 * Opens a context of a device.
 *   number IN  context number: 0 to contexts - 1
 *   pmcp   OUT the context
 * EINVAL: there is no such number; EBUSY: the context is already open.
 * [SCore-D] except for "composite" devices. Signature ours.
 */
int pmOpenContext(pmDevice *pmd, int number, pmContext **pmcp);

/*
 * Closes a context that pmOpenContext opened.
 * EBUSY: the context is a member of a composite, or one of its buffers is held.
 * [SCore-D] except for "composite" contexts. Signature ours.
 */
int pmCloseContext(pmContext *pmc);

/*
 * Makes a context node `self` of a channel. Contexts that are bound to the same channel of a device
 * reach each other.
 * EINVAL: no such channel or node; EBUSY: the context is already bound, or another context is bound
 * as node `self`.
 * [SCore-D] Signature ours.
 */
int pmBindChannel(pmContext *pmc, int channel, int self);

/*
 * Undoes pmBindChannel.
 * EINVAL: the context is not bound; EBUSY: one of its buffers is held.
 * [SCore-D] Signature ours.
 */
int pmUnbindChannel(pmContext *pmc);

/*
 * Makes a descriptor from which another process can attach the context, once. From then on only
 * that process may send and receive through the context, until pmUnbindChannel.
 *   fdp OUT the descriptor, closed on exec
 * EMFILE: no descriptor is left.
 * [SCore-D] Signature from the public man pages.
 */
int pmCreateAttachFd(pmContext *pmc, int *fdp);

/*
 * Closes a descriptor that pmCreateAttachFd made.
 * EINVAL: pmCreateAttachFd did not make this descriptor, or it was closed.
 * [SCore-D] Signature ours.
 */
int pmCloseAttachFd(int fd);

/*
 * Attaches a context to this process, which becomes a user process.
 *   type IN  name of the context's device
 *   fd   IN  descriptor from pmCreateAttachFd; the caller closes it
 *   pmcp OUT the context
 * ENODEV: there is no such device; EINVAL: the descriptor is not from pmCreateAttachFd, or was used
 * before.
 * Manual page pmAttachContext(3).
 */
int pmAttachContext(char *type, int fd, pmContext **pmcp);

/*
 * Undoes pmAttachContext.
 * EBUSY: the context is a member of a composite, or one of its buffers is held.
 * Signature ours.
 */
int pmDetachContext(pmContext *pmc);

/*
 * Returns the configuration of a context.
 *   config OUT its configuration
 * Manual page pmGetContextConfig(3).
 */
int pmGetContextConfig(pmContext *pmc, pmContextConfig *config);

/*
 * Returns the node number of the calling process.
 *   selfp OUT the number
 * EINVAL: the process has no node number (yet).
 * Manual page pmGetSelf(3).
 */
int pmGetSelf(pmContext *pmc, int *selfp);

/*
 * Returns the length of the longest message that can be sent to a node.
 *   mtup OUT length in bytes
 * EINVAL: no such node.
 * Manual page pmGetMtu(3).
 */
int pmGetMtu(pmContext *pmc, int node, size_t *mtup);

/*
 * Drops all messages that are queued in this context, in both directions; the context stays bound.
 * EBUSY: a buffer of the context is held.
 * Signature ours.
 */
int pmResetContext(pmContext *pmc);

/*
 * Copies the state of a context, including queued messages, into memory.
 *   buf   OUT the copy
 *   sizep IN  length of buf; OUT length of the copy, always set
 * ENOSPC: buf is too small.
 * [SCore-D] Signature ours.
 */
int pmSaveContext(pmContext *pmc, caddr_t buf, size_t *sizep);

/*
 * Restores a state of a context that pmSaveContext has copied.
 * EINVAL: buf does not hold such a state, or holds the state of another kind of context.
 * [SCore-D] Signature ours.
 */
int pmRestoreContext(pmContext *pmc, caddr_t buf, size_t size);

/*
 * Returns whether every message sent from this context is in its receiver's queue.
 * EBUSY: some messages are not.
 * [SCore-D] Signature ours.
 */
int pmIsSendStable(pmContext *pmc);

/*
 * Sends a control message, independently of other messages.
 *   buf, len IN 1 to PM_CONTROL_MTU bytes
 * EINVAL: the node or the length is invalid; ENOBUFS: there is no space at the moment.
 * [SCore-D] Signature ours.
 */
int pmControlSend(pmContext *pmc, int node, caddr_t buf, size_t len);

/*
 * Receives a control message.
 *   nodep OUT the sender
 *   buf   OUT the message
 *   lenp  IN  length of buf; OUT length of the message
 * ENOBUFS: there is no message; ENOSPC: buf is too small, and *lenp is the necessary length.
 * Signature ours.
 */
int pmControlReceive(pmContext *pmc, int *nodep, caddr_t buf, size_t *lenp);

/*
 * Extension: declares that the program calls the functions of this context one at a time, or
 * revokes this declaration. While it is in force, calls are as fast as in a process of one thread,
 * however many threads there are. Any thread may call, but each call must return before the next
 * call begins. Each call must also happen before the next call (C11, 5.1.2.4), for example because
 * of a mutex or pthread_join(3). This includes pmSetSerialized itself. While a composite has
 * members, the composite and its members count as one context: a declaration for one of them
 * applies to all.
 *   serialized IN  1: calls do not overlap; 0: they may overlap
 * EINVAL: the argument has another value.
 */
int pmSetSerialized(pmContext *pmc, int serialized);

/*
 * Extension: sets whether pmReceive pauses the processor for a moment when it finds no message. The
 * default is to pause. This suits a program that only polls: messages arrive sooner, and the other
 * hardware thread of the core gets more of its time. A program that works between two calls, as MPI
 * libraries do, finds messages later because of the pause.
 *   pause IN  1: pause; 0: do not pause
 * EINVAL: the argument has another value.
 */
int pmSetPollPause(pmContext *pmc, int pause);

/* ---- Composites: messages to `node` go to node `member_node` of a member ---- */

/*
 * Sets the route to one node.
 * EINVAL: a node number is invalid, or member_pmc cannot be a member; EBUSY: the node already has a
 * route, or the member belongs to another composite; ENOSYS: pmc is not a composite.
 * Manual page pmAddNode(3).
 */
int pmAddNode(pmContext *pmc, int node, pmContext *member_pmc, int member_node);

/*
 * Removes the route to one node.
 * EINVAL: the node number is invalid, or the node has no route; EIO: internal error; ENOSYS: pmc is
 * not a composite.
 * Manual page pmRemoveNode(3).
 */
int pmRemoveNode(pmContext *pmc, int node);

/*
 * Returns the route to one node.
 *   member_pmcp  OUT the member
 *   member_nodep OUT the node number in the member
 * EINVAL: the node number is invalid, or the node has no route; ENOSYS: pmc is not a composite.
 * Manual page pmExtractNode(3).
 */
int pmExtractNode(pmContext *pmc, int node, pmContext **member_pmcp, int *member_nodep);

/*
 * Sets the routes to many nodes in one call, all or none: to nodes[i] through member_nodes[i] of
 * one member.
 * EINVAL, EBUSY, ENOSYS: as for pmAddNode.
 * Signature ours.
 */
int pmAssociateNodes(pmContext *pmc, pmContext *member, int nnodes, const int *nodes,
                     const int *member_nodes);

/* ---- Messages ---- */

/*
 * Gets a buffer for a message. On success the sending side of the context is locked until pmSend.
 *   dest IN  destination
 *   bufp OUT the buffer, aligned to 16 bytes
 *   len  IN  length of the message, at least 1
 * ENOBUFS: there is no space at the moment; EINVAL: no such node, the calling node itself, a length
 * of 0 or above the MTU; EBUSY: another thread holds a buffer.
 * Manual page pmGetSendBuffer(3).
 */
int pmGetSendBuffer(pmContext *pmc, int dest, caddr_t *bufp, size_t len);

/*
 * Gets a buffer for a message to several nodes, like pmGetSendBuffer.
 *   dest, ndest IN destinations, all different
 * ENOBUFS, EINVAL, EBUSY: as for pmGetSendBuffer; ENOSYS: the context does not offer multicasts.
 * Manual page pmGetMulticastBuffer(3).
 */
int pmGetMulticastBuffer(pmContext *pmc, int *dest, int ndest, caddr_t *bufp, size_t len);

/*
 * Makes the message shorter than its buffer.
 *   len IN new length, 1 to the current length
 * EINVAL: the length is out of range; EIO: there is no buffer.
 * Manual page pmTruncateBuffer(3).
 */
int pmTruncateBuffer(pmContext *pmc, size_t len);

/*
 * Sends the message in the buffer and unlocks the sending side.
 * EIO: there is no buffer.
 * Manual page pmSend(3).
 */
int pmSend(pmContext *pmc);

/*
 * Receives the next message, if there is one. On success the receiving side of the context is
 * locked until pmReleaseReceiveBuffer.
 *   bufp OUT the message, aligned to 16 bytes
 *   lenp OUT its length
 * ENOBUFS: there is no message; EBUSY: another thread holds a message; EIO, EPIPE: an
 * error of the link.
 * Manual page pmReceive(3).
 */
int pmReceive(pmContext *pmc, caddr_t *bufp, size_t *lenp);

/*
 * Releases the message and unlocks the receiving side.
 * EIO: no message is held.
 * Manual page pmReleaseReceiveBuffer(3).
 */
int pmReleaseReceiveBuffer(pmContext *pmc);

/*
 * Returns whether the destinations have received, but perhaps not yet extracted, every message sent
 * from this context.
 * EBUSY: they have not; EIO: a message could not be sent.
 * Manual page pmIsSendDone(3).
 */
int pmIsSendDone(pmContext *pmc);

/*
 * Returns the numbers of queued messages and outstanding reads.
 *   statp OUT the numbers
 * Manual page pmGetMessageQueueStatus(3).
 */
int pmGetMessageQueueStatus(pmContext *pmc, pmMessageQueueStatus *statp);

/* ---- Blocking receive (manual 3.3) ---- */

/*
 * Lists the descriptors on which select(2) or poll(2) wait for messages.
 *   fd   OUT array for the descriptors; may be NULL if *nfdp is 0
 *   nfdp IN  entries of the array; OUT number of descriptors, always set
 * ENOSPC: the array is too small; EINVAL: *nfdp is below 0; ENOMEM: no descriptor number below
 * FD_SETSIZE is free.
 * Manual page pmGetFd(3).
 */
int pmGetFd(pmContext *pmc, int *fd, int *nfdp);

/*
 * Makes arriving messages wake the process. Call this function, then pmReceive until it finds no
 * message, and then select(2).
 * Manual page pmBeforeSelect(3).
 */
int pmBeforeSelect(pmContext *pmc);

/*
 * Undoes pmBeforeSelect. Call this function after select(2), regardless of the result of select(2).
 * Manual page pmAfterSelect(3).
 */
int pmAfterSelect(pmContext *pmc);

/* ---- Remote memory (optional, manual 3.6) ---- */

/*
 * Locks memory for remote access. A region that is locked again keeps its handle and must be
 * unlocked as many times as it was locked.
 *   rmt_node IN  the node at the other end, or PM_NODE_ANY
 *   addr, len IN the region, of any alignment
 *   hndlp    OUT handle of its first byte
 * EINVAL: the node or the length is invalid; ENOSPC: too much memory is locked; ENOSYS: the context
 * has no remote memory.
 * Manual page pmMLock(3).
 */
int pmMLock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len, pmAddrHandle *hndlp);

/*
 * Unlocks memory. After the last unlock PM refuses the handle. Waits for copies that other
 * processes of this host have started in the region.
 * EINVAL: the node or the length is invalid; ENOENT: the region was not locked; ENOSYS: the context
 * has no remote memory.
 * Manual page pmMUnlock(3).
 */
int pmMUnlock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len);

/*
 * Copies local memory to a remote region. Later pmSend, pmWrite and pmRead operations to the same
 * node arrive after the copied bytes.
 *   rmt_hndl, local_hndl IN locked handles, plus offsets
 *   len IN 1 to PM_RMA_MTU bytes
 * EINVAL: the node, a handle or the length is invalid; ENOBUFS: there is no space at the moment;
 * ENOSYS: the context has no remote memory, or the kernel refuses to copy memory of other processes
 * and a region is not from pmAlloc. In the second case, use pmAlloc, or allow process_vm_writev
 * (Yama, seccomp).
 * Manual page pmWrite(3).
 */
int pmWrite(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
            size_t len);

/*
 * Copies a remote region to local memory; arguments and errors as for pmWrite.
 * Manual page pmRead(3).
 */
int pmRead(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
           size_t len);

/*
 * Returns whether the local memory of all pmWrite calls may be altered.
 * EBUSY: some may not; EIO: a pmWrite has failed (reported once); ENOSYS: the context has no remote
 * memory.
 * Manual page pmIsWriteDone(3).
 */
int pmIsWriteDone(pmContext *pmc);

/*
 * Returns whether all pmRead calls have been completed.
 * EBUSY: some have not; EIO: a pmRead has failed (reported once); ENOSYS: the context has no remote
 * memory.
 * Manual page pmIsReadDone(3).
 */
int pmIsReadDone(pmContext *pmc);

/*
 * Extension: returns how far the pmWrite and pmRead operations of this context on one node are.
 * Calls that return PM_SUCCESS are numbered 1, 2, 3 and so on in their order, both functions
 * together, for each node separately. After a call, statp->started is thus its number, unless
 * another thread has started an operation on the same node meanwhile. An operation has ended when
 * all earlier operations have ended, and pmIsWriteDone or pmIsReadDone would report its end if it
 * were the only operation.
 *   statp OUT the numbers, also set on EIO
 * EIO: the operation statp->completed has failed; all earlier operations that no call has reported
 * yet have succeeded. Each failure is reported once, and the next call reports on the operations
 * after it. EINVAL: the node number is invalid; ENOSYS: the context has no remote memory.
 */
int pmGetRemoteStatus(pmContext *pmc, int rmt_node, pmRemoteStatus *statp);

/*
 * Extension: allocates memory that processes of the same host copy directly. The memory consists of
 * whole pages of zeroes. Only pmFree may unmap it or change its protection. A child of fork()
 * shares the memory.
 *   len   IN  number of bytes, rounded up to whole pages
 *   addrp OUT the memory
 * EINVAL: len is 0; ENOMEM: there is not enough memory.
 */
int pmAlloc(pmContext *pmc, size_t len, caddr_t *addrp);

/*
 * Extension: frees memory of pmAlloc, through any context.
 * EINVAL: the memory is not from pmAlloc; EBUSY: a part of it is locked.
 */
int pmFree(pmContext *pmc, caddr_t addr);

/* ---- Checkpoint, restart, migration (optional) ---- */

/*
 * Prepares a context for a checkpoint and calls back when it is ready: callback(arg, 0) before
 * this function returns, or callback(arg, 1) later.
 * ENOSYS: no device offers this function. Signature from the public man pages.
 */
int pmCheckpoint(pmContext *pmc, void (*callback)(void *, int), void *arg);

/*
 * Restores a context after a restart, in the user process.
 * ENOSYS: no device offers this function. Signature from the public man pages.
 */
int pmRestartUser(pmContext *pmc);

/*
 * Restores a context after a restart, in SCore-D.
 * ENOSYS: no device offers this function. [SCore-D] Signature ours.
 */
int pmRestartSys(pmContext *pmc);

/*
 * Restores a context after a migration, in the user process.
 * ENOSYS: no device offers this function. Signature ours.
 */
int pmMigrateUser(pmContext *pmc);

/*
 * Restores a context after a migration, in SCore-D.
 * ENOSYS: no device offers this function. [SCore-D] Signature ours.
 */
int pmMigrateSys(pmContext *pmc);

/*
 * Lists the memory that PM has mapped in this process.
 *   mip   OUT array for the regions
 *   sizep IN  entries of the array; OUT number of regions, always set
 * ENOSPC: the array is too small; EINVAL: *sizep is not above 0; ENOSYS: no device offers this.
 * Signature from the public man pages.
 */
int pmGetMmapInfo(pmMmapInfo *mip, int *sizep);

/* ---- Debugging ---- */

/*
 * Sets how much PM prints on standard error: 0 nothing, 1 errors, 2 also warnings, 3 everything
 * (manual, table 2.4). The initial level is the value of the environment variable PM_DEBUG.
 * EINVAL: level is below 0.
 * Signature ours.
 */
int pmDebug(int level);

/*
 * Prints the state of a context on standard error.
 * Signature ours.
 */
int pmDumpContext(pmContext *pmc);

/*
 * Returns a text that explains a function's return value. It must not be freed or altered.
 * Manual page pmErrorString(3).
 */
char *pmErrorString(int error);

/* ---- For runtime libraries ---- */

/*
 * Sets the address of the number of idle threads of this process (manual 3.5.2). If the number is
 * above 0, pmSend calls the callback before it sends, because a thread that sends is not idle.
 *   word     IN the number, which must stay valid until the next call; NULL: there is no number
 *   callback IN the function to call; NULL only if word is NULL
 * Extension, for libscore.
 */
int pmSetIdleWord(const uint32_t *word, void (*callback)(void));

#ifdef __cplusplus
}
#endif

#endif /* SCORE_PM_H */
