/*
 * Calls libfabric directly, on two nodes over the provider pm: hints, messages of all kinds, remote
 * memory, atomic operations, counters, waiting, several domains, and an endpoint that is closed and
 * opened again. Prints "ok" on each node.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define VERSION FI_VERSION(1, 15)
#define CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE)
#define MEMORY_MODE (FI_MR_ALLOCATED | FI_MR_PROV_KEY)

enum { LONG = 200000, REGION = 1 << 18, KEPT = 16 };

static uint32_t self_node;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "node %u, line %d: %s\n", self_node, __LINE__, #condition);            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* An endpoint and all objects that belong to it. */
struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_cntr *sends, *receives, *reads, *writes;
    struct fid_ep *ep;
    fi_addr_t peer, own;
    /* Entries that were read while the program waited for another one, with their sources. */
    struct fi_cq_tagged_entry kept[KEPT];
    fi_addr_t kept_sources[KEPT];
    size_t kept_count;
};

static struct fi_info *hints_of(uint64_t caps, int mr_mode)
{
    struct fi_info *hints = fi_allocinfo();

    hints->caps = caps;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup("pm");
    return hints;
}

/* Whether fi_getinfo finds an info for these hints. Frees the hints. */
static int is_offered(struct fi_info *hints)
{
    struct fi_info *info = NULL;
    int result = fi_getinfo(VERSION, NULL, NULL, 0, hints, &info);

    CHECK(result == 0 || result == -FI_ENODATA);
    if (info) fi_freeinfo(info);
    fi_freeinfo(hints);
    return result == 0;
}

static void refused_hints(void)
{
    struct fi_info *hints;

    CHECK(is_offered(hints_of(CAPS, MEMORY_MODE)));
    CHECK(is_offered(hints_of(CAPS, MEMORY_MODE | FI_MR_ENDPOINT | FI_MR_VIRT_ADDR)));
    CHECK(is_offered(hints_of(FI_MSG | FI_TAGGED, 0)));
    CHECK(!is_offered(hints_of(FI_MSG | FI_RMA, 0)));
    CHECK(!is_offered(hints_of(FI_ATOMIC, FI_MR_PROV_KEY)));
    CHECK(!is_offered(hints_of(FI_MSG | FI_COLLECTIVE, MEMORY_MODE)));
    hints = hints_of(CAPS, MEMORY_MODE), hints->ep_attr->type = FI_EP_MSG;
    CHECK(!is_offered(hints));
    hints = hints_of(CAPS, MEMORY_MODE), hints->tx_attr->inject_size = 1 << 20;
    CHECK(!is_offered(hints));
    hints = hints_of(CAPS, MEMORY_MODE), hints->tx_attr->msg_order = FI_ORDER_RAW;
    CHECK(!is_offered(hints));
    hints = hints_of(CAPS, MEMORY_MODE), hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    CHECK(!is_offered(hints));
    hints = hints_of(CAPS, MEMORY_MODE), hints->tx_attr->rma_iov_limit = 2;
    CHECK(!is_offered(hints));
}

static void open_counter(struct side *side, struct fid_cntr **counter, uint64_t flags)
{
    struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};

    CHECK(fi_cntr_open(side->domain, &attr, counter, NULL) == 0);
    CHECK(fi_ep_bind(side->ep, &(*counter)->fid, flags) == 0);
}

/* Inserts the address of the other node's endpoint. The second half of a name is the node. */
static void insert_peer(struct side *side)
{
    uint32_t name[2];
    size_t len = sizeof name;

    CHECK(fi_getname(&side->ep->fid, name, &len) == 0 && len == sizeof name);
    self_node = name[1];
    CHECK(fi_av_insert(side->av, name, 1, &side->own, 0, NULL) == 1);
    name[1] = 1 - self_node;
    CHECK(fi_av_insert(side->av, name, 1, &side->peer, 0, NULL) == 1);
    name[1] = 2;
    CHECK(fi_av_insert(side->av, name, 1, &(fi_addr_t){0}, 0, NULL) == 0);
}

static void open_endpoint(struct side *side)
{
    CHECK(fi_endpoint(side->domain, side->info, &side->ep, NULL) == 0);
    CHECK(fi_ep_bind(side->ep, &side->av->fid, 0) == 0);
    CHECK(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    open_counter(side, &side->sends, FI_SEND);
    open_counter(side, &side->receives, FI_RECV);
    open_counter(side, &side->reads, FI_READ);
    open_counter(side, &side->writes, FI_WRITE);
    CHECK(fi_enable(side->ep) == 0);
}

static void close_endpoint(struct side *side)
{
    CHECK(fi_close(&side->ep->fid) == 0);
    CHECK(fi_close(&side->sends->fid) == 0 && fi_close(&side->receives->fid) == 0);
    CHECK(fi_close(&side->reads->fid) == 0 && fi_close(&side->writes->fid) == 0);
}

static void open_side(struct side *side)
{
    struct fi_info *hints = hints_of(CAPS, MEMORY_MODE);
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

    CHECK(fi_getinfo(VERSION, NULL, NULL, 0, hints, &side->info) == 0);
    fi_freeinfo(hints);
    CHECK((side->info->caps & CAPS) == CAPS);
    CHECK(side->info->domain_attr->mr_mode == MEMORY_MODE);
    CHECK(fi_fabric(side->info->fabric_attr, &side->fabric, NULL) == 0);
    CHECK(fi_domain(side->fabric, side->info, &side->domain, NULL) == 0);
    CHECK(fi_av_open(side->domain, &av_attr, &side->av, NULL) == 0);
    CHECK(fi_cq_open(side->domain, &cq_attr, &side->cq, NULL) == 0);
    open_endpoint(side);
    insert_peer(side);
}

static void close_side(struct side *side)
{
    close_endpoint(side);
    CHECK(fi_close(&side->cq->fid) == 0 && fi_close(&side->av->fid) == 0);
    CHECK(fi_close(&side->domain->fid) == 0 && fi_close(&side->fabric->fid) == 0);
    fi_freeinfo(side->info);
}

static void keep(struct side *side, struct fi_cq_tagged_entry entry, fi_addr_t source)
{
    CHECK(side->kept_count < KEPT);
    side->kept[side->kept_count] = entry;
    side->kept_sources[side->kept_count++] = source;
}

/* Removes the first kept entry for this context. */
static int take_kept(struct side *side, void *context, struct fi_cq_tagged_entry *entry,
                     fi_addr_t *source)
{
    for (size_t i = 0; i < side->kept_count; i++) {
        if (side->kept[i].op_context != context) continue;
        *entry = side->kept[i], *source = side->kept_sources[i];
        side->kept_count--;
        memmove(side->kept + i, side->kept + i + 1,
                (side->kept_count - i) * sizeof side->kept[0]);
        memmove(side->kept_sources + i, side->kept_sources + i + 1,
                (side->kept_count - i) * sizeof side->kept_sources[0]);
        return 1;
    }
    return 0;
}

/* Returns the next entry for this context. Operations complete in any order (FI_ORDER_NONE). */
static struct fi_cq_tagged_entry next(struct side *side, void *context, fi_addr_t *source)
{
    struct fi_cq_tagged_entry entry;
    fi_addr_t from = FI_ADDR_NOTAVAIL;

    while (!take_kept(side, context, &entry, &from)) {
        ssize_t count = fi_cq_readfrom(side->cq, &entry, 1, &from);
        if (count == -FI_EAGAIN) continue;
        CHECK(count == 1);
        keep(side, entry, from);
        from = FI_ADDR_NOTAVAIL;
    }
    if (source) *source = from;
    return entry;
}

/* Returns the error of the next operation, which must fail. */
static int next_error(struct side *side, void *context)
{
    struct fi_cq_err_entry error = {0};
    struct fi_cq_tagged_entry entry;
    fi_addr_t source = FI_ADDR_NOTAVAIL;
    ssize_t count;

    while ((count = fi_cq_readfrom(side->cq, &entry, 1, &source)) != -FI_EAVAIL) {
        if (count == -FI_EAGAIN) continue;
        CHECK(count == 1);
        keep(side, entry, source);
        source = FI_ADDR_NOTAVAIL;
    }
    CHECK(fi_cq_readerr(side->cq, &error, 0) == 1);
    CHECK(error.op_context == context);
    return error.err;
}

/* Repeats a call as long as it returns FI_EAGAIN. */
#define RETRY(side, call)                                                                          \
    do {                                                                                           \
        ssize_t result_;                                                                           \
        while ((result_ = (call)) == -FI_EAGAIN) fi_cq_read((side)->cq, NULL, 0);                  \
        CHECK(result_ == 0);                                                                       \
    } while (0)

/* Sends bytes to the other node, and receives as many. */
static void exchange(struct side *side, const void *out, void *in, size_t len, uint64_t tag)
{
    int context_of_receive, context_of_send, seen = 0;

    RETRY(side, fi_trecv(side->ep, in, len, NULL, side->peer, tag, 0, &context_of_receive));
    RETRY(side, fi_tsend(side->ep, out, len, NULL, side->peer, tag, &context_of_send));
    while (seen != 3) {
        struct fi_cq_tagged_entry entry;
        fi_addr_t source = FI_ADDR_NOTAVAIL;
        ssize_t count = fi_cq_readfrom(side->cq, &entry, 1, &source);
        if (count == -FI_EAGAIN) continue;
        CHECK(count == 1);
        if (entry.op_context == &context_of_receive) {
            seen |= 1;
        } else if (entry.op_context == &context_of_send) {
            seen |= 2;
        } else {
            keep(side, entry, source);
        }
    }
}

static void barrier(struct side *side)
{
    char out = 0, in;

    exchange(side, &out, &in, 1, 0xba);
}

static void messages(struct side *side)
{
    static unsigned char out[LONG], in[LONG];
    int a, b;
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;

    for (int i = 0; i < LONG; i++) out[i] = (unsigned char)(i * 7 + self_node);
    for (size_t len = 0; len <= LONG; len = len * 3 + 1) {
        memset(in, 0, sizeof in);
        exchange(side, out, in, len, len);
        for (size_t i = 0; i < len; i++) CHECK(in[i] == (unsigned char)(i * 7 + 1 - self_node));
    }
    /* Receives from any source. Checks the number that came with the message, and the source. */
    RETRY(side, fi_recv(side->ep, in, 100, NULL, FI_ADDR_UNSPEC, &a));
    barrier(side);
    RETRY(side, fi_injectdata(side->ep, out, 10, 0x123456789, side->peer));
    entry = next(side, &a, &source);
    CHECK(entry.flags == (FI_MSG | FI_RECV | FI_REMOTE_CQ_DATA) && entry.len == 10);
    CHECK(entry.data == 0x123456789 && source == side->peer);
    /* Sends a message that is too long, and cancels a receive. */
    RETRY(side, fi_trecv(side->ep, in, 4, NULL, side->peer, 5, 0, &a));
    RETRY(side, fi_tinject(side->ep, out, 9, side->peer, 5));
    CHECK(next_error(side, &a) == FI_ETRUNC);
    RETRY(side, fi_trecv(side->ep, in, 4, NULL, side->peer, 6, 0, &b));
    CHECK(fi_cancel(&side->ep->fid, &b) == 0);
    CHECK(next_error(side, &b) == FI_ECANCELED);
    /* Sends to the node's own endpoint. */
    RETRY(side, fi_trecv(side->ep, in, 4, NULL, side->own, 8, 0, &a));
    RETRY(side, fi_tinject(side->ep, out, 4, side->own, 8));
    next(side, &a, &source);
    CHECK(source == side->own && memcmp(in, out, 4) == 0);
}

/* Probes for a message. Returns its length, or -1 if there is none, in which case the operation
 * fails. */
static ssize_t look(struct side *side, struct fi_msg_tagged *message, uint64_t flags)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    ssize_t count;

    CHECK(side->kept_count == 0);
    CHECK(fi_trecvmsg(side->ep, message, flags) == 0);
    do {
        count = fi_cq_read(side->cq, &entry, 1);
    } while (count == -FI_EAGAIN);
    if (count == 1) {
        CHECK(entry.op_context == message->context);
        return entry.len;
    }
    CHECK(count == -FI_EAVAIL && fi_cq_readerr(side->cq, &error, 0) == 1);
    CHECK(error.op_context == message->context && error.err == FI_ENOMSG);
    return -1;
}

static void looks(struct side *side)
{
    char in[8] = "";
    int context;
    struct fi_msg_tagged message = {
        .addr = side->peer, .tag = 20, .context = &context, .iov_count = 0};
    struct iovec iov = {in, sizeof in};
    ssize_t len;

    RETRY(side, fi_tinject(side->ep, "first", 6, side->peer, 20));
    RETRY(side, fi_tinject(side->ep, "second", 7, side->peer, 20));
    message.tag = 21;
    CHECK(look(side, &message, FI_PEEK) == -1);
    message.tag = 20;
    while ((len = look(side, &message, FI_PEEK)) == -1);
    CHECK(len == 6);
    CHECK(look(side, &message, FI_PEEK | FI_CLAIM) == 6);
    message.msg_iov = &iov, message.iov_count = 1;
    CHECK(fi_trecvmsg(side->ep, &message, FI_CLAIM) == 0);
    CHECK(next(side, &context, NULL).len == 6 && strcmp(in, "first") == 0);
    while ((len = look(side, &message, FI_PEEK | FI_DISCARD)) == -1);
    CHECK(look(side, &message, FI_PEEK) == -1);
    barrier(side);
}

/* Receives several messages into one buffer, until too little of it is left. */
static void multi_receive(struct side *side)
{
    static char in[1000], out[400];
    int context;
    size_t min_free = 300;
    struct iovec iov = {in, sizeof in};
    struct fi_msg message = {
        .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &context};
    struct fi_cq_tagged_entry entry;

    CHECK(fi_setopt(&side->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min_free,
                    sizeof min_free) == 0);
    RETRY(side, fi_recvmsg(side->ep, &message, FI_MULTI_RECV));
    barrier(side);
    for (int i = 0; i < 2; i++) {
        memset(out, 'a' + i, sizeof out);
        RETRY(side, fi_inject(side->ep, out, sizeof out, side->peer));
    }
    for (int i = 0; i < 2; i++) {
        entry = next(side, &context, NULL);
        CHECK(entry.len == sizeof out && entry.buf == in + 400 * i && in[400 * i] == 'a' + i);
    }
    CHECK(next(side, &context, NULL).flags & FI_MULTI_RECV);
    barrier(side);
}

/* Keys of the regions of a node. */
struct keys {
    uint64_t open, readable;
};

static void remote_memory(struct side *side)
{
    static unsigned char open[REGION], readable[REGION], out[LONG], in[LONG];
    struct fid_mr *open_mr, *readable_mr;
    struct keys own, peer;
    int context;
    struct fi_cq_tagged_entry entry;
    uint64_t writes = fi_cntr_read(side->writes), reads = fi_cntr_read(side->reads);
    struct iovec pieces[2] = {{out, 10}, {out + 50, 20}};

    CHECK(fi_mr_reg(side->domain, open, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0,
                    &open_mr, NULL) == 0);
    CHECK(fi_mr_reg(side->domain, readable, REGION, FI_REMOTE_READ, 0, 0, 0, &readable_mr,
                    NULL) == 0);
    own = (struct keys){fi_mr_key(open_mr), fi_mr_key(readable_mr)};
    for (int i = 0; i < REGION; i++) readable[i] = (unsigned char)(i * 3 + self_node);
    exchange(side, &own, &peer, sizeof own, 30);
    for (int i = 0; i < LONG; i++) out[i] = (unsigned char)(i * 5 + self_node);
    /* Writes and reads lengths that PM and messages transfer. */
    for (size_t len = 1; len <= LONG; len = len * 7 + 3) {
        RETRY(side, fi_write(side->ep, out, len, NULL, side->peer, 1000, peer.open, &context));
        entry = next(side, &context, NULL);
        CHECK(entry.flags == (FI_RMA | FI_WRITE));
        memset(in, 0, len);
        RETRY(side, fi_read(side->ep, in, len, NULL, side->peer, 1000, peer.open, &context));
        CHECK(next(side, &context, NULL).flags == (FI_RMA | FI_READ));
        CHECK(memcmp(in, out, len) == 0);
        RETRY(side, fi_read(side->ep, in, len, NULL, side->peer, 7, peer.readable, &context));
        next(side, &context, NULL);
        for (size_t i = 0; i < len; i++) {
            CHECK(in[i] == (unsigned char)((i + 7) * 3 + 1 - self_node));
        }
        writes++, reads += 2;
    }
    RETRY(side, fi_writev(side->ep, pieces, NULL, 2, side->peer, 2000, peer.open, &context));
    next(side, &context, NULL);
    RETRY(side, fi_read(side->ep, in, 30, NULL, side->peer, 2000, peer.open, &context));
    next(side, &context, NULL);
    CHECK(memcmp(in, out, 10) == 0 && memcmp(in + 10, out + 50, 20) == 0);
    writes++, reads++;
    /* The operation has no completion entry, but is counted when the bytes have arrived. */
    RETRY(side, fi_inject_write(side->ep, out + 9, 8, side->peer, 3000, peer.open));
    CHECK(fi_cntr_wait(side->writes, ++writes, 10000) == 0);
    CHECK(fi_cntr_read(side->reads) == reads && fi_cntr_readerr(side->writes) == 0);
    barrier(side);
    for (int i = 0; i < 8; i++) {
        CHECK(open[3000 + i] == (unsigned char)((i + 9) * 5 + 1 - self_node));
    }
    /* These operations are outside of the region, write to a read-only region, or use an unknown
     * key. */
    RETRY(side, fi_write(side->ep, out, 9, NULL, side->peer, REGION - 8, peer.open, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    RETRY(side, fi_write(side->ep, out, 1, NULL, side->peer, 0, peer.readable, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    RETRY(side, fi_read(side->ep, in, 2, NULL, side->peer, REGION - 1, peer.readable, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    RETRY(side, fi_read(side->ep, in, 1, NULL, side->peer, 0, peer.open + 99, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    CHECK(fi_cntr_readerr(side->writes) == 2 && fi_cntr_readerr(side->reads) == 2);
    barrier(side);
    /* A write notifies the target, after another write. */
    RETRY(side, fi_write(side->ep, out, LONG, NULL, side->peer, 0, peer.open, &context));
    next(side, &context, NULL);
    struct fi_rma_iov remote = {100, 50, peer.open};
    struct iovec iov = {out, 50};
    struct fi_msg_rma message = {.msg_iov = &iov,
                                 .iov_count = 1,
                                 .addr = side->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = &context,
                                 .data = 0xfeed};
    RETRY(side, fi_writemsg(side->ep, &message,
                            FI_REMOTE_CQ_DATA | FI_FENCE | FI_DELIVERY_COMPLETE));
    for (int seen = 0; seen != 3;) {
        /* The peer's notification may arrive before the first write of this node completes. */
        fi_addr_t source;
        ssize_t count =
            take_kept(side, NULL, &entry, &source) ? 1 : fi_cq_read(side->cq, &entry, 1);
        if (count == -FI_EAGAIN) continue;
        CHECK(count == 1);
        if (entry.op_context == &context) {
            seen |= 1;
            continue;
        }
        CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
        CHECK(entry.data == 0xfeed && entry.len == 50);
        for (int i = 0; i < 50; i++) CHECK(open[100 + i] == (unsigned char)(i * 5 + 1 - self_node));
        seen |= 2;
    }
    barrier(side);
    CHECK(fi_close(&open_mr->fid) == 0 && fi_close(&readable_mr->fid) == 0);
    barrier(side);
    RETRY(side, fi_read(side->ep, in, 1, NULL, side->peer, 0, peer.open, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    barrier(side);
}

static void atomics(struct side *side)
{
    static struct {
        int64_t sum, swapped;
        double real;
    } region;
    struct fid_mr *mr;
    uint64_t own, key;
    int64_t one = 1, former, compared = 0, mine = self_node + 1, nothing = 0;
    double half = 0.5;
    size_t count = 0;
    int context, won;
    struct fi_atomic_attr attr;

    CHECK(fi_mr_reg(side->domain, &region, sizeof region, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0,
                    0, &mr, NULL) == 0);
    own = fi_mr_key(mr);
    exchange(side, &own, &key, sizeof own, 40);
    CHECK(fi_atomicvalid(side->ep, FI_INT64, FI_SUM, &count) == 0 && count >= 32);
    CHECK(fi_fetch_atomicvalid(side->ep, FI_DOUBLE, FI_ATOMIC_READ, &count) == 0);
    CHECK(fi_compare_atomicvalid(side->ep, FI_UINT32, FI_CSWAP, &count) == 0);
    CHECK(fi_atomicvalid(side->ep, FI_INT64, FI_CSWAP, &count) == -FI_EOPNOTSUPP);
    CHECK(fi_atomicvalid(side->ep, FI_DOUBLE, FI_BOR, &count) == -FI_EOPNOTSUPP);
    CHECK(fi_query_atomic(side->domain, FI_DOUBLE, FI_SUM, &attr, FI_FETCH_ATOMIC) == 0);
    CHECK(attr.size == 8 && attr.count > 0);
    /* Both nodes add to the numbers of both nodes. */
    for (int i = 0; i < 1000; i++) {
        fi_addr_t to = i % 2 ? side->peer : side->own;
        uint64_t at = i % 2 ? key : own;
        RETRY(side, fi_fetch_atomic(side->ep, &one, 1, NULL, &former, NULL, to, 0, at, FI_INT64,
                                    FI_SUM, &context));
        CHECK(next(side, &context, NULL).flags == (FI_ATOMIC | FI_READ));
        CHECK(former >= i / 2 && former < 1000);
        RETRY(side, fi_atomic(side->ep, &half, 1, NULL, to, 16, at, FI_DOUBLE, FI_SUM, &context));
        CHECK(next(side, &context, NULL).flags == (FI_ATOMIC | FI_WRITE));
    }
    barrier(side);
    CHECK(region.sum == 1000 && region.real == 500);
    /* Both nodes swap the same number. Only one finds the value that it has compared with. */
    RETRY(side, fi_compare_atomic(side->ep, &mine, 1, NULL, &compared, NULL, &former, NULL,
                                  self_node ? side->peer : side->own, 8, self_node ? key : own,
                                  FI_INT64, FI_CSWAP, &context));
    next(side, &context, NULL);
    won = former == 0;
    CHECK(won || former == 2 - (int64_t)self_node);
    barrier(side);
    if (self_node == 0) CHECK(region.swapped == (won ? 1 : 2));
    RETRY(side, fi_fetch_atomic(side->ep, NULL, 1, NULL, &former, NULL, side->peer, 0, key,
                                FI_INT64, FI_ATOMIC_READ, &context));
    next(side, &context, NULL);
    CHECK(former == 1000);
    RETRY(side, fi_inject_atomic(side->ep, &nothing, 1, side->peer, 0, key, FI_INT64,
                                 FI_ATOMIC_WRITE));
    RETRY(side, fi_atomic(side->ep, &one, 1, NULL, side->peer, sizeof region - 4, key, FI_INT64,
                          FI_SUM, &context));
    CHECK(next_error(side, &context) == FI_ENOKEY);
    barrier(side);
    CHECK(region.sum == 0);
    CHECK(fi_close(&mr->fid) == 0);
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *signal_later(void *queue)
{
    usleep(100000);
    CHECK(fi_cq_signal(queue) == 0);
    return NULL;
}

static double processor_time(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void waiting(struct side *side)
{
    struct fi_cq_tagged_entry entry;
    struct fid *objects[] = {&side->cq->fid};
    double begin = now(), used = processor_time();
    char in;
    int context, descriptor;
    pthread_t thread;

    CHECK(fi_cq_sread(side->cq, &entry, 1, NULL, 200) == -FI_EAGAIN);
    CHECK(now() - begin >= 0.19);
    CHECK(fi_cntr_wait(side->receives, fi_cntr_read(side->receives) + 1, 100) == -FI_ETIMEDOUT);
    CHECK(pthread_create(&thread, NULL, signal_later, side->cq) == 0);
    CHECK(fi_cq_sread(side->cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
    pthread_join(thread, NULL);
    barrier(side);
    /* One node waits on the descriptor until the other node sends. */
    CHECK(fi_control(&side->cq->fid, FI_GETWAIT, &descriptor) == 0);
    for (int i = 0; i < 4; i++) {
        if (i % 2 == (int)self_node) {
            usleep(200000);
            RETRY(side, fi_tinject(side->ep, "x", 1, side->peer, 50));
            continue;
        }
        int polls = 0;
        RETRY(side, fi_trecv(side->ep, &in, 1, NULL, side->peer, 50, 0, &context));
        while (fi_cq_read(side->cq, &entry, 1) == -FI_EAGAIN) {
            struct pollfd polled = {descriptor, POLLIN, 0};
            int result = fi_trywait(side->fabric, objects, 1);
            if (result == -FI_EAGAIN) continue;
            CHECK(result == 0);
            CHECK(poll(&polled, 1, 10000) == 1);
            CHECK(++polls < 100);
        }
        CHECK(entry.op_context == &context);
    }
    CHECK(processor_time() - used < 0.5 * (now() - begin));
    barrier(side);
}

/* Opens two domains in a process. A message to one endpoint is not received on the other. */
static void two_domains(struct side *first)
{
    struct side second = {0};
    char in[2] = {0, 0};
    int a, b;

    open_side(&second);
    RETRY(first, fi_trecv(first->ep, &in[0], 1, NULL, first->peer, 60, 0, &a));
    RETRY(&second, fi_trecv(second.ep, &in[1], 1, NULL, second.peer, 60, 0, &b));
    barrier(first);
    barrier(&second);
    RETRY(&second, fi_tinject(second.ep, "2", 1, second.peer, 60));
    RETRY(first, fi_tinject(first->ep, "1", 1, first->peer, 60));
    next(first, &a, NULL);
    next(&second, &b, NULL);
    CHECK(in[0] == '1' && in[1] == '2');
    messages(&second);
    remote_memory(&second);
    barrier(&second);
    close_side(&second);
}

int main(void)
{
    struct side side = {0};

    refused_hints();
    open_side(&side);
    messages(&side);
    looks(&side);
    multi_receive(&side);
    remote_memory(&side);
    atomics(&side);
    waiting(&side);
    two_domains(&side);
    /* Closes and opens the endpoint. A message that was sent meanwhile waits. */
    for (int i = 0; i < 3; i++) {
        barrier(&side);
        RETRY(&side, fi_tinject(side.ep, "late", 5, side.peer, 70 + i));
        close_endpoint(&side);
        open_endpoint(&side);
        char in[5];
        int context;
        RETRY(&side, fi_trecv(side.ep, in, 5, NULL, side.peer, 70 + i, 0, &context));
        next(&side, &context, NULL);
        CHECK(strcmp(in, "late") == 0);
    }
    barrier(&side);
    printf("ok\n");
    close_side(&side);
    return 0;
}
