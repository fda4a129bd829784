/* Opens libpm.so at run time and looks up symbols by name, like a foreign-function interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <pm.h>

int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*list)(char **, int *);
    void *symbol;
    char *types[8];
    int count = 8;

    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    symbol = dlvsym(library, "pmGetTypeList", "PM_2.0");
    if (symbol == NULL || dlsym(library, "pmSend") == NULL) return 2;
    memcpy(&list, &symbol, sizeof(list));
    if (list(types, &count) != PM_SUCCESS || count < 2) return 3;
    printf("%s %s\n", types[0], types[1]);
    return 0;
}
