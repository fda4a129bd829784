/* A tool in C that attaches to rank 0 of a job, and prints the result as a number and as text. */
#include <stdio.h>
#include <stdlib.h>

#include <score_toolctl.h>

int main(int argc, char **argv)
{
    char text[200];
    score_toolctl *connection;
    int result;

    if (argc != 3) return 2;
    connection = score_toolctl_connect(argv[1], strtoull(argv[2], NULL, 10), 0, text, sizeof text);
    if (!connection) {
        printf("%s\n", text);
        return 1;
    }
    result = score_toolctl_attach(connection, 0, 40, "c tool", NULL, NULL);
    printf("%d: %s\n", result, score_toolctl_error(connection));
    score_toolctl_close(connection);
    return 0;
}
