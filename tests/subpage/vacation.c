/* Reservations, after STAMP's vacation: trees of argv[1] cars, rooms and flights each, and of customers. argv[3] tasks, of which
 * nine in ten look at argv[2] things each and reserve the dearest, and the others delete customers or change what there is. A
 * pause after each argv[4]. */
#include "work.h"

enum { KINDS = 3 };
struct thing {
    long used, total, price;
};
struct held {
    struct held *next;
    int kind;
    long key;
};
struct node {
    struct node *left, *right;
    long key;
    uint64_t priority;
    union {
        struct thing *thing;
        struct held *held;
    };
};
static struct node *things[KINDS], *customers;

static struct node *find(struct node *at, long key) {
    while (at && at->key != key)
        at = key < at->key ? at->left : at->right;
    return at;
}

static struct node *turned(struct node *at, int left) {
    struct node *up = left ? at->left : at->right;
    if (left) {
        at->left = up->right;
        up->right = at;
    } else {
        at->right = up->left;
        up->left = at;
    }
    return up;
}

/* A treap. The key is not in it. */
static struct node *with(struct node *at, struct node *new) {
    if (!at)
        return new;
    int left = new->key < at->key;
    struct node **child = left ? &at->left : &at->right, *below = with(*child, new);
    if (below != *child)
        *child = below;
    return below->priority > at->priority ? turned(at, left) : at;
}

static struct node *without(struct node *at, long key) {
    if (key != at->key) {
        struct node **child = key < at->key ? &at->left : &at->right, *below = without(*child, key);
        if (below != *child)
            *child = below;
        return at;
    }
    if (!at->left || !at->right) {
        struct node *rest = at->left ? at->left : at->right;
        free(at);
        return rest;
    }
    int left = at->left->priority > at->right->priority;
    struct node *up = turned(at, left), **child = left ? &up->right : &up->left;
    *child = without(at, key);
    return up;
}

static struct node *added(struct node **tree, long key) {
    struct node *new = work_alloc(sizeof *new);
    *new = (struct node){NULL, NULL, key, work_random(), {NULL}};
    *tree = with(*tree, new);
    return new;
}

static void reserve(long records, long looks) {
    long best[KINDS] = {-1, -1, -1}, price[KINDS] = {-1, -1, -1};
    for (long i = 0; i < looks; i++) {
        int kind = (int)(work_random() % KINDS);
        struct node *found = find(things[kind], (long)(work_random() % (uint64_t)records));
        if (found && found->thing->used < found->thing->total && found->thing->price > price[kind]) {
            price[kind] = found->thing->price;
            best[kind] = found->key;
        }
    }
    long key = (long)(work_random() % (uint64_t)records);
    struct node *customer = find(customers, key);
    for (int kind = 0; kind < KINDS; kind++)
        if (best[kind] >= 0) {
            customer = customer ? customer : added(&customers, key);
            struct held *held = work_alloc(sizeof *held);
            *held = (struct held){customer->held, kind, best[kind]};
            customer->held = held;
            find(things[kind], best[kind])->thing->used++;
        }
}

static void leave(long key) {
    struct node *customer = find(customers, key);
    if (!customer)
        return;
    for (struct held *held = customer->held, *next; held; held = next) {
        next = held->next;
        find(things[held->kind], held->key)->thing->used--;
        free(held);
    }
    customers = without(customers, key);
}

static void change(long records) {
    int kind = (int)(work_random() % KINDS);
    long key = (long)(work_random() % (uint64_t)records);
    struct node *found = find(things[kind], key);
    if (found && found->thing->used == 0 && work_random() % 2) {
        free(found->thing);
        things[kind] = without(things[kind], key);
    } else if (found) {
        found->thing->total += 10;
        found->thing->price = 50 + (long)(work_random() % 450);
    } else {
        struct thing *thing = work_alloc(sizeof *thing);
        *thing = (struct thing){0, 100, 50 + (long)(work_random() % 450)};
        added(&things[kind], key)->thing = thing;
    }
}

static long used(const struct node *at) {
    return at ? at->thing->used + used(at->left) + used(at->right) : 0;
}

static long held(const struct node *at) {
    long count = 0;
    if (!at)
        return 0;
    for (struct held *each = at->held; each; each = each->next)
        count++;
    return count + held(at->left) + held(at->right);
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long records = atol(argv[1]), looks = atol(argv[2]), tasks = atol(argv[3]), per_pause = atol(argv[4]);
    work_heed_signals();
    struct work_mark begin = work_mark();
    for (int kind = 0; kind < KINDS; kind++)
        for (long key = 0; key < records; key++) {
            struct thing *thing = work_alloc(sizeof *thing);
            *thing = (struct thing){0, 100 + (long)(work_random() % 5) * 100, 50 + (long)(work_random() % 450)};
            added(&things[kind], key)->thing = thing;
        }
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < tasks && !work_ended; i++) {
        uint64_t what = work_random() % 20;
        if (what < 18)
            reserve(records, looks);
        else if (what == 18)
            leave((long)(work_random() % (uint64_t)records));
        else
            change(records);
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
    long all = 0;
    for (int kind = 0; kind < KINDS; kind++)
        all += used(things[kind]);
    return all != held(customers);
}
