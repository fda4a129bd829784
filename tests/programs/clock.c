/* A preloaded library in which the time of day jumps by years, forwards and back, with every call
 * that reads it. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
    static atomic_uint calls;
    /* The process id makes the time differ also between programs that read the clock only once. */
    unsigned int call = atomic_fetch_add(&calls, 1) + (unsigned int)getpid();

    return ((long)(call % 7) - 3) * 100000000L;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec time;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0)
        return -1;
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec time;

    clock_gettime(CLOCK_REALTIME, &time);
    if (now != NULL)
        *now = time.tv_sec;
    return time.tv_sec;
}
