/* check.h: the tests' way to say what was wrong and end. */
#ifndef CHECK_H
#define CHECK_H

#include <pagetrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__,       \
                    #condition, pagetrail_last_error());                                      \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define OK(call) CHECK((call) == PAGETRAIL_STATUS_OK)

/* `call` is refused by `status`, and says why. */
#define REFUSED(status, call)                                                                 \
    do {                                                                                      \
        CHECK((call) == PAGETRAIL_STATUS_##status);                                           \
        CHECK(strlen(pagetrail_last_error()) > 0);                                            \
    } while (0)

#endif
