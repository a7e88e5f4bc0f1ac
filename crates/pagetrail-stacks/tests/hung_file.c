/* Has code and data of a file mapped whose file system no longer answers: a FUSE server of its
 * own, which stops when everything is mapped. Prints "ready", then writes to the memory after the
 * data until its standard input ends.
 *
 * The argument is an empty directory, to mount at; only this process and its children see that. It
 * prints what is missing here, and ends with 3. The server ends with it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
enum { ROOT = 1, FILE_NODE = 2 };

static char *content;
static size_t length;

static int missing(const char *what) {
    printf("missing: %s: %s\n", what, strerror(errno));
    return 3;
}

static void fill(struct fuse_attr *attr, uint64_t node) {
    *attr = (struct fuse_attr){.ino = node, .nlink = 1, .blksize = PAGE};
    attr->mode = node == ROOT ? S_IFDIR | 0755 : S_IFREG | 0755;
    attr->size = node == ROOT ? 0 : length;
}

static void reply(int fd, uint64_t unique, int error, const void *body, size_t size) {
    struct fuse_out_header head = {.len = sizeof head + (error ? 0 : size), .error = -error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)body, size}};
    if (writev(fd, parts, error ? 1 : 2) < 0 && errno != ENOENT) _exit(4);
}

/* Answers until `stop` ends; then it takes no request any more. Nothing of what it says may be kept
 * by the kernel. */
static void serve(int fd, int stop) {
    static char request[1 << 17];
    for (;;) {
        struct pollfd wanted[] = {{fd, POLLIN, 0}, {stop, POLLIN, 0}};
        poll(wanted, 2, -1);
        if (wanted[1].revents)
            for (;;) pause();
        if (read(fd, request, sizeof request) <= 0) _exit(0);
        const struct fuse_in_header *in = (const void *)request;
        const void *argument = request + sizeof *in;
        switch (in->opcode) {
        case FUSE_INIT: {
            const struct fuse_init_in *asked = argument;
            struct fuse_init_out out = {.major = 7, .minor = 31, .max_readahead = asked->max_readahead,
                                        .max_write = PAGE, .max_background = 12, .congestion_threshold = 9};
            reply(fd, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out out = {.nodeid = FILE_NODE};
            fill(&out.attr, FILE_NODE);
            reply(fd, in->unique, strcmp(argument, "code.so") ? ENOENT : 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = {0};
            fill(&out.attr, in->nodeid);
            reply(fd, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            struct fuse_open_out out = {.fh = 1};
            reply(fd, in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_READ: {
            const struct fuse_read_in *read = argument;
            size_t from = read->offset < length ? read->offset : length;
            size_t size = read->size < length - from ? read->size : length - from;
            reply(fd, in->unique, 0, content + from, size);
            break;
        }
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT: break;
        default: reply(fd, in->unique, ENOSYS, NULL, 0);
        }
    }
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 2) return 2;
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) return missing("a mount namespace");
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0) return missing("/dev/fuse");
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    if (mount("hung", argv[1], "fuse", MS_NOSUID | MS_NODEV, options)) return missing("mounting FUSE");

    /* What is served is this program. */
    int own = open("/proc/self/exe", O_RDONLY);
    length = (size_t)lseek(own, 0, SEEK_END) / PAGE * PAGE;
    content = malloc(length);
    if (pread(own, content, length, 0) != (ssize_t)length) return 1;
    int stop[2];
    if (pipe(stop)) return 1;
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(stop[1]);
        serve(fd, stop[0]);
    }
    close(fd);
    close(stop[0]);

    char path[4096];
    snprintf(path, sizeof path, "%s/code.so", argv[1]);
    int file = open(path, O_RDONLY);
    if (file < 0) return missing("opening its file");
    volatile char *code = mmap(NULL, length, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    /* Data, and after it memory that may be the file's zeroed data. */
    volatile char *data = mmap(NULL, length + 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED || data == MAP_FAILED ||
        mmap((void *)data, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
        return 1;
    for (size_t at = 0; at < length; at += PAGE) data[at] = code[at];
    close(file);
    close(stop[1]);
    puts("ready");
    fflush(stdout);
    struct pollfd input = {0, POLLIN, 0};
    for (char count = 0; poll(&input, 1, 1) == 0; count++)
        for (int page = 0; page < 16; page++) data[length + page * PAGE] = count;
    return 0;
}
