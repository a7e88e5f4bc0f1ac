/* Many small objects, each with a stamp; a mirror far away has the same stamps. An object is written before its mirror, so
 * each is its mirror or one ahead: always, at each instant. A rewind that puts memory back to an instant, and mixes objects of
 * another one in, is found out. */
#include "victim.h"

enum { OBJECTS = 20000, CHANGES = 2000 };

struct object {
    uint64_t number, stamp;
    unsigned char filling[32];
};

static struct object *objects[OBJECTS];
static uint64_t *mirror;

static void check(size_t i) {
    uint64_t stamp = objects[i]->stamp;
    if (objects[i]->number != i || (stamp != mirror[i] && stamp != mirror[i] + 1))
        fail("object %zu says %lu and %lu, its mirror %lu", i, (unsigned long)objects[i]->number, (unsigned long)stamp,
             (unsigned long)mirror[i]);
    for (size_t at = 0; at < sizeof objects[i]->filling; at++)
        if (objects[i]->filling[at] != (unsigned char)(i + at))
            fail("object %zu: byte %zu changed", i, at);
}

int main(int argc, char **argv) {
    victim_start(argc, argv);
    mirror = calloc(OBJECTS, sizeof *mirror);
    for (size_t i = 0; i < OBJECTS; i++) {
        /* Of several sizes, some across pages. */
        objects[i] = malloc(sizeof **objects + i % 7 * 100);
        objects[i]->number = i;
        objects[i]->stamp = 0;
        for (size_t at = 0; at < sizeof objects[i]->filling; at++)
            objects[i]->filling[at] = (unsigned char)(i + at);
    }
    victim_ready();
    uint64_t random = 88172645463325252ull;
    while (!over()) {
        for (int change = 0; change < CHANGES; change++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t i = random % OBJECTS;
            check(i);
            *(volatile uint64_t *)&objects[i]->stamp = mirror[i] + 1;
            *(volatile uint64_t *)&mirror[i] = objects[i]->stamp;
        }
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    for (size_t i = 0; i < OBJECTS; i++)
        check(i);
    return 0;
}
