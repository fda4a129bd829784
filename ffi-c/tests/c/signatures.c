/*
 * The functions of PM, declared a second time as in the manual's pages: a compiler refuses
 * declarations that differ. Also the macros of table 2.2.
 */
#include <pm.h>

int pmAddNode(pmContext *pmc, int node, pmContext *member_pmc, int member_node);
int pmAfterSelect(pmContext *pmc);
int pmAttachContext(char *type, int fd, pmContext **pmcp);
int pmBeforeSelect(pmContext *pmc);
char *pmErrorString(int error);
int pmExtractNode(pmContext *pmc, int node, pmContext **member_pmcp, int *member_nodep);
int pmGetContextConfig(pmContext *pmc, pmContextConfig *config);
int pmGetFd(pmContext *pmc, int *fd, int *nfdp);
int pmGetMessageQueueStatus(pmContext *pmc, pmMessageQueueStatus *statp);
int pmGetMtu(pmContext *pmc, int node, size_t *mtup);
int pmGetMulticastBuffer(pmContext *pmc, int *dest, int ndest, caddr_t *bufp, size_t len);
int pmGetSelf(pmContext *pmc, int *selfp);
int pmGetSendBuffer(pmContext *pmc, int dest, caddr_t *bufp, size_t len);
int pmIsReadDone(pmContext *pmc);
int pmIsSendDone(pmContext *pmc);
int pmIsWriteDone(pmContext *pmc);
int pmMLock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len, pmAddrHandle *hndlp);
int pmMUnlock(pmContext *pmc, int rmt_node, caddr_t addr, size_t len);
int pmRead(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
           size_t len);
int pmReceive(pmContext *pmc, caddr_t *bufp, size_t *lenp);
int pmReleaseReceiveBuffer(pmContext *pmc);
int pmRemoveNode(pmContext *pmc, int node);
int pmSend(pmContext *pmc);
int pmTruncateBuffer(pmContext *pmc, size_t len);
int pmWrite(pmContext *pmc, int rmt_node, pmAddrHandle rmt_hndl, pmAddrHandle local_hndl,
            size_t len);

/* From the public pages. */
int pmOpenDevice(char *type, int argc, char **argv, pmDevice **pmdp);
int pmCreateAttachFd(pmContext *pmc, int *fdp);
int pmCheckpoint(pmContext *pmc, void (*callback)(void *, int), void *arg);
int pmRestartUser(pmContext *pmc);
int pmGetMmapInfo(pmMmapInfo *mip, int *sizep);

/* Usable in the preprocessor, with the specified values. */
#if PM_SUCCESS != 0 || PM_MAX_NODE != 1048576 || PM_MIN_MTU != 1024 || PM_RMA_MTU != (1 << 30)
#error "a macro of table 2.2 has changed"
#endif
#if PM_NODE_ANY >= 0 || (PM_OPT_REMOTE_WRITE & PM_OPT_REMOTE_READ)
#error "PM_NODE_ANY is a node, or the option bits overlap"
#endif

/* The members of the manual's structures have these names and types. */
static const char *const *type_of(const pmContextConfig *config) {
    return &config->type;
}

int main(void) {
    pmContextConfig config = {"", 1, 2, 3, 4, 5ul};
    pmMessageQueueStatus status = {1, 2, 3};
    pmAddrHandle handle = 0;
    int *ints[] = {&config.number, &config.nodes, &status.receive, &status.send, &status.read};
    size_t *sizes[] = {&config.mtu, &config.size};
    unsigned long *option = &config.option;

    handle += 8;
    return *type_of(&config) == NULL || *ints[0] + *ints[4] != 4 || *sizes[1] != 4 ||
           *option != 5 || handle != 8;
}
