/* Has the kernel write to its memory through pages that it keeps pinned (IORING_REGISTER_BUFFERS): no page table knows
 * of such a write, and no thread of the kernel's makes it. What is read comes back as it should. */
#include "victim.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/uio.h>

int main(int argc, char **argv) {
    victim_start(argc, argv);
    struct io_uring_params parameters = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &parameters);
    size_t bytes = 256 * 4096;
    char *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(buffer != MAP_FAILED);
    memset(buffer, 1, bytes);
    struct iovec vector = {buffer, bytes};
    if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &vector, 1)) {
        fprintf(stderr, "io_uring with registered buffers: %s\n", strerror(errno));
        return 77;
    }
    victim_ready();
    for (unsigned char round = 0; !over(); round++) {
        memset(buffer, round, bytes);
        usleep(100);
    }
    return 0;
}
