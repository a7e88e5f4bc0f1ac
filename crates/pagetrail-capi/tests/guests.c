/* guests.c: the memory of a virtual machine, of which everything but the processor is here: rounds, checkpoints, memory
   that comes as it is touched, and what is refused. */
#include "check.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGES = 64, HIGH = 1 << 30 };

static size_t page;
static char store[4096];

static unsigned char *mapped(void)
{
    void *memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Two regions of a guest, the second above the first. */
static void describe(pagetrail_guest_region regions[2], unsigned char *low, unsigned char *high)
{
    memset(regions, 0, 2 * sizeof *regions);
    for (int i = 0; i < 2; i++) {
        regions[i].slot = (uint32_t)i;
        regions[i].guest_address = i ? HIGH : 0;
        regions[i].memory = i ? high : low;
        regions[i].bytes = PAGES * page;
    }
}

static pagetrail_guest *started(unsigned char *low, unsigned char *high)
{
    pagetrail_guest_region regions[2];
    pagetrail_guest_options options = {0};
    pagetrail_guest *guest = NULL;
    describe(regions, low, high);
    options.regions = regions;
    options.region_count = 2;
    OK(pagetrail_guest_start(&options, sizeof options, &guest));
    CHECK(guest != NULL);
    return guest;
}

static void collected(pagetrail_guest *guest, size_t expected, const pagetrail_guest_range **ranges)
{
    size_t count = 99;
    OK(pagetrail_guest_collect(guest, ranges, &count));
    CHECK(count == expected);
}

static void rounds(void)
{
    unsigned char *low = mapped(), *high = mapped();
    pagetrail_guest *guest = started(low, high);
    const pagetrail_guest_range *ranges;
    size_t count;
    /* All of it, first. */
    collected(guest, 2, &ranges);
    CHECK(ranges[0].guest_address == 0 && ranges[0].bytes == PAGES * page && ranges[0].slot == 0);
    CHECK(ranges[1].guest_address == HIGH && ranges[1].host_address == (uint64_t)(uintptr_t)high && ranges[1].slot == 1);
    REFUSED(ROUND_OPEN, pagetrail_guest_collect(guest, &ranges, &count));
    OK(pagetrail_guest_commit(guest));
    REFUSED(NO_ROUND, pagetrail_guest_commit(guest));
    REFUSED(NO_ROUND, pagetrail_guest_give_back(guest));
    OK(pagetrail_guest_drain(guest));
    high[3 * page] = 1;
    OK(pagetrail_guest_wrote(guest, HIGH + 3 * page, 1));
    /* Where no memory is, and without an end. */
    OK(pagetrail_guest_wrote(guest, HIGH / 2, UINT64_MAX));
    collected(guest, 1, &ranges);
    OK(pagetrail_guest_give_back(guest));
    OK(pagetrail_guest_wrote(guest, 2 * page - 1, 2));
    collected(guest, 2, &ranges);
    CHECK(ranges[0].guest_address == page && ranges[0].bytes == 2 * page);
    OK(pagetrail_guest_commit(guest));
    collected(guest, 0, &ranges);
    OK(pagetrail_guest_commit(guest));
    OK(pagetrail_guest_free(guest));
    OK(pagetrail_guest_free(NULL));
    munmap(low, PAGES * page);
    munmap(high, PAGES * page);
}

/* What a monitor does while its guest stands still, and whether it can have it do so. */
struct monitor {
    pagetrail_guest *guest;
    unsigned char *memory;
    int stops, resumes, fails;
};

static int stop(void *context)
{
    struct monitor *monitor = context;
    monitor->stops++;
    /* The last that the guest wrote before it stopped. */
    monitor->memory[9 * page] = 99;
    OK(pagetrail_guest_wrote(monitor->guest, 9 * page, 1));
    return monitor->fails;
}

static void resume(void *context)
{
    struct monitor *monitor = context;
    monitor->resumes++;
}

static void checkpoints(unsigned char *low, unsigned char *high)
{
    struct monitor monitor = {started(low, high), low, 0, 0, 0};
    uint64_t number = 0;
    for (int i = 0; i < PAGES; i++) low[i * page] = (unsigned char)(i + 1);
    high[5 * page] = 55;
    OK(pagetrail_guest_save(monitor.guest, store, 1, stop, resume, &monitor, &number));
    CHECK(number == 1 && monitor.stops == 1 && monitor.resumes == 1);
    low[7 * page] = 77;
    OK(pagetrail_guest_wrote(monitor.guest, 7 * page, 1));
    /* A save that fails loses nothing. */
    monitor.fails = 1;
    REFUSED(REFUSED, pagetrail_guest_save(monitor.guest, store, 2, stop, resume, &monitor, &number));
    CHECK(number == 1 && monitor.stops == 2 && monitor.resumes == 1);
    OK(pagetrail_guest_save(monitor.guest, store, 0, NULL, NULL, NULL, &number));
    CHECK(number == 2);
    OK(pagetrail_guest_free(monitor.guest));
}

static int userfaultfd(unsigned char *memory[2])
{
    struct uffdio_api api = {UFFD_API, 0, 0};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) return -1;
    for (int i = 0; i < 2; i++) {
        struct uffdio_register all = {{(uint64_t)(uintptr_t)memory[i], PAGES * page}, UFFDIO_REGISTER_MODE_MISSING, 0};
        CHECK(!ioctl(fd, UFFDIO_REGISTER, &all));
    }
    return fd;
}

static void restored(const unsigned char *low, const unsigned char *high)
{
    unsigned char *memory[2] = {mapped(), mapped()};
    pagetrail_guest_region regions[2];
    pagetrail_guest_restoring *restore = NULL;
    int fd = userfaultfd(memory);
    if (fd < 0) {
        printf("guests: no userfaultfd(2) for faults of the kernel: nothing is restored\n");
        return;
    }
    describe(regions, memory[0], memory[1]);
    REFUSED(STORE, pagetrail_guest_restore(regions, 2, fd, store, 77, &restore));
    REFUSED(STORE, pagetrail_guest_restore(regions, 2, fd, "/nowhere", 0, &restore));
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_restore(regions, 2, -1, store, 0, &restore));
    regions[1].guest_address += page;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_restore(regions, 2, fd, store, 0, &restore));
    regions[1].guest_address -= page;
    CHECK(restore == NULL);
    OK(pagetrail_guest_restore(regions, 2, fd, store, 0, &restore));
    /* At once, wherever the library is. */
    CHECK(memory[0][63 * page] == 64 && memory[1][5 * page] == 55);
    OK(pagetrail_guest_restore_wait(restore));
    OK(pagetrail_guest_restore_wait(restore));
    CHECK(!memcmp(memory[0], low, PAGES * page) && !memcmp(memory[1], high, PAGES * page));
    OK(pagetrail_guest_restore_free(restore));
    OK(pagetrail_guest_restore_free(NULL));
    close(fd);
}

static void misuse(void)
{
    unsigned char *memory = mapped();
    pagetrail_guest_region regions[2];
    pagetrail_guest_options options = {0};
    pagetrail_guest *guest = NULL;
    int vcpu = 0;
    describe(regions, memory, memory);
    options.regions = regions;
    options.region_count = 2;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_start(&options, sizeof options, &guest));
    CHECK(strstr(pagetrail_last_error(), "shares memory with slot 0"));
    options.region_count = 1;
    regions[0].bytes = page + 1;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_start(&options, sizeof options, &guest));
    regions[0].bytes = page;
    options.vcpu_fds = &vcpu;
    options.vcpu_count = 1;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_start(&options, sizeof options, &guest));
    options.vcpu_count = 0;
    options.flags = 8;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_start(&options, sizeof options, &guest));
    options.flags = PAGETRAIL_GUEST_KVM;
    options.vm_fd = -1;
    REFUSED(INVALID_ARGUMENT, pagetrail_guest_start(&options, sizeof options, &guest));
    options.flags = 0;
    REFUSED(NULL_POINTER, pagetrail_guest_start(&options, sizeof options, NULL));
    REFUSED(NULL_POINTER, pagetrail_guest_start(NULL, sizeof options, &guest));
    CHECK(guest == NULL);
    REFUSED(NULL_POINTER, pagetrail_guest_wrote(NULL, 0, 1));
    REFUSED(NULL_POINTER, pagetrail_guest_drain(NULL));
    REFUSED(NULL_POINTER, pagetrail_guest_commit(NULL));
    REFUSED(NULL_POINTER, pagetrail_guest_restore_wait(NULL));
    munmap(memory, PAGES * page);
}

int main(void)
{
    char directory[] = "/tmp/pagetrail-guests-XXXXXX", remove[5000];
    unsigned char *low, *high;
    page = pagetrail_page_size();
    CHECK(mkdtemp(directory) != NULL);
    snprintf(store, sizeof store, "%s/store", directory);
    low = mapped();
    high = mapped();
    rounds();
    checkpoints(low, high);
    restored(low, high);
    misuse();
    snprintf(remove, sizeof remove, "rm -r '%s'", directory);
    CHECK(system(remove) == 0);
    printf("guests: fine\n");
    return 0;
}
