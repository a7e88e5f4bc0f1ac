/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The memory of the emulated log, as root in the guest has it: by sysfs, past the module. */
#ifndef OOH_BAR_H
#define OOH_BAR_H

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "module/device.h"

/* Maps `bytes` of BAR `number` of the first device of its kind; NULL if there is none. */
static inline void *map_bar(int number, size_t bytes) {
    void *found = NULL;
    glob_t devices;
    if (glob("/sys/bus/pci/devices/*/modalias", 0, NULL, &devices)) return NULL;
    for (size_t i = 0; !found && i < devices.gl_pathc; i++) {
        char text[300] = "", path[300];
        FILE *file = fopen(devices.gl_pathv[i], "r");
        if (!file) continue;
        if (fgets(text, sizeof text, file) && !strncmp(text, "pci:v00001AF4d00001110", 22)) {
            const char *path_end = strrchr(devices.gl_pathv[i], '/');
            snprintf(path, sizeof path, "%.*s/resource%d", (int)(path_end - devices.gl_pathv[i]), devices.gl_pathv[i],
                     number);
            int fd = open(path, O_RDWR | O_CLOEXEC);
            void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (mapped != MAP_FAILED) found = mapped;
            if (fd >= 0) close(fd);
        }
        fclose(file);
    }
    globfree(&devices);
    return found;
}

#endif
