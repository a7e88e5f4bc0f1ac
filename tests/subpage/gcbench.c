/* GCBench (Ellis, Kovac, Boehm) with free() for a collector: beside a tree of depth argv[1] and an array that live on, argv[3]
 * series of trees of all smaller depths are built top-down and bottom-up, and freed. A pause after each argv[4] nodes. */
#include "work.h"

struct node {
    struct node *left, *right;
    long i, j;
};

static long nodes, per_pause;

static struct node *node(struct node *left, struct node *right) {
    struct node *new = work_alloc(sizeof *new);
    *new = (struct node){left, right, nodes, 1};
    work_pause(nodes++, per_pause);
    return new;
}

static void populate(int depth, struct node *at) {
    if (depth <= 0)
        return;
    at->left = node(NULL, NULL);
    at->right = node(NULL, NULL);
    populate(depth - 1, at->left);
    populate(depth - 1, at->right);
}

static struct node *made(int depth) {
    if (depth <= 0)
        return node(NULL, NULL);
    struct node *left = made(depth - 1);
    return node(left, made(depth - 1));
}

static long count(const struct node *at) {
    return at ? at->j + count(at->left) + count(at->right) : 0;
}

static void discard(struct node *at) {
    if (!at)
        return;
    discard(at->left);
    discard(at->right);
    free(at);
}

static long size(int depth) {
    return (2L << depth) - 1;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    int depth = atoi(argv[1]), wrong = 0;
    long series = atol(argv[3]);
    per_pause = atol(argv[4]);
    work_heed_signals();
    struct work_mark begin = work_mark();
    struct node *lives = node(NULL, NULL);
    populate(depth, lives);
    long length = size(depth);
    double *array = work_alloc((size_t)length * sizeof *array);
    for (long i = 0; i < length; i++)
        array[i] = 1.0 / (double)(i + 1);
    struct work_mark filled = work_mark();
    long n = 0;
    for (; n < series && !work_ended; n++)
        for (int d = 4; d < depth; d += 2)
            for (long i = size(depth) / size(d); i > 0; i--) {
                struct node *down = node(NULL, NULL), *up;
                populate(d, down);
                up = made(d);
                wrong |= count(down) != size(d) || count(up) != size(d);
                discard(down);
                discard(up);
            }
    work_report(begin, filled, n);
    return wrong || count(lives) != length || array[length - 1] != 1.0 / (double)length;
}
