/* Children made by fork(2), by the main thread and by another, have the memory of their parent and nothing of the
 * tracker: no descriptor that the parent did not open. What they write stays theirs. */
#include "victim.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGES = 64, WORDS = 512 };

static uint64_t *memory;

/* A descriptor that is a userfaultfd, or -1. */
static int foreign_descriptor(void) {
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    int found = -1;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[300], name[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "userfaultfd")) found = atoi(entry->d_name);
    }
    closedir(directory);
    return found;
}

static void child(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < PAGES; i++)
        if (memory[i * WORDS] != (uint64_t)i * 7) fail("page %d of a child is wrong", i);
    for (int i = 0; i < PAGES; i++) memory[i * WORDS] = 1;
    /* One that is forked in the middle of an attach has a descriptor of it for a moment. */
    double since = now();
    do usleep(50000);
    while (foreign_descriptor() >= 0 && now() - since < 10);
    if (foreign_descriptor() >= 0) fail("a child has inherited descriptor %d, a userfaultfd", foreign_descriptor());
    _exit(0);
}

/* Keeps some children alive, so that there is a fork at every moment. */
static void forks(void) {
    enum { ALIVE = 40 };
    pid_t children[ALIVE];
    for (int i = 0; i < ALIVE; i++) {
        CHECK((children[i] = fork()) >= 0);
        if (children[i] == 0) child();
    }
    for (int i = 0; i < ALIVE; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        if (status) fail("a child ended with status %x", status);
    }
}

static void *also(void *unused) {
    (void)unused;
    for (;;) forks();
    return NULL;
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    memory = mmap(NULL, PAGES * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < PAGES; i++) memory[i * WORDS] = (uint64_t)i * 7;
    helper(also, NULL);
    victim_ready();
    while (!over()) {
        forks();
        for (int i = 0; i < PAGES; i++)
            if (memory[i * WORDS] != (uint64_t)i * 7) fail("page %d has changed", i);
    }
    return 0;
}
