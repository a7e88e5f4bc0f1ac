/* GCBench, after the benchmark of Ellis, Kovac and Boehm: short-lived binary trees, built from the top and from the bottom,
 * while a large tree and a large array live on. */
#include "collector.h"

struct node {
    struct node *left, *right;
    uint64_t value;
};

static struct node *build_up(int depth) {
    struct node *node = new_object(sizeof *node);
    if (depth > 0) {
        node->left = build_up(depth - 1);
        node->right = build_up(depth - 1);
    }
    node->value = depth;
    return node;
}

static void build_down(int depth, struct node *node) {
    node->value = depth;
    if (depth <= 0) return;
    node->left = new_object(sizeof *node);
    node->right = new_object(sizeof *node);
    build_down(depth - 1, node->left);
    build_down(depth - 1, node->right);
}

static uint64_t sum(const struct node *node) {
    return node ? mix(sum(node->left) + 3 * sum(node->right), node->value) : 0;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const int depths[SIZES] = {12, 16, 18, 20, 16, 18, 20}, stretches[SIZES] = {13, 17, 19, 21, 18, 20, 22};
    static const size_t lengths[SIZES] = {0, 0, 0, 0, 500000, 650000, 750000};
    int long_lived = depths[size], stretch = stretches[size];
    uint64_t checksum = sum(build_up(stretch));
    struct node *tree = new_object(sizeof *tree);
    build_down(long_lived, tree);
    size_t length = lengths[size] ? lengths[size] : 1ul << (long_lived + 2);
    double *array = new_data(length * sizeof *array);
    for (size_t i = 0; i < length; i++) array[i] = 1.0 / (i + 1);
    for (int depth = 4; depth <= long_lived; depth += 4) {
        int times = (2 << stretch) / (1 << depth) / 2;
        for (int i = 0; i < times; i++) {
            struct node *top = new_object(sizeof *top);
            build_down(depth, top);
            checksum = mix(checksum, top->left->value + build_up(depth)->right->value);
        }
    }
    checksum = mix(checksum, sum(tree));
    for (size_t i = 0; i < length; i += 1000) checksum = mix(checksum, (uint64_t)(array[i] * 1e12));
    return finish(checksum);
}
