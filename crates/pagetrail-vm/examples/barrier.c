// What a write barrier costs per page and round, in ticks of the time stamp counter (instructions
// where the rig counts): mprotect(2) with a SIGSEGV handler, and as a guest the own write set.
// Arguments: pages, pages written per round. Sets are checked.
#define _GNU_SOURCE
#include "../../pagetrail-guest/include/pagetrail_guest.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#define PAGE 4096UL
#define ROUNDS 5
static uint8_t *base, *dirty;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    uint64_t page = (uint64_t)info->si_addr & ~(PAGE - 1);
    dirty[(page - (uint64_t)base) / PAGE] = 1;
    mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE);
}

int main(int count, char **arguments)
{
    size_t pages = count > 1 ? strtoul(arguments[1], NULL, 0) : 4096, written = count > 2 ? strtoul(arguments[2], NULL, 0) : 512, found;
    pagetrail_guest guest;
    int is_guest = pagetrail_guest_open(&guest) == 0;
    pagetrail_guest_range *ranges = calloc(pages, sizeof *ranges);
    uint64_t begun, writes = 0, reads = 0, takes = 0;
    dirty = calloc(pages, 1);
    base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(base, 1, pages * PAGE);
    begun = __rdtsc();
    for (int n = 0; n < 100; n++)
        syscall(SYS_getpid);
    printf("getpid %lu\n", (uint64_t)(__rdtsc() - begun) / 100);
    if (!is_guest) {
        struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
        sigaction(SIGSEGV, &action, NULL);
    }
    for (int round = 0; round <= ROUNDS; round++) {
        begun = __rdtsc();
        if (is_guest)
            pagetrail_guest_take((uint64_t)base, (uint64_t)base + pages * PAGE, PAGETRAIL_GUEST_DIRTY, round ? ranges : NULL, pages, NULL);
        else
            memset(dirty, 0, pages), mprotect(base, pages * PAGE, PROT_READ);
        if (round)
            takes += __rdtsc() - begun;
        if (round == ROUNDS)
            break;
        begun = __rdtsc();
        for (size_t n = 0; n < written; n++)
            base[n * (pages / written) * PAGE + 8] += 1;
        writes += __rdtsc() - begun;
        begun = __rdtsc();
        found = 0;
        for (size_t n = 0; n < pages; n++)
            found += is_guest ? pagetrail_guest_bits(&guest, base + n * PAGE) & PAGETRAIL_GUEST_DIRTY : dirty[n];
        reads += __rdtsc() - begun;
        if (found != written)
            return fprintf(stderr, "%zu pages, not %zu\n", found, written), 1;
    }
    printf("%s: %zu of %zu pages; per written page: write %lu; per page: read %lu; per round: take or protect %lu\n",
           is_guest ? "own set" : "mprotect", written, pages, writes / ROUNDS / written, reads / ROUNDS / pages, takes / ROUNDS);
    return 0;
}
