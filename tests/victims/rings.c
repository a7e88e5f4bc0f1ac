/* Memory that the kernel writes by itself, past the page tables: the ring of completed requests of io_setup(2), and the
 * frames of a packet socket (packet(7), PACKET_RX_RING). Requests of io_uring(7) are carried out by a thread of the
 * kernel inside this process. All of them come back as they should.
 *
 * Argument: aio, packet or uring. Prints the address of the ring, or 0, before it is ready. */
#include "victim.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/if_packet.h>
#include <linux/io_uring.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>

static void ready(void *ring) {
    printf("%lx\n", (long)ring);
    victim_ready();
}

/* What this machine does not offer, or does not allow. */
static void __attribute__((noreturn)) not_here(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(77);
}

static void aio(void) {
    aio_context_t ring = 0;
    if (syscall(SYS_io_setup, 32, &ring)) not_here("io_setup");
    int file = memfd_create("read", 0);
    static char contents[4096], buffer[4096];
    memset(contents, 'c', sizeof contents);
    CHECK(file >= 0 && write(file, contents, sizeof contents) == sizeof contents);
    ready((void *)ring);
    while (!over()) {
        memset(buffer, 0, sizeof buffer);
        struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = file, .aio_buf = (uintptr_t)buffer,
                               .aio_nbytes = sizeof buffer};
        struct iocb *requests[] = {&request};
        struct io_event done;
        CHECK(syscall(SYS_io_submit, ring, 1, requests) == 1);
        long count;
        do count = syscall(SYS_io_getevents, ring, 1, 1, &done, NULL);
        while (count < 0 && errno == EINTR && over());
        CHECK(count == 1);
        if (done.res != sizeof buffer || memcmp(buffer, contents, sizeof buffer))
            fail("a read came back with %lld", (long long)done.res);
        usleep(500);
    }
}

static void packet(void) {
    enum { FRAME = 2048, FRAMES = 16 };
    int socket_of_all = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_IP));
    if (socket_of_all < 0) not_here("a packet socket");
    struct tpacket_req request = {.tp_block_size = FRAME * FRAMES, .tp_block_nr = 1, .tp_frame_size = FRAME,
                                  .tp_frame_nr = FRAMES};
    CHECK(setsockopt(socket_of_all, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) == 0);
    char *ring = mmap(NULL, FRAME * FRAMES, PROT_READ | PROT_WRITE, MAP_SHARED, socket_of_all, 0);
    CHECK(ring != MAP_FAILED);
    struct sockaddr_ll device = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
    device.sll_ifindex = if_nametoindex("lo");
    if (bind(socket_of_all, (void *)&device, sizeof device)) not_here("the device lo");
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int sender = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(sender >= 0);
    ready(ring);
    for (unsigned at = 0; !over();) {
        /* Nobody listens: the errors of earlier datagrams do not matter. */
        sendto(sender, "frame", 5, 0, (void *)&self, sizeof self);
        struct tpacket_hdr *frame = (void *)(ring + at * FRAME);
        if (__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) {
            if (frame->tp_len < 20) fail("a frame of %u bytes", frame->tp_len);
            __atomic_store_n(&frame->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
            at = (at + 1) % FRAMES;
        }
        usleep(300);
    }
}

static void *feed(void *pipe_to) {
    for (;;) {
        usleep(2000);
        CHECK(write(*(int *)pipe_to, "x", 1) == 1);
    }
    return NULL;
}

static void uring(void) {
    struct io_uring_params parameters = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0) not_here("io_uring_setup");
    size_t bytes = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    size_t array = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    if (bytes < array) bytes = array;
    if (!(parameters.features & IORING_FEAT_SINGLE_MMAP)) not_here("an older io_uring");
    char *rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED,
                                        ring, IORING_OFF_SQES);
    CHECK(rings != MAP_FAILED && entries != MAP_FAILED);
    unsigned *tail = (void *)(rings + parameters.sq_off.tail), *done = (void *)(rings + parameters.cq_off.head);
    unsigned *completed = (void *)(rings + parameters.cq_off.tail), *indexes = (void *)(rings + parameters.sq_off.array);
    struct io_uring_cqe *results = (void *)(rings + parameters.cq_off.cqes);
    static int ends[2];
    CHECK(pipe(ends) == 0);
    helper(feed, &ends[1]);
    ready(rings);
    while (!over()) {
        char byte = 0;
        /* By a thread of the kernel, which waits for the pipe. */
        entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = ends[0],
                                           .addr = (uintptr_t)&byte, .len = 1, .off = -1};
        indexes[*tail & (parameters.sq_entries - 1)] = 0;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
        while (__atomic_load_n(completed, __ATOMIC_ACQUIRE) == *done) usleep(200);
        int result = results[*done & (parameters.cq_entries - 1)].res;
        if (result != 1 || byte != 'x') fail("a read of io_uring came back with %d", result);
        __atomic_store_n(done, *done + 1, __ATOMIC_RELEASE);
    }
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    if (argc < 3) fail("no ring is named");
    if (!strcmp(argv[2], "aio")) aio();
    else if (!strcmp(argv[2], "packet")) packet();
    else if (!strcmp(argv[2], "uring")) uring();
    else fail("no ring is named %s", argv[2]);
    return 0;
}
