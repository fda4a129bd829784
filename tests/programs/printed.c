/* Variables for scdb's print. Some are equal in several ranks. The program ends when the file in
 * its argument exists, or the file of that name with ".RANK" appended. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct cell {
    int row;
    double weight;
    const char *name;
};

volatile int color;
volatile int calls;
volatile long rounds;
struct cell cell;

__attribute__((noinline)) int twice(int value)
{
    calls++;
    return 2 * value;
}

__attribute__((noinline)) static void work(int round)
{
    int doubled = 2 * round;
    rounds += doubled - round;
}

int main(int count, char **arguments)
{
    struct timespec pause = {0, 500000};
    const char *number = getenv("SCORE_SELF_NODE");
    char own_end[4096];
    int round = 0, rank = number == NULL ? -1 : atoi(number);

    if (count != 2 || rank < 0) return 1;
    snprintf(own_end, sizeof own_end, "%s.%d", arguments[1], rank);
    color = rank / 2;
    cell.row = rank;
    cell.weight = rank + 0.5;
    cell.name = "inner";
    printf("up\n");
    fflush(stdout);
    while (access(arguments[1], F_OK) != 0 && access(own_end, F_OK) != 0) {
        work(++round);
        nanosleep(&pause, NULL);
    }
    printf("%ld right, %d calls\n", (long)round * (round + 1) / 2 - rounds, calls);
    return 0;
}
