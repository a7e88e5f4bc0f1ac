/* On SIGUSR1 puts another mapping in the place of one of a few pages, and calls itself "done" then: with argv[2] "file",
 * of another file that has got the number of the same inode and looks like the first in /proc/PID/maps; with "split",
 * of such a file, in several mappings; with "tracked", memory one page longer that this program write-protects by an
 * asynchronous userfaultfd of its own, after it has written to all of it; with "same", such memory that looks like the
 * first in /proc/PID/maps. */
#include "victim.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096ul
#define RIGHTS (PROT_READ | PROT_WRITE)
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif
enum { PAGES = 4 };

static volatile sig_atomic_t asked;
static ino_t number;
static char *memory;

static void ask(int signal) {
    (void)signal;
    asked = 1;
}

static int cannot(const char *why) {
    fprintf(stderr, "%s\n", why);
    return 77;
}

static int new_file(char contents) {
    int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    char bytes[PAGES * PAGE];
    memset(bytes, contents, sizeof bytes);
    CHECK(write(file, bytes, sizeof bytes) == sizeof bytes);
    struct stat stat;
    CHECK(fstat(file, &stat) == 0);
    number = stat.st_ino;
    return file;
}

static void map_file(int file, int more) {
    CHECK(mmap(memory, PAGES * PAGE, PROT_READ, MAP_PRIVATE | more, file, 0) == memory);
    CHECK(close(file) == 0);
}

/* Whether a file gets the number of the one before it, once that is gone. */
static int are_reused(void) {
    int before = new_file(0);
    if (before < 0) return 0;
    ino_t first = number;
    close(before);
    int after = new_file(0);
    close(after);
    return number == first;
}

/* Whether it could be done. */
static int another_file(int splits) {
    ino_t first = number;
    CHECK(munmap(memory, PAGES * PAGE) == 0);
    map_file(new_file(2), MAP_FIXED_NOREPLACE);
    if (splits) CHECK(mprotect(memory + PAGE, PAGE, PROT_READ | PROT_EXEC) == 0);
    return number == first;
}

static int open_userfaultfd(void) {
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC};
    return uffd < 0 || ioctl(uffd, UFFDIO_API, &api) != 0 ? -1 : uffd;
}

static void tracked(int uffd, size_t pages) {
    size_t len = pages * PAGE;
    CHECK(munmap(memory, PAGES * PAGE) == 0);
    CHECK(mmap(memory, len, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
    struct uffdio_range range = {(uintptr_t)memory, len};
    struct uffdio_register all = {.range = range, .mode = UFFDIO_REGISTER_MODE_WP};
    CHECK(ioctl(uffd, UFFDIO_REGISTER, &all) == 0);
    memset(memory, 2, len);
    struct uffdio_writeprotect protect = {range, UFFDIO_WRITEPROTECT_MODE_WP};
    CHECK(ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) == 0);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(argc > 2);
    int splits = !strcmp(argv[2], "split"), of_file = splits || !strcmp(argv[2], "file"), uffd = -1;
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    /* Far from all other mappings. */
    memory = (char *)0x100000000000;
    if (of_file) {
        if (!are_reused()) return cannot("the file system of /var/tmp gives numbers of inodes once");
        map_file(new_file(1), MAP_FIXED_NOREPLACE);
    } else {
        uffd = open_userfaultfd();
        if (uffd < 0) return cannot("no asynchronous userfaultfd");
        CHECK(mmap(memory, PAGES * PAGE, RIGHTS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
        memset(memory, 1, PAGES * PAGE);
    }
    victim_ready();
    while (!asked && !over()) usleep(500);
    int is_done = 1;
    if (of_file) is_done = another_file(splits);
    else tracked(uffd, PAGES + !!strcmp(argv[2], "same"));
    /* Somebody else may have been faster, and have got the number. */
    prctl(PR_SET_NAME, is_done ? "done" : "late");
    victim_rest();
    return 0;
}
