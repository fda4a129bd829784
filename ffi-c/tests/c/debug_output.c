/* Makes PM say something on standard error, under PM_DEBUG. */
#include <errno.h>
#include <stdio.h>

#include <pm.h>

int main(void) {
    char unknown[] = "carrier-pigeon";
    pmDevice *pmd;

    puts(pmOpenDevice(unknown, 0, NULL, &pmd) == ENODEV ? "ENODEV" : "another");
    return 0;
}
