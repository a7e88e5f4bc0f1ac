/* Blocking reads return what was sent and no EINTR: pipe, socket, inotify, System V queues and semaphores, signals.
 * Those that signal(7) says end by EINTR when the process is stopped (sockets with SO_RCVTIMEO or SO_SNDTIMEO,
 * semtimedop, sigtimedwait) do not either. */
#include "victim.h"
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>

struct message {
    long kind;
    char text[8];
};

static int pipe_ends[2], pair[2], queue, semaphores, noted;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t address_len;
static char directory[] = "/tmp/pagetrail-reader-XXXXXX", file[64];

static void *feed(void *unused) {
    (void)unused;
    struct sembuf post = {.sem_num = 0, .sem_op = 1};
    struct message message = {1, "hello"};
    for (unsigned round = 0;; round++) {
        usleep(3000);
        CHECK(write(pipe_ends[1], "pipe", 4) == 4);
        usleep(3000);
        if (msgsnd(queue, &message, sizeof message.text, 0)) return NULL;
        usleep(3000);
        if (semop(semaphores, &post, 1)) return NULL;
        usleep(3000);
        int fd = open(file, O_CREAT | O_WRONLY, 0600);
        close(fd);
        usleep(3000);
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(connect(client, (struct sockaddr *)&address, address_len) == 0);
        close(client);
    }
    return NULL;
}

static void times_out(const char *what, long result, double since) {
    int error = errno;
    if (victim_stopping) return;
    if (result != -1) fail("%s returned %ld", what, result);
    if (error != EAGAIN) fail("%s ended with %s", what, strerror(error));
    /* Socket timeouts count in ticks, of which the first has begun: 12 ms are three of 4 ms, or two of 10 ms. */
    if (now() - since < 0.0075) fail("%s took only %.6f s", what, now() - since);
}

static void ends_with(const char *what, long result, long expected) {
    if (!victim_stopping && result != expected) fail("%s returned %ld instead of %ld: %s", what, result, expected, strerror(errno));
}

static void clean(void) {
    unlink(file);
    rmdir(directory);
    msgctl(queue, IPC_RMID, NULL);
    semctl(semaphores, 0, IPC_RMID);
}

/* A listener whose queue is full, so that connecting to it waits. */
static struct sockaddr_un full_listener(socklen_t *len) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    *len = sizeof name.sun_family + 1 + sprintf(name.sun_path + 1, "pagetrail-full-%d", getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&name, *len) == 0 && listen(listener, 0) == 0);
    int first = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(first, (struct sockaddr *)&name, *len) == 0);
    return name;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    CHECK(pipe(pipe_ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(mkdtemp(directory) != NULL);
    snprintf(file, sizeof file, "%s/file", directory);
    CHECK((queue = msgget(IPC_PRIVATE, 0600)) >= 0);
    CHECK((semaphores = semget(IPC_PRIVATE, 2, 0600)) >= 0);
    CHECK((noted = inotify_init1(IN_CLOEXEC)) >= 0 && inotify_add_watch(noted, directory, IN_CLOSE_WRITE) >= 0);
    address_len = sizeof address.sun_family + 1 + sprintf(address.sun_path + 1, "pagetrail-reader-%d", getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), silent = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, address_len) == 0 && listen(listener, 5) == 0);
    struct sockaddr_un nobody = {.sun_family = AF_UNIX};
    socklen_t nobody_len = sizeof nobody.sun_family + 1 + sprintf(nobody.sun_path + 1, "pagetrail-nobody-%d", getpid());
    CHECK(bind(silent, (struct sockaddr *)&nobody, nobody_len) == 0 && listen(silent, 5) == 0);
    socklen_t full_len;
    struct sockaddr_un full = full_listener(&full_len);
    struct timeval tick = {0, 12000};
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick) == 0);
    CHECK(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick) == 0);
    CHECK(setsockopt(silent, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick) == 0);
    /* Nobody reads from the pair: sending waits once it is full. */
    char block[4096] = {0};
    while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0) {}
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    helper(feed, NULL);
    victim_ready();
    struct timespec time = {0, 12000000};
    while (!over()) {
        char buffer[4096];
        struct iovec vector = {buffer, sizeof buffer};
        struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
        struct message message;
        double since = now();
        times_out("recv", recv(pair[0], buffer, sizeof buffer, 0), since);
        ends_with("read of a pipe", read(pipe_ends[0], buffer, 4), 4);
        since = now();
        times_out("recvmsg", recvmsg(pair[0], &header, 0), since);
        since = now();
        times_out("read of a socket", read(pair[0], buffer, sizeof buffer), since);
        since = now();
        times_out("readv of a socket", readv(pair[0], &vector, 1), since);
        ends_with("msgrcv", msgrcv(queue, &message, sizeof message.text, 0, 0), sizeof message.text);
        since = now();
        times_out("send", send(pair[0], block, sizeof block, 0), since);
        since = now();
        times_out("write to a socket", write(pair[0], block, sizeof block), since);
        since = now();
        times_out("writev to a socket", writev(pair[0], &(struct iovec){block, sizeof block}, 1), since);
        struct sembuf take = {.sem_num = 0, .sem_op = -1}, never = {.sem_num = 1, .sem_op = -1};
        ends_with("semop", semop(semaphores, &take, 1), 0);
        since = now();
        times_out("semtimedop", semtimedop(semaphores, &never, 1, &time), since);
        since = now();
        times_out("accept with a timeout", accept(silent, NULL, NULL), since);
        if (read(noted, buffer, sizeof buffer) <= 0 && !victim_stopping) fail("read of inotify: %s", strerror(errno));
        int accepted = accept(listener, NULL, NULL);
        if (accepted < 0 && !victim_stopping) fail("accept: %s", strerror(errno));
        close(accepted);
        since = now();
        times_out("sigtimedwait", sigtimedwait(&usr1, NULL, &time), since);
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick);
        since = now();
        times_out("connect", connect(client, (struct sockaddr *)&full, full_len), since);
        close(client);
    }
    clean();
    return 0;
}
