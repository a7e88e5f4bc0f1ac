/* Children made by vfork(2) that execute a program: each ends as it should, whatever happens to their parent, which
 * waits in the kernel meanwhile, and cannot be stopped by a signal. */
#include "victim.h"
#include <sys/wait.h>

int main(int argc, char **argv) {
    victim_start(argc, argv);
    victim_ready();
    for (unsigned n = 0; !over(); n++) {
        char code[24];
        snprintf(code, sizeof code, "exit %u", n % 100);
        pid_t child = vfork();
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", code, NULL);
            _exit(127);
        }
        CHECK(child > 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != (int)(n % 100)) fail("child %u ended with status %x", n, status);
    }
    return 0;
}
