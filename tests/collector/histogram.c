/* Phoenix's histogram: how often each brightness occurs in each colour of an image. The image is rows of pixels; each row
 * is counted into a list of its own, and the lists are merged. */
#include "collector.h"

struct bucket {
    struct bucket *next;
    uint32_t key, count;
};

static struct bucket **count_row(const uint8_t *row, size_t width) {
    struct bucket **buckets = new_object(768 * sizeof *buckets);
    for (size_t x = 0; x < width; x++)
        for (int colour = 0; colour < 3; colour++) {
            uint32_t key = colour * 256 + row[3 * x + colour];
            if (!buckets[key]) {
                buckets[key] = new_object(sizeof **buckets);
                buckets[key]->key = key;
            }
            buckets[key]->count++;
        }
    return buckets;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const size_t heights[SIZES] = {300, 4000, 12000, 36000, 33334, 166667, 500000};
    size_t width = 1000, height = heights[size];
    uint8_t **image = new_object(height * sizeof *image);
    for (size_t y = 0; y < height; y++) {
        image[y] = new_data(3 * width);
        for (size_t x = 0; x < 3 * width; x++) image[y][x] = next_random() >> 56;
    }
    struct bucket **rows = new_object(768 * sizeof *rows);
    for (size_t y = 0; y < height; y++) {
        struct bucket **row = count_row(image[y], width);
        for (int key = 0; key < 768; key++)
            if (row[key]) {
                /* Old rows stay reachable in short chains. */
                row[key]->next = y % 16 ? rows[key] : NULL;
                row[key]->count += row[key]->next ? row[key]->next->count : 0;
                rows[key] = row[key];
            }
    }
    uint64_t checksum = 0;
    for (int key = 0; key < 768; key++)
        for (struct bucket *bucket = rows[key]; bucket; bucket = bucket->next)
            checksum = mix(checksum, bucket->key + 1000ull * bucket->count);
    return finish(checksum);
}
