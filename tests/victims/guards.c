/* Guard pages within private memory (MADV_GUARD_INSTALL, Linux 6.13), as libc has them in stacks: an access faults as
 * long as they are there, and finds zeros once they are removed. */
#include "victim.h"
#include <setjmp.h>
#include <sys/mman.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGES = 32, KEPT = 4 };
static sigjmp_buf before;

static void leave(int number) {
    (void)number;
    siglongjmp(before, 1);
}

static int faults(volatile char *at) {
    if (sigsetjmp(before, 1)) return 1;
    (void)*at;
    return 0;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    signal(SIGSEGV, leave);
    long page = sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, PAGES * page);
    if (madvise(memory, KEPT * page, MADV_GUARD_INSTALL)) {
        fprintf(stderr, "MADV_GUARD_INSTALL: %s\n", strerror(errno));
        return 77;
    }
    printf("%lx\n", (long)memory);
    victim_ready();
    for (unsigned n = 0; !over(); n++) {
        if (!faults(memory + n % KEPT * page)) fail("guard page %u is gone", n % KEPT);
        char *other = memory + (KEPT + n % (PAGES - KEPT)) * page;
        memset(other, 1 + n % 100, page);
        CHECK(madvise(other, page, MADV_GUARD_INSTALL) == 0);
        if (!faults(other)) fail("a new guard page is none");
        CHECK(madvise(other, page, MADV_GUARD_REMOVE) == 0);
        for (long at = 0; at < page; at += 512)
            if (other[at]) fail("a page has contents after its guard was removed");
        memset(other, 1 + n % 100, page);
        usleep(300);
    }
    return 0;
}
