/* Makes PM print a message on standard error, with PM_DEBUG set. */
#include <errno.h>
#include <stdio.h>

#include <pm.h>

int main(void) {
    char unknown[] = "carrier-pigeon";
    pmDevice *pmd;

    puts(pmOpenDevice(unknown, 0, NULL, &pmd) == ENODEV ? "ENODEV" : "another");
    return 0;
}
