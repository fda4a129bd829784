/*
 * The ping-pong of pingpong.c by calls of libfabric alone, on two nodes over the provider pm.
 *
 *   fi_pingpong latency SIZE   a line "SIZE BEST_NS MEDIAN_NS", one way
 *   fi_pingpong rate SIZE      a line "SIZE MESSAGES_PER_S", best batch
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

enum { BATCH = 32, BATCHES = 1000, WARM_UP = 1000, LONGEST = 4096 };
enum { WINDOW = 64, WINDOWS = 800, BURSTS = 12, READ_AT_ONCE = 16 };

static char out[LONGEST], in[LONGEST];
static uint32_t self_node;
static fi_addr_t peer;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fi_context contexts[WINDOW];

static void check(int result, const char *call)
{
    if (result >= 0) return;
    fprintf(stderr, "node %u: %s: %s\n", self_node, call, fi_strerror(-result));
    exit(1);
}

static void pin(void)
{
    cpu_set_t allowed, own;
    int cpu, seen = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && seen++ == (int)self_node) break;
    }
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

/* Opens an endpoint, and inserts the address of the other node. The second half of a name is the
 * node. */
static void open_endpoint(void)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    uint32_t name[2];
    size_t len = sizeof name;

    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup("pm");
    check(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info), "fi_getinfo");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    check(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
    check(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
    check(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
    check(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_enable(ep), "fi_enable");
    check(fi_getname(&ep->fid, name, &len), "fi_getname");
    self_node = name[1];
    name[1] = 1 - self_node;
    check(fi_av_insert(av, name, 1, &peer, 0, NULL), "fi_av_insert");
}

static void wait_for(int count)
{
    struct fi_cq_tagged_entry entries[READ_AT_ONCE];
    ssize_t done;

    while (count > 0) {
        done = fi_cq_read(cq, entries, count < READ_AT_ONCE ? count : READ_AT_ONCE);
        if (done > 0) count -= done;
        else if (done != -FI_EAGAIN) check(done, "fi_cq_read");
    }
}

static void send_short(int size)
{
    ssize_t result;

    while ((result = fi_tinject(ep, out, size, peer, 7)) == -FI_EAGAIN) fi_cq_read(cq, NULL, 0);
    check(result, "fi_tinject");
}

static void post(int size, int index)
{
    check(fi_trecv(ep, in, size, NULL, peer, 7, 0, &contexts[index]), "fi_trecv");
}

static void round_trips(int size, int count)
{
    int i;

    for (i = 0; i < count; i++) {
        if (self_node == 0) send_short(size);
        post(size, 0);
        wait_for(1);
        if (self_node == 1) send_short(size);
    }
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(int size)
{
    static double sample[BATCHES];
    int i;

    round_trips(size, WARM_UP);
    for (i = 0; i < BATCHES; i++) {
        double start = now();
        round_trips(size, BATCH);
        sample[i] = (now() - start) / (2 * BATCH);
    }
    qsort(sample, BATCHES, sizeof sample[0], by_value);
    if (self_node == 0) printf("%d %.1f %.1f\n", size, sample[0], sample[BATCHES / 2]);
}

static void rate(int size)
{
    double best = 0, start, messages_per_s;
    int burst, window, i;

    for (burst = 0; burst < BURSTS; burst++) {
        start = now();
        for (window = 0; window < WINDOWS; window++) {
            for (i = 0; i < WINDOW; i++) {
                if (self_node == 0) send_short(size);
                else post(size, i);
            }
            if (self_node == 1) wait_for(WINDOW);
        }
        if (self_node == 1) send_short(size);
        else post(size, 0), wait_for(1);
        messages_per_s = (double)WINDOW * WINDOWS / ((now() - start) * 1e-9);
        if (messages_per_s > best) best = messages_per_s;
    }
    if (self_node == 0) printf("%d %.0f\n", size, best);
}

int main(int argc, char **argv)
{
    int i;

    open_endpoint();
    pin();
    for (i = 2; i < argc; i++) {
        int size = atoi(argv[i]);
        if (size < 1 || size > LONGEST) return 2;
        if (strcmp(argv[1], "latency") == 0) latency(size);
        else rate(size);
    }
    return 0;
}
