/* Counts the failures. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int failures;

static void is_(int wanted, int found, const char *what, int line) {
    if (found == wanted) return;
    printf("line %d: %s is %d, not %d\n", line, what, found, wanted);
    failures++;
}

/* An integer expression has this value. */
#define IS(wanted, what) is_((int)(wanted), (int)(what), #what, __LINE__)
/* A condition holds. */
#define HOLDS(what) is_(1, (what) != 0, #what, __LINE__)

#endif
