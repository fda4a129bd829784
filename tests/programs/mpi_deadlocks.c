/*
 * Programs of MPI that hang, and programs that only look like it: mpi_deadlocks CASE. A program
 * that does not hang prints "ok" on each rank. It waits for an event that comes after some seconds.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* In this time SCore takes many samples of an idle job. */
#define WAIT_SECONDS 3
#define LARGE (1 << 20)

static int rank, size;
static const MPI_Comm world = MPI_COMM_WORLD;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void compute(double seconds) {
    for (double end = now() + seconds; now() < end;) {
    }
}

static void receive(int source, int tag) {
    int value;
    MPI_Recv(&value, 1, MPI_INT, source, tag, world, MPI_STATUS_IGNORE);
}

static void send(int destination, int tag) {
    MPI_Send(&rank, 1, MPI_INT, destination, tag, world);
}

/* All other ranks wait for rank 0, which sends after it has done something else. */
static void wait_for_rank_0(void) {
    if (rank > 0) {
        receive(0, 1);
    } else {
        for (int to = 1; to < size; to++) {
            send(to, 1);
        }
    }
}

/* Programs that hang. */

static void mismatched_receive(void) {
    MPI_Barrier(world);
    receive((rank + 1) % size, 7 + rank);
}

static void cycle_of_sends(void) {
    char *data = calloc(2, LARGE);
    MPI_Send(data, LARGE, MPI_CHAR, (rank + 1) % size, 3, world);
    MPI_Recv(data + LARGE, LARGE, MPI_CHAR, (rank + size - 1) % size, 3, world, MPI_STATUS_IGNORE);
    free(data);
}

static void mismatched_collectives(void) {
    int sum;
    if (rank == 0) {
        receive(MPI_ANY_SOURCE, MPI_ANY_TAG);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, world);
}

static void missing_request(void) {
    int values[2];
    MPI_Request requests[2];
    for (int each = 0; each < 2; each++) {
        MPI_Irecv(&values[each], 1, MPI_INT, (rank + 1) % size, each, world, &requests[each]);
    }
    send((rank + size - 1) % size, 0);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void missing_probe(void) {
    MPI_Status status;
    if (rank == 0) {
        MPI_Probe(1, 5, world, &status);
    } else {
        MPI_Message message;
        MPI_Mprobe(0, 6, world, &message, &status);
    }
}

static void missing_fence(void) {
    int memory = 0;
    MPI_Win window;
    MPI_Win_create(&memory, sizeof memory, sizeof memory, MPI_INFO_NULL, world, &window);
    if (rank == 0) {
        receive(1, 2);
    }
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
}

static void rank_that_finalizes(void) {
    if (rank == 0) {
        receive(1, 7);
    }
}

/* A thread that no other thread will wake. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;

static void *sleep_for_ever(void *unused) {
    pthread_mutex_lock(&mutex);
    pthread_cond_wait(&never, &mutex);
    return unused;
}

static void idle_thread_and_receive(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_for_ever, NULL);
    receive((rank + 1) % size, 4);
}

/* A receive that polls might also poll the pipe, to which another process might write. */
static void pipe_and_receive(void) {
    int ends[2];
    if (pipe(ends) != 0) {
        perror("pipe");
    }
    receive((rank + 1) % size, 4);
}

/* Programs that only look as if they hang. */

static void computation(void) {
    if (rank == 0) {
        compute(WAIT_SECONDS);
    }
    wait_for_rank_0();
}

static void sleep_(void) {
    if (rank == 0) {
        sleep(WAIT_SECONDS);
    }
    wait_for_rank_0();
}

static void loop_of_tests(void) {
    int value, has_come = 0;
    MPI_Request request;
    MPI_Irecv(&value, 1, MPI_INT, rank, 9, world, &request);
    if (rank == 0) {
        for (double end = now() + WAIT_SECONDS; now() < end;) {
            MPI_Test(&request, &has_come, MPI_STATUS_IGNORE);
        }
    }
    wait_for_rank_0();
    send(rank, 9);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void loop_of_probes(void) {
    int has_come = 0;
    if (rank == 0) {
        for (double end = now() + WAIT_SECONDS; now() < end;) {
            MPI_Iprobe(MPI_ANY_SOURCE, 9, world, &has_come, MPI_STATUS_IGNORE);
        }
    }
    wait_for_rank_0();
}

/* MPI runs this function of the program within MPI_Comm_free, and the function polls. */
static int poll_in_callback(MPI_Comm comm, int key, void *value, void *state) {
    (void)comm, (void)key, (void)value, (void)state;
    loop_of_tests();
    return MPI_SUCCESS;
}

static void loop_in_a_callback(void) {
    int key;
    MPI_Comm comm;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, poll_in_callback, &key, NULL);
    MPI_Comm_dup(world, &comm);
    MPI_Comm_set_attr(comm, key, NULL);
    MPI_Comm_free(&comm);
    MPI_Comm_free_keyval(&key);
}

static void standard_input(void) {
    char line[16];
    if (rank == 0 && !fgets(line, sizeof line, stdin)) {
        fprintf(stderr, "no input\n");
    }
    wait_for_rank_0();
}

static int is_over(double end) {
    int answer = now() >= end;
    MPI_Bcast(&answer, 1, MPI_INT, 0, world);
    return answer;
}

static void files(void) {
    static char block[4 << 20];
    const MPI_Offset offset = rank * (MPI_Offset)sizeof block;
    MPI_File file;
    MPI_File_open(world, "mpi_deadlocks.data", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL,
                  &file);
    for (double end = now() + WAIT_SECONDS; !is_over(end);) {
        MPI_Request request;
        MPI_File_write_at_all(file, offset, block, sizeof block, MPI_CHAR, MPI_STATUS_IGNORE);
        MPI_File_sync(file);
        MPI_File_iread_at(file, offset, block, sizeof block, MPI_CHAR, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_File_close(&file);
}

static void *send_later(void *unused) {
    (void)unused;
    sleep(WAIT_SECONDS);
    wait_for_rank_0();
    return NULL;
}

static void thread_that_sends(void) {
    pthread_t thread;
    if (rank == 0) {
        pthread_create(&thread, NULL, send_later, NULL);
        receive(size - 1, 2);
        pthread_join(thread, NULL);
    } else {
        wait_for_rank_0();
        if (rank == size - 1) {
            send(0, 2);
        }
    }
}

/* A request that the program itself completes. */
static MPI_Request own_request;

static int query(void *state, MPI_Status *status) {
    (void)state;
    MPI_Status_set_elements(status, MPI_INT, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int free_nothing(void *state) {
    (void)state;
    return MPI_SUCCESS;
}

static int cancel(void *state, int is_complete) {
    (void)state, (void)is_complete;
    return MPI_SUCCESS;
}

static void *complete_later(void *unused) {
    (void)unused;
    compute(WAIT_SECONDS);
    MPI_Grequest_complete(own_request);
    return NULL;
}

static void own_requests(void) {
    pthread_t thread;
    MPI_Grequest_start(query, free_nothing, cancel, NULL, &own_request);
    pthread_create(&thread, NULL, complete_later, NULL);
    MPI_Wait(&own_request, MPI_STATUS_IGNORE);
    pthread_join(thread, NULL);
}

/* Waits for many different times, so that SCore samples the job in waits of every length. */
static void exchange(void) {
    unsigned seed = 1;
    for (double end = now() + WAIT_SECONDS; !is_over(end);) {
        for (int each = 0; each < 20; each++) {
            double pause = (double)(rand_r(&seed) % 2000) / 1e6;
            if (rank == each % size) {
                each % 2 ? compute(pause) : (void)usleep((useconds_t)(pause * 1e6));
            }
            int got;
            MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, each, &got, 1, MPI_INT,
                         (rank + size - 1) % size, each, world, MPI_STATUS_IGNORE);
        }
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"mismatched_receive", mismatched_receive},
    {"cycle_of_sends", cycle_of_sends},
    {"mismatched_collectives", mismatched_collectives},
    {"missing_request", missing_request},
    {"missing_probe", missing_probe},
    {"missing_fence", missing_fence},
    {"rank_that_finalizes", rank_that_finalizes},
    {"idle_thread_and_receive", idle_thread_and_receive},
    {"pipe_and_receive", pipe_and_receive},
    {"computation", computation},
    {"sleep", sleep_},
    {"loop_of_tests", loop_of_tests},
    {"loop_of_probes", loop_of_probes},
    {"loop_in_a_callback", loop_in_a_callback},
    {"standard_input", standard_input},
    {"files", files},
    {"thread_that_sends", thread_that_sends},
    {"own_requests", own_requests},
    {"exchange", exchange},
};

int main(int argc, char **argv) {
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    for (size_t each = 0; each < sizeof cases / sizeof *cases; each++) {
        if (argc == 2 && strcmp(cases[each].name, argv[1]) == 0) {
            cases[each].run();
            printf("ok\n");
        }
    }
    MPI_Finalize();
    return 0;
}
