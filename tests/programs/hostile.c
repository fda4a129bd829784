/*
 * Node 0 damages the memory that it shares with other processes, in the way that its first argument
 * names. The other nodes receive until an error is reported. The job ends in any case.
 *   garbage  writes random words over the start of each shared mapping that it may write to
 *   zeros    writes zeros there
 *   resize   tries to make every memfd shorter, and longer
 *   halfway  is killed between pmGetSendBuffer and pmSend
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <sc.h>
#include <score.h>

static void sleep_ms(long milliseconds) {
    struct timespec time = {0, milliseconds * 1000000};

    (void)nanosleep(&time, NULL);
}

static void overwrite(uint64_t from, uint64_t to, int garbage) {
    volatile uint64_t *word;
    uint64_t state = 88172645463325252u;

    for (word = (volatile uint64_t *)from; word < (volatile uint64_t *)to; word++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = garbage ? state : 0;
    }
}

/* Overwrites the first 4 MiB of every shared mapping of a memfd that this process may write to.
 * A whole segment would be too large, because it is sparse. */
static void overwrite_shared(int garbage) {
    char line[512], mode[8];
    uint64_t from, to;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (strstr(line, "memfd:") != NULL &&
            sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &from, &to, mode) == 3 && mode[1] == 'w' &&
            mode[3] == 's') {
            if (to - from > (uint64_t)4 << 20) {
                to = from + ((uint64_t)4 << 20);
            }
            overwrite(from, to, garbage);
        }
    }
}

/* Tries to resize. All of these calls must fail: otherwise another process would die of SIGBUS. */
static void resize(void) {
    char line[512], path[64];
    uint64_t from, to;
    struct stat status;
    FILE *maps = fopen("/proc/self/maps", "r");
    int fd, tried = 0;

    for (fd = 3; fd < 64; fd++) {
        if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0) {
            tried++;
            if (ftruncate(fd, 0) == 0 || ftruncate(fd, status.st_size + 4096) == 0) {
                printf("a shared object could be resized\n");
            }
        }
    }
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (strstr(line, "memfd:") != NULL &&
            sscanf(line, "%" SCNx64 "-%" SCNx64, &from, &to) == 2) {
            (void)snprintf(path, sizeof path, "/proc/self/map_files/%" PRIx64 "-%" PRIx64, from,
                           to);
            fd = open(path, O_RDWR);
            if (fd >= 0) {
                tried++;
                if (ftruncate(fd, 0) == 0) {
                    printf("a shared object could be resized\n");
                }
                (void)close(fd);
            }
        }
    }
    printf("resizing was tried\n");
    (void)fflush(stdout);
}

static void attack(const char *mode) {
    caddr_t buffer;

    /* Node 1 polls the ring of this node only after a first message. */
    while (pmGetSendBuffer(score_pmnet[0], 1, &buffer, 64) != PM_SUCCESS) {
    }
    memset(buffer, 1, 64);
    if (strcmp(mode, "halfway") == 0) {
        (void)raise(SIGKILL);
    }
    (void)pmSend(score_pmnet[0]);
    sleep_ms(200);
    if (strcmp(mode, "resize") == 0) {
        resize();
    } else {
        overwrite_shared(strcmp(mode, "garbage") == 0);
    }
    sleep_ms(700);
    (void)sc_exit(5);
}

int main(int argc, char **argv) {
    caddr_t message;
    size_t length, i, sum = 0;
    int cc;

    score_initialize();
    if (argc < 2 || score_num_node < 3) {
        fprintf(stderr, "usage: scrun -nodes=3 hostile garbage|zeros|resize|halfway\n");
        return 2;
    }
    if (score_self_node == 0) {
        attack(argv[1]);
    }
    for (;;) {
        cc = pmReceive(score_pmnet[0], &message, &length);
        if (cc == PM_SUCCESS) {
            /* Reads all bytes. If a length reached outside the buffer, this would crash. */
            for (i = 0; i < length; i++) {
                sum += (unsigned char)message[i];
            }
            cc = pmReleaseReceiveBuffer(score_pmnet[0]);
        }
        if (cc != PM_SUCCESS && cc != ENOBUFS && cc != EBUSY) {
            fprintf(stderr, "node %d: %s (sum %zu)\n", score_self_node, pmErrorString(cc), sum);
            (void)sc_exit(9);
        }
    }
}
