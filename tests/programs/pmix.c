/* Calls PMIx as a process of Open MPI does. The first argument selects the calls.
 * tests/scenarios/pmix.rs starts this program and checks what it prints. */
#include <pmix.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pmix_proc_t self;
static uint32_t size;

static void check(pmix_status_t status, const char *call)
{
    if (status != PMIX_SUCCESS) {
        printf("%u: %s: %s\n", self.rank, call, PMIx_Error_string(status));
        exit(3);
    }
}

/* Returns bytes that cannot be compressed, and that differ between ranks. */
static unsigned char *bytes_of(uint32_t rank, size_t len)
{
    unsigned char *bytes = malloc(len);
    uint64_t state = 0x9e3779b97f4a7c15u * (rank + 1);
    for (size_t at = 0; at < len; at++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[at] = (unsigned char)(state >> 24);
    }
    return bytes;
}

static void put(const char *key, size_t len)
{
    pmix_value_t value = { .type = PMIX_BYTE_OBJECT };
    value.data.bo.bytes = (char *)bytes_of(self.rank, len);
    value.data.bo.size = len;
    check(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
    check(PMIx_Commit(), "PMIx_Commit");
}

/* `seconds` is the time limit; 0 means no limit. */
static const char *get_within(uint32_t rank, const char *key, size_t len, int seconds)
{
    pmix_proc_t process = self;
    pmix_value_t *value;
    pmix_info_t info;
    process.rank = rank;
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_INT);
    pmix_status_t status = PMIx_Get(&process, key, seconds ? &info : NULL, seconds != 0, &value);
    if (status == PMIX_ERR_NOT_FOUND)
        return "not found";
    if (status == PMIX_ERR_TIMEOUT)
        return "too late";
    if (status != PMIX_SUCCESS)
        return PMIx_Error_string(status);
    if (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != len
        || memcmp(value->data.bo.bytes, bytes_of(rank, len), len) != 0)
        return "other bytes";
    return "found";
}

static const char *get(uint32_t rank, const char *key, size_t len)
{
    return get_within(rank, key, len, 0);
}

static void fence(int collects)
{
    pmix_info_t info;
    bool flag = true;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &flag, PMIX_BOOL);
    check(PMIx_Fence(NULL, 0, collects ? &info : NULL, collects), "PMIx_Fence");
}

/* A fence of every `step`th rank from `first`. Each rank makes a file before it, and checks all
 * files after it. */
static void fence_of(uint32_t first, uint32_t step, int round)
{
    pmix_proc_t members[64];
    size_t count = 0;
    char name[64];
    pmix_info_t info;
    bool flag = true;

    for (uint32_t rank = first; rank < size && count < 64; rank += step) {
        members[count] = self;
        members[count++].rank = rank;
    }
    usleep(100000 * self.rank);
    snprintf(name, sizeof(name), "in-%u-%u-%d-%u", first, step, round, self.rank);
    fclose(fopen(name, "w"));
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &flag, PMIX_BOOL);
    check(PMIx_Fence(members, count, &info, 1), "PMIx_Fence");
    for (size_t member = 0; member < count; member++) {
        snprintf(name, sizeof(name), "in-%u-%u-%d-%u", first, step, round, members[member].rank);
        if (access(name, F_OK) != 0)
            printf("%u: %u is not in the fence\n", self.rank, members[member].rank);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    const char *own_rank = getenv("PMIX_RANK");

    if (strcmp(what, "absent") == 0 && own_rank != NULL && atoi(own_rank) == 1)
        return 0; /* The rank never calls PMIx_Init. */
    check(PMIx_Init(&self, NULL, 0), "PMIx_Init");
    pmix_proc_t job = self;
    pmix_value_t *job_size;
    job.rank = PMIX_RANK_WILDCARD;
    check(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &job_size), "PMIx_Get");
    size = job_size->data.uint32;
    uint32_t last = size - 1;

    if (strcmp(what, "get") == 0) {
        /* Each rank gets the data of each other rank without a fence, even of a rank that puts it
         * late. */
        if (self.rank == last)
            sleep(1);
        put("key", 1000 + self.rank);
        for (uint32_t rank = 0; rank < size; rank++)
            printf("%u: %u %s\n", self.rank, rank, get(rank, "key", 1000 + rank));
        /* Asks for a rank on another host, because libpmix waits for data that ranks of its own
         * host may still put. */
        if (number != 0)
            printf("%u: absent %s\n", self.rank, get((self.rank + number) % size, "-", 0));
    } else if (strcmp(what, "nothing") == 0 || strcmp(what, "absent") == 0) {
        /* Rank 1, which is on another host, puts nothing. */
        if (self.rank == 0)
            printf("0: 1 %s\n", get(1, "key", 1));
    } else if (strcmp(what, "late") == 0) {
        /* The last rank, which is on another host than rank 0, puts data after five seconds.
         * `number` is the number of seconds of rank 0's first time limit. */
        if (self.rank == last)
            sleep(5);
        if (self.rank == last)
            put("key", 1000);
        if (self.rank == 0) {
            struct timespec before, after;
            clock_gettime(CLOCK_MONOTONIC, &before);
            const char *first = get_within(last, "key", 1000, (int)number);
            clock_gettime(CLOCK_MONOTONIC, &after);
            double took = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
            printf("%s after %s\n", first, took < number ? "less" : took < 4.5 ? "that" : "more");
            printf("then %s\n", get(last, "key", 1000));
        }
    } else if (strcmp(what, "large") == 0) {
        if (self.rank == 1)
            put("key", number);
        if (self.rank == 0)
            printf("0: 1 %s\n", get(1, "key", number));
    } else if (strcmp(what, "fence") == 0) {
        put("key", number);
        fence(1);
        for (uint32_t rank = 0; rank < size; rank++)
            printf("%u: %u %s\n", self.rank, rank, get(rank, "key", number));
    } else if (strcmp(what, "subset") == 0) {
        /* The fences of odd ranks and of even ranks run at the same time. */
        for (int round = 0; round < 3; round++) {
            char key[16];
            snprintf(key, sizeof(key), "key-%d", round);
            put(key, 700);
            fence_of(self.rank % 2, 2, round);
            for (uint32_t rank = self.rank % 2; rank < size; rank += 2)
                printf("%u: %u %s\n", self.rank, rank, get(rank, key, 700));
        }
        /* All ranks except rank 0. */
        if (self.rank != 0)
            fence_of(1, 1, 0);
    } else if (strcmp(what, "leave") == 0) {
        /* The last rank does not enter the fence. */
        if (self.rank == 0)
            fence_of(0, last, 0);
    } else if (strcmp(what, "unknown") == 0) {
        pmix_proc_t nobody = self;
        nobody.rank = size;
        pmix_proc_t members[] = { self, nobody };
        printf("%d\n", PMIx_Fence(members, 2, NULL, 0) != PMIX_SUCCESS);
    } else if (strcmp(what, "abort") == 0) {
        fence(0);
        if (self.rank == 1)
            PMIx_Abort((int)number, "no \033[31mgrid\nhere", NULL, 0);
        fence(0);
    } else if (strcmp(what, "wait") == 0) {
        fence(0);
        printf("ready\n");
        fflush(stdout);
        sleep((unsigned)number);
        fence(0);
        printf("done\n");
    } else {
        return 2;
    }
    check(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
