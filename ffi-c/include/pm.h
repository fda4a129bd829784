/*
 * pm.h - the C interface of PMv2, SCore's user-level communication library (pm(3)).
 *
 * Every function but pmErrorString() returns PM_SUCCESS or a positive errno value; errno itself
 * is neither read nor set. EINVAL is returned besides the listed reasons for a NULL argument, for
 * an object that does not exist (any more), and in a child of fork() for every object of its
 * parent. ENOSYS is returned where an object does not offer a function. EPERM is returned by the
 * functions marked [SCore-D] on a context that was attached, and by pmOpenDevice of anything but a
 * composite in a process that has attached one: a user process.
 *
 * "Manual" is the SCore and PM Programming Manual. Where it names a function and gives no
 * signature, the signature is that of the public SCore man pages, or "signature ours".
 */
#ifndef SCORE_PM_H
#define SCORE_PM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* caddr_t is no part of ISO C: with -std=c99 and the like the C library does not define it. */
#if !defined(__daddr_t_defined) && !defined(_GNU_SOURCE) && !defined(_BSD_SOURCE)
typedef char *caddr_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Macros (manual, table 2.2 and table 3.5) ---- */

#define PM_SUCCESS 0          /* what a function returns when it has done what was asked */
#define PM_MAX_NODE 1048576   /* node numbers are 0 to PM_MAX_NODE - 1 */
#define PM_MIN_MTU 1024       /* a message of this length can be sent to any node */
#define PM_RMA_MTU 1073741824 /* the longest remote memory access, 1 GiB */
#define PM_CONTROL_MTU 48     /* the longest control message (ours) */
#define PM_NODE_ANY (-1)      /* pmMLock, pmMUnlock: whatever node will be at the other end */

/* Bits of `option` in the configurations: the optional functions that an object offers. */
#define PM_OPT_REMOTE_WRITE 0x1ul /* pmWrite, pmIsWriteDone */
#define PM_OPT_REMOTE_READ 0x2ul  /* pmRead, pmIsReadDone */

/* ---- Types ---- */

typedef struct pm_device pmDevice;   /* one network, or the memory of this host */
typedef struct pm_context pmContext; /* an end-point of a device */

/*
 * A place in locked memory, here or on another node. Offsets may be added. It can be sent to
 * another node as it is (manual 3.6.4).
 */
typedef uint64_t pmAddrHandle;

/* What pmGetContextConfig returns (manual, figure 3.12). */
typedef struct pm_context_config {
    const char *type;     /* device name; not to be freed nor altered */
    int number;           /* context number */
    int nodes;            /* number of nodes */
    size_t mtu;           /* longest message in bytes that any node takes */
    size_t size;          /* memory that the context maps, in bytes */
    unsigned long option; /* PM_OPT_ bits */
} pmContextConfig;

/* What pmGetDeviceConfig returns (ours). */
typedef struct pm_device_config {
    const char *type;     /* device name; not to be freed nor altered */
    int nodes;            /* number of nodes */
    int contexts;         /* number of contexts */
    size_t mtu;           /* longest message in bytes */
    size_t size;          /* memory that one channel maps, in bytes */
    unsigned long option; /* PM_OPT_ bits */
} pmDeviceConfig;

/* What pmGetMessageQueueStatus returns (manual, figure 3.7). */
typedef struct pm_message_queue_status {
    int receive; /* messages here that pmReceive has not taken yet */
    int send;    /* messages sent from here that may not be in their receiver's queue yet */
    int read;    /* remote reads under way */
} pmMessageQueueStatus;

/* One region of memory that PM has mapped, as pmGetMmapInfo lists it (members ours). */
typedef struct pm_mmap_info {
    caddr_t addr;    /* where it begins */
    size_t len;      /* its length in bytes */
    uint64_t offset; /* where it begins in the file */
    int fd;          /* descriptor of the file, -1 if none is open */
    int prot;        /* PROT_ bits of mmap(2) */
} pmMmapInfo;

/* ---- Devices ---- */

/*
 * Lists the names of the devices that this library can open.
 *   types   OUT  array for the names, which are not to be freed nor altered
 *   ntypesp IN   entries of the array; OUT number of names, always set
 * ENOSPC the array is too small; EINVAL *ntypesp is below 0.
 * [SCore-D] Signature ours.
 */
int pmGetTypeList(char **types, int *ntypesp);

/*
 * Opens a device.
 *   type IN  its name: "shmem", "composite"
 *   argc, argv IN  its arguments, read during the call only. shmem: -nodes N (default: the
 *              number of processors), -channels C (default 1); composite: -nodes N
 *   pmdp OUT the device
 * ENODEV no such device, or not on this machine; EINVAL arguments; EIO it could not be set up;
 * ENOMEM, EMFILE the machine is short of these.
 * [SCore-D] but "composite". Signature from the public man pages.
 */
int pmOpenDevice(char *type, int argc, char **argv, pmDevice **pmdp);

/*
 * Closes a device.
 * EBUSY contexts of it are open.
 * [SCore-D] Signature ours.
 */
int pmCloseDevice(pmDevice *pmd);

/*
 * Tells what a device is.
 *   config OUT its configuration
 * [SCore-D] Signature ours.
 */
int pmGetDeviceConfig(pmDevice *pmd, pmDeviceConfig *config);

/*
 * Tells which optional functions a device offers.
 *   optionp OUT PM_OPT_ bits
 * [SCore-D] Signature ours.
 */
int pmGetOptionBit(pmDevice *pmd, unsigned long *optionp);

/*
 * Lists the nodes of a device.
 *   nodes   OUT  array for the node numbers
 *   nnodesp IN   entries of the array; OUT number of nodes, always set
 * ENOSPC the array is too small; EINVAL *nnodesp is below 0.
 * [SCore-D] Signature ours.
 */
int pmGetNodeList(pmDevice *pmd, int *nodes, int *nnodesp);

/*
 * Tells whether messages can reach a node.
 *   reachablep OUT 1 or 0
 * EINVAL no such node.
 * [SCore-D] Signature ours.
 */
int pmIsReachable(pmDevice *pmd, int node, int *reachablep);

/* ---- Contexts ---- */

/*
 * Opens a context of a device.
 *   number IN  which: 0 to contexts - 1
 *   pmcp   OUT the context
 * EINVAL no such number; EBUSY it is open already.
 * [SCore-D], but free for "composite" devices. Signature ours.
 */
int pmOpenContext(pmDevice *pmd, int number, pmContext **pmcp);

/*
 * Closes a context that pmOpenContext opened.
 * EBUSY it is a member of a composite, or a buffer of it is held.
 * [SCore-D], but free for "composite" contexts. Signature ours.
 */
int pmCloseContext(pmContext *pmc);

/*
 * Makes a context node `self` of a channel. Contexts bound to one channel of a device reach
 * each other.
 * EINVAL no such channel or node; EBUSY the context is bound, or the place is taken.
 * [SCore-D] Signature ours.
 */
int pmBindChannel(pmContext *pmc, int channel, int self);

/*
 * Undoes pmBindChannel.
 * EINVAL the context is not bound; EBUSY a buffer of it is held.
 * [SCore-D] Signature ours.
 */
int pmUnbindChannel(pmContext *pmc);

/*
 * Makes a descriptor from which another process can attach the context, once. Meanwhile nobody
 * else may use the context.
 *   fdp OUT the descriptor, closed on exec
 * EMFILE no descriptor is left.
 * [SCore-D] Signature from the public man pages.
 */
int pmCreateAttachFd(pmContext *pmc, int *fdp);

/*
 * Closes a descriptor that pmCreateAttachFd made.
 * EINVAL it is no such descriptor.
 * [SCore-D] Signature ours.
 */
int pmCloseAttachFd(int fd);

/*
 * Attaches a context to this process, which is a user process from then on.
 *   type IN  name of the context's device
 *   fd   IN  descriptor from pmCreateAttachFd; it stays the caller's to close
 *   pmcp OUT the context
 * ENODEV no such device; EINVAL it is no such descriptor, or it was used before.
 * Manual page pmAttachContext(3).
 */
int pmAttachContext(char *type, int fd, pmContext **pmcp);

/*
 * Undoes pmAttachContext.
 * EBUSY the context is a member of a composite, or a buffer of it is held.
 * Signature ours.
 */
int pmDetachContext(pmContext *pmc);

/*
 * Tells what a context is.
 *   config OUT its configuration
 * Manual page pmGetContextConfig(3).
 */
int pmGetContextConfig(pmContext *pmc, pmContextConfig *config);

/*
 * Tells the node number of the calling process.
 *   selfp OUT the number
 * EINVAL it has none (yet).
 * Manual page pmGetSelf(3).
 */
int pmGetSelf(pmContext *pmc, int *selfp);

/*
 * Tells the longest message that can be sent to a node.
 *   mtup OUT length in bytes
 * EINVAL no such node.
 * Manual page pmGetMtu(3).
 */
int pmGetMtu(pmContext *pmc, int node, size_t *mtup);

/*
 * Drops what is queued here, both ways; the context stays bound.
 * EBUSY a buffer of it is held.
 * Signature ours.
 */
int pmResetContext(pmContext *pmc);

/*
 * Copies the state of a context, queued messages included, into memory.
 *   buf   OUT the copy
 *   sizep IN  length of buf; OUT length of the copy, always set
 * ENOSPC buf is too small.
 * [SCore-D] Signature ours.
 */
int pmSaveContext(pmContext *pmc, caddr_t buf, size_t *sizep);

/*
 * Brings a context back to a state that pmSaveContext has copied.
 * EINVAL buf holds no such state, or that of another kind of context.
 * [SCore-D] Signature ours.
 */
int pmRestoreContext(pmContext *pmc, caddr_t buf, size_t size);

/*
 * Tells whether everything sent from this context stands in its receiver's queue.
 * EBUSY not yet.
 * [SCore-D] Signature ours.
 */
int pmIsSendStable(pmContext *pmc);

/*
 * Sends a control message, apart from the others.
 *   buf, len IN 1 to PM_CONTROL_MTU bytes
 * EINVAL no such node, or length; ENOBUFS no room at the moment.
 * [SCore-D] Signature ours.
 */
int pmControlSend(pmContext *pmc, int node, caddr_t buf, size_t len);

/*
 * Takes a control message.
 *   nodep OUT who sent it
 *   buf   OUT the message
 *   lenp  IN  length of buf; OUT length of the message
 * ENOBUFS there is none; ENOSPC buf is too small, *lenp says what it takes.
 * Signature ours.
 */
int pmControlReceive(pmContext *pmc, int *nodep, caddr_t buf, size_t *lenp);

/* ---- Composites: messages to `node` go to node `member_node` of a member ---- */

/*
 * Sets the way to one node.
 * EINVAL node number; EBUSY the node has a way already, or the member belongs to another
 * composite; ENOSYS pmc is no composite.
 * Manual page pmAddNode(3).
 */
int pmAddNode(pmContext *pmc, int node, pmContext *member_pmc, int member_node);

/*
 * Removes the way to one node.
 * EINVAL node number, or it has no way; EIO internal error; ENOSYS pmc is no composite.
 * Manual page pmRemoveNode(3).
 */
int pmRemoveNode(pmContext *pmc, int node);

/*
 * Tells the way to one node.
 *   member_pmcp  OUT the member
 *   member_nodep OUT the node number there
 * EINVAL node number, or it has no way; ENOSYS pmc is no composite.
 * Manual page pmExtractNode(3).
 */
int pmExtractNode(pmContext *pmc, int node, pmContext **member_pmcp, int *member_nodep);

/*
 * Sets the ways to many nodes at once, all or none: to nodes[i] by member_nodes[i] of one member.
 * EINVAL, EBUSY, ENOSYS as pmAddNode.
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
 * ENOBUFS no room at the moment; EINVAL no such node, the calling node itself, a length of 0
 * or above the MTU; EBUSY another thread holds a buffer.
 * Manual page pmGetSendBuffer(3).
 */
int pmGetSendBuffer(pmContext *pmc, int dest, caddr_t *bufp, size_t len);

/*
 * Gets a buffer for a message to several nodes, as pmGetSendBuffer.
 *   dest, ndest IN destinations, no two alike
 * ENOBUFS, EINVAL, EBUSY as pmGetSendBuffer; ENOSYS the context cannot.
 * Manual page pmGetMulticastBuffer(3).
 */
int pmGetMulticastBuffer(pmContext *pmc, int *dest, int ndest, caddr_t *bufp, size_t len);

/*
 * Makes the message shorter than its buffer.
 *   len IN new length, 1 to the present one
 * EINVAL another length; EIO there is no buffer.
 * Manual page pmTruncateBuffer(3).
 */
int pmTruncateBuffer(pmContext *pmc, size_t len);

/*
 * Sends the message in the buffer and unlocks the sending side.
 * EIO there is no buffer.
 * Manual page pmSend(3).
 */
int pmSend(pmContext *pmc);

/*
 * Takes the next message, if there is one. On success the receiving side of the context is locked
 * until pmReleaseReceiveBuffer.
 *   bufp OUT the message, aligned to 16 bytes
 *   lenp OUT its length
 * ENOBUFS there is none; EBUSY another thread holds a message; EIO, EPIPE errors of the link.
 * Manual page pmReceive(3).
 */
int pmReceive(pmContext *pmc, caddr_t *bufp, size_t *lenp);

/*
 * Gives the message back and unlocks the receiving side.
 * EIO there is none.
 * Manual page pmReleaseReceiveBuffer(3).
 */
int pmReleaseReceiveBuffer(pmContext *pmc);

/*
 * Tells whether everything sent from this context has been received, though perhaps not yet
 * extracted, by its destinations.
 * EBUSY not yet; EIO something could not be sent.
 * Manual page pmIsSendDone(3).
 */
int pmIsSendDone(pmContext *pmc);

/*
 * Tells how many messages are under way.
 *   statp OUT the numbers
 * Manual page pmGetMessageQueueStatus(3).
 */
int pmGetMessageQueueStatus(pmContext *pmc, pmMessageQueueStatus *statp);

/* ---- Blocking receive (manual 3.3) ---- */

/*
 * Lists the descriptors on which select(2) or poll(2) wait for messages.
 *   fd   OUT array for the descriptors; may be NULL when *nfdp is 0
 *   nfdp IN  entries of the array; OUT number of descriptors, always set
 * ENOSPC the array is too small; EINVAL *nfdp is below 0; ENOMEM.
 * Manual page pmGetFd(3).
 */
int pmGetFd(pmContext *pmc, int *fd, int *nfdp);

/*
 * Has arriving messages wake the process. To be called before select(2); then pmReceive must
 * take all that is there.
 * Manual page pmBeforeSelect(3).
 */
int pmBeforeSelect(pmContext *pmc);

/*
 * Undoes pmBeforeSelect. To be called after select(2), whatever that has returned.
 * Manual page pmAfterSelect(3).
 */
int pmAfterSelect(pmContext *pmc);

/* ---- Remote memory (optional, manual 3.6) ---- */

/*
 * Locks memory for remote access. The same region locked again has the same handle and is to be
 * unlocked as often.
 *   rmt_node IN  the other end, or PM_NODE_ANY
 *   addr, len IN the region, of any alignment
 *   hndlp    OUT handle of its first byte
 * EINVAL node or length; ENOSPC too much is locked; ENOSYS.
 * Manual page pmMLock(3).
 */
int pmMLock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len, pmAddrHandle *hndlp);

/*
 * Unlocks memory: its handle is refused when this was the last lock.
 * Waits for copies that other processes of this host have under way there.
 * EINVAL node or length; ENOENT it was not locked; ENOSYS.
 * Manual page pmMUnlock(3).
 */
int pmMUnlock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len);

/*
 * Copies local memory to a remote region. What is sent to the same node afterwards, by pmSend,
 * pmWrite or pmRead, arrives later.
 *   rmt_hndl, local_hndl IN locked handles, plus offsets
 *   len IN 1 to PM_RMA_MTU bytes
 * EINVAL node, handle or length; ENOBUFS no room at the moment; ENOSYS.
 * Manual page pmWrite(3).
 */
int pmWrite(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
            size_t len);

/*
 * Copies a remote region to local memory; as pmWrite.
 * Manual page pmRead(3).
 */
int pmRead(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
           size_t len);

/*
 * Tells whether the local memory of all pmWrite calls may be altered.
 * EBUSY not yet; EIO one has failed, told once; ENOSYS.
 * Manual page pmIsWriteDone(3).
 */
int pmIsWriteDone(pmContext *pmc);

/*
 * Tells whether all pmRead calls have been carried out.
 * EBUSY not yet; EIO one has failed, told once; ENOSYS.
 * Manual page pmIsReadDone(3).
 */
int pmIsReadDone(pmContext *pmc);

/*
 * Ours: memory that PM and processes of the same host copy into and out of directly, at any
 * address; whole pages of zeroes. Nothing but pmFree may unmap or protect it. A child of fork
 * shares it.
 *   len IN   at least so many bytes
 *   addrp OUT
 * EINVAL len is 0; ENOMEM.
 */
int pmAlloc(pmContext *pmc, size_t len, caddr_t *addrp);

/*
 * Ours: gives back what pmAlloc gave, by any context.
 * EINVAL not such memory; EBUSY a part of it is locked.
 */
int pmFree(pmContext *pmc, caddr_t addr);

/* ---- Checkpoint, restart, migration (optional) ---- */

/*
 * Prepares a context for a checkpoint and calls back when it is ready: callback(arg, 0) before
 * this function returns, or callback(arg, 1) later.
 * ENOSYS. Signature from the public man pages.
 */
int pmCheckpoint(pmContext *pmc, void (*callback)(void *, int), void *arg);

/*
 * Brings a context back after a restart, in the user process.
 * ENOSYS. Signature from the public man pages.
 */
int pmRestartUser(pmContext *pmc);

/*
 * Brings a context back after a restart, in SCore-D.
 * ENOSYS. [SCore-D] Signature ours.
 */
int pmRestartSys(pmContext *pmc);

/*
 * Brings a context back after a migration, in the user process.
 * ENOSYS. Signature ours.
 */
int pmMigrateUser(pmContext *pmc);

/*
 * Brings a context back after a migration, in SCore-D.
 * ENOSYS. [SCore-D] Signature ours.
 */
int pmMigrateSys(pmContext *pmc);

/*
 * Lists the memory that PM has mapped in this process.
 *   mip   OUT array for the regions
 *   sizep IN  entries of the array; OUT number of regions, always set
 * ENOSPC the array is too small; EINVAL *sizep is not above 0; ENOSYS.
 * Signature from the public man pages.
 */
int pmGetMmapInfo(pmMmapInfo *mip, int *sizep);

/* ---- Debugging ---- */

/*
 * Sets how much PM says on standard error: 0 nothing, 1 errors, 2 warnings too, 3 everything
 * (manual, table 2.4). At start it is what the environment variable PM_DEBUG says.
 * EINVAL level is below 0.
 * Signature ours.
 */
int pmDebug(int level);

/*
 * Prints the state of a context on standard error.
 * Signature ours.
 */
int pmDumpContext(pmContext *pmc);

/*
 * Tells in words what a function's return value means. The words are not to be freed nor altered.
 * Manual page pmErrorString(3).
 */
char *pmErrorString(int error);

/* ---- For runtime libraries ---- */

/*
 * Tells PM where the number of idle threads of this process stands (manual 3.5.2). A pmSend that
 * finds it above 0 calls back before it sends: a thread that sends is not idle.
 *   word     IN the number, to be valid until the next call; NULL: none any more
 *   callback IN what to call; not NULL unless word is
 * Ours, for libscore.
 */
int pmSetIdleWord(const uint32_t *word, void (*callback)(void));

#ifdef __cplusplus
}
#endif

#endif /* SCORE_PM_H */
