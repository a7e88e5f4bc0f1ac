/* Pages that are written by the kernel alone, in ways that are easily missed: nothing here reads or writes them itself, so that a
 * recording has each of them if it knows of the call, and not otherwise. Each case has a MiB of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096ul
#define BASE 0x310000000000ul
#define PR_GET_AUXV_ 0x41555856

static char text[4 * PAGE];

/* So many new pages, with nothing after them. */
static char *place(int number, size_t pages)
{
    void *wanted = (void *)(BASE + ((unsigned long)number << 20));
    return mmap(wanted, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}

static void check(const char *what, int is_right)
{
    if (!is_right)
        printf("%s failed: %s\n", what, strerror(errno));
}

int main(void)
{
    int pipes[2], sockets[2];
    memset(text, 'q', sizeof text);
    pipe(pipes);
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);

    /* 0, 1: what was copied before there was no more room does not count in the result. */
    char *at = place(0, 1);
    write(pipes[1], text, 4000);
    check("read", read(pipes[0], at + 3000, 4000) == -1 && errno == EFAULT);
    at = place(1, 1);
    send(sockets[0], text, 4000, 0);
    check("recv", recv(sockets[1], at + 3000, 4000, 0) == -1 && errno == EFAULT);

    /* 2, 3: by way of a file. */
    int memory = open("/proc/self/mem", O_RDWR);
    at = place(2, 3);
    check("pwrite", pwrite(memory, text, 100, (off_t)(uintptr_t)(at + PAGE - 50)) == 100);
    lseek(memory, (off_t)(uintptr_t)place(3, 3), SEEK_SET);
    struct iovec two[2] = { { text, 100 }, { text, PAGE } };
    check("writev", write(memory, text, 100) == 100 && writev(memory, two, 2) == PAGE + 100);

    /* 4: something new where something was that is elsewhere now. */
    int file = memfd_create("file", 0);
    write(file, text, sizeof text);
    char *old = (char *)BASE + (4ul << 20), *new = old + (1 << 19);
    mmap(old, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    check("mremap", mremap(old, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, new) == new);
    munmap(new, PAGE);
    place(4, 1);

    /* 5: more descriptors than a set of the C library has. */
    struct rlimit many;
    getrlimit(RLIMIT_NOFILE, &many);
    many.rlim_cur = many.rlim_max = many.rlim_max > 16384 ? many.rlim_max : 16384;
    setrlimit(RLIMIT_NOFILE, &many);
    check("fcntl", fcntl(pipes[0], F_DUPFD, 16000) >= 16000);
    struct timeval now = { 0, 0 };
    check("select", syscall(SYS_select, 16001, place(5, 3) + PAGE - 1000, NULL, NULL, &now) == 0);

    /* 6: by an option of a call. */
    check("prctl", prctl(PR_GET_AUXV_, place(6, 3) + PAGE - 20, 300, 0, 0) > 16);

    /* 7: by a list over which a buffer lies, so that it is gone afterwards. */
    struct iovec list[2] = { { list, sizeof list }, { place(7, 1), 100 } };
    int zero = open("/dev/zero", O_RDONLY);
    check("readv", readv(zero, list, 2) == sizeof list + 100);
    puts("done");
    return 0;
}
