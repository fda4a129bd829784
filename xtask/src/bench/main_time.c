/* Prints the time at which it has reached its main function. */

#include <stdio.h>
#include <time.h>

int main(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("MAIN %ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
    return 0;
}
