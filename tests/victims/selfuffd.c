/* Write-protects memory of its own by a userfaultfd of its own, and gets each event of it, for the right page, once,
 * any other tracker of the process. */
#include "victim.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { PAGES = 16, PAGE = 4096 };

static int uffd;
static char *memory;
static volatile uint64_t events, last_page;

static void *resolve(void *unused) {
    (void)unused;
    for (;;) {
        struct uffd_msg message;
        CHECK(read(uffd, &message, sizeof message) == sizeof message);
        if (message.event != UFFD_EVENT_PAGEFAULT || !(message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP))
            fail("an event that is no write-protect fault: %d", message.event);
        last_page = (message.arg.pagefault.address - (uintptr_t)memory) / PAGE;
        events++;
        struct uffdio_writeprotect release = {{message.arg.pagefault.address & -PAGE, PAGE}, 0};
        CHECK(ioctl(uffd, UFFDIO_WRITEPROTECT, &release) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (uffd < 0) {
        fprintf(stderr, "userfaultfd(2): %s\n", strerror(errno));
        return 77;
    }
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, PAGES * PAGE);
    struct uffdio_register range = {.range = {(uintptr_t)memory, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    CHECK(ioctl(uffd, UFFDIO_REGISTER, &range) == 0);
    helper(resolve, NULL);
    printf("%p\n", (void *)memory);
    victim_ready();
    uint64_t expected = 0;
    for (uint64_t n = 0; !over(); n++) {
        uint64_t page = n % PAGES;
        struct uffdio_writeprotect protect = {{(uintptr_t)memory + page * PAGE, PAGE}, UFFDIO_WRITEPROTECT_MODE_WP};
        CHECK(ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) == 0);
        *(volatile uint64_t *)(memory + page * PAGE) = n;
        *(volatile uint64_t *)(memory + page * PAGE + 8) = n;
        expected++;
        if (events != expected) fail("%lu events instead of %lu", (unsigned long)events, (unsigned long)expected);
        if (last_page != page) fail("an event for page %lu instead of %lu", (unsigned long)last_page, (unsigned long)page);
        usleep(100);
    }
    return 0;
}
