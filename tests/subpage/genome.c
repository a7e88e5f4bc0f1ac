/* Gene sequencing, after STAMP's genome: a gene of argv[1] bases is cut into argv[3] segments of argv[2] bases, and more that
 * cover it. Equal segments are found, then the rest is joined where the end of one is the beginning of another, the longest
 * overlaps first. A pause after each argv[4] steps. */
#include "work.h"

struct segment {
    struct segment *next; /* Of the same bucket. */
    struct segment *follows, *precedes;
    int overlap; /* With what follows. */
    const char *bases;
};
struct start {
    struct start *next;
    struct segment *segment;
};

static long steps, per_pause;

static void step(void) {
    work_pause(steps++, per_pause);
}

static uint64_t hash(const char *bases, int length) {
    uint64_t value = 14695981039346656037ull;
    for (int i = 0; i < length; i++)
        value = (value ^ (unsigned char)bases[i]) * 1099511628211ull;
    return value ^ value >> 29;
}

/* Joins segments whose ends and beginnings are equal in so many bases. */
static void join(struct segment **segments, long count, int length, int overlap, struct start **starts, long buckets) {
    memset(starts, 0, (size_t)buckets * sizeof *starts);
    for (long i = 0; i < count; i++)
        if (!segments[i]->precedes) {
            struct start **at = &starts[hash(segments[i]->bases, overlap) % (uint64_t)buckets];
            struct start *start = work_alloc(sizeof *start);
            *start = (struct start){*at, segments[i]};
            *at = start;
            step();
        }
    for (long i = 0; i < count; i++) {
        struct segment *segment = segments[i];
        if (segment->follows)
            continue;
        const char *end = segment->bases + length - overlap;
        struct start *start = starts[hash(end, overlap) % (uint64_t)buckets];
        for (; start; start = start->next)
            if (!start->segment->precedes && start->segment != segment && !memcmp(start->segment->bases, end, (size_t)overlap)) {
                segment->follows = start->segment;
                segment->overlap = overlap;
                start->segment->precedes = segment;
                break;
            }
        step();
    }
    for (long bucket = 0; bucket < buckets; bucket++)
        for (struct start *start = starts[bucket], *next; start; start = next) {
            next = start->next;
            free(start);
        }
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long bases = atol(argv[1]), wanted = atol(argv[3]), count = 0, joined = 0;
    int length = atoi(argv[2]);
    per_pause = atol(argv[4]);
    work_heed_signals();
    struct work_mark begin = work_mark();
    char *gene = work_alloc((size_t)bases);
    for (long i = 0; i < bases; i++)
        gene[i] = "acgt"[work_random() % 4];
    long covering = (bases - length) / (length / 2) + 2, all = wanted + covering, buckets = bases;
    char **cut = work_alloc((size_t)all * sizeof *cut);
    for (long i = 0; i < all; i++) {
        long from = i < covering ? i * (length / 2) : (long)(work_random() % (uint64_t)(bases - length + 1));
        from = from > bases - length ? bases - length : from;
        memcpy(cut[i] = work_alloc((size_t)length), gene + from, (size_t)length);
    }
    struct work_mark filled = work_mark();
    struct segment **table = work_alloc((size_t)buckets * sizeof *table);
    struct segment **segments = work_alloc((size_t)all * sizeof *segments);
    memset(table, 0, (size_t)buckets * sizeof *table);
    for (long i = 0; i < all; i++) {
        struct segment **at = &table[hash(cut[i], length) % (uint64_t)buckets];
        while (*at && memcmp((*at)->bases, cut[i], (size_t)length))
            at = &(*at)->next;
        if (!*at) {
            segments[count++] = *at = work_alloc(sizeof **at);
            **at = (struct segment){NULL, NULL, NULL, 0, cut[i]};
        } else {
            free(cut[i]);
        }
        step();
    }
    struct start **starts = work_alloc((size_t)buckets * sizeof *starts);
    /* Neighbours have at least half of their bases in common. */
    for (int overlap = length - 1; overlap >= length / 2 && !work_ended; overlap--)
        join(segments, count, length, overlap, starts, buckets);
    work_report(begin, filled, steps);
    if (work_ended)
        return 0;
    struct segment *first = NULL;
    for (long i = 0; i < count; i++)
        first = segments[i]->precedes ? first : segments[i];
    long at = 0;
    for (; first; first = first->follows, joined++) {
        if (at + length > bases || memcmp(gene + at, first->bases, (size_t)length))
            return 1;
        at += length - first->overlap;
    }
    return joined != count || at != bases;
}
