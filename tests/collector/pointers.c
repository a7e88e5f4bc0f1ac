/* Moves millions of pointers between old objects, where each move is the only reference to what moves: a page whose write
 * goes unseen loses an object, which is then overwritten by another. Every object carries a checksum of itself. */
#include "collector.h"

#define SLOTS 30

struct item {
    uint64_t id, seal, more[4];
};

struct shelf {
    struct item *slot[SLOTS];
    uint64_t id, seal;
};

static struct item *new_item(uint64_t id) {
    struct item *item = new_object(sizeof *item);
    item->id = id;
    for (int i = 0; i < 4; i++) item->more[i] = mix(id, i);
    item->seal = mix(id, 77);
    return item;
}

static void check(const struct item *item) {
    int right = item && item->seal == mix(item->id, 77);
    for (int i = 0; right && i < 4; i++) right = item->more[i] == mix(item->id, i);
    if (right) return;
    fputs("an object is gone that was reachable\n", stderr);
    abort();
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const uint64_t counts[] = {2000, 20000, 60000, 150000}, move_counts[] = {400000, 5000000, 10000000, 20000000};
    uint64_t count = counts[size & 3], moves = move_counts[size & 3], next_id = 0;
    struct shelf **shelves = new_object(count * sizeof *shelves);
    for (uint64_t i = 0; i < count; i++) {
        shelves[i] = new_object(sizeof **shelves);
        shelves[i]->id = i;
        shelves[i]->seal = mix(i, 99);
        for (int j = 0; j < SLOTS; j++) shelves[i]->slot[j] = j % 3 ? new_item(next_id++) : NULL;
    }
    for (uint64_t move = 0; move < moves; move++) {
        struct shelf *from = shelves[next_random() % count], *to = shelves[next_random() % count];
        int i = next_random() % SLOTS, j = next_random() % SLOTS;
        struct item *moved = from->slot[i];
        from->slot[i] = to->slot[j];
        to->slot[j] = moved;
        if (moved) check(moved);
        if (move % 4 == 0) {
            /* A young object that only an old one knows, and garbage. */
            struct item **place = &shelves[next_random() % count]->slot[next_random() % SLOTS];
            if (*place) *place = new_item((*place)->id);
        }
    }
    uint64_t checksum = 0, items = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (shelves[i]->id != i || shelves[i]->seal != mix(i, 99)) abort();
        for (int j = 0; j < SLOTS; j++)
            if (shelves[i]->slot[j]) {
                check(shelves[i]->slot[j]);
                checksum = mix(checksum, shelves[i]->slot[j]->id);
                items++;
            }
    }
    return items == next_id ? finish(checksum) : 1;
}
