/* Phoenix's word count: words of a text into a hash table of lists. Buckets and counters are old soon, words keep coming. */
#include "collector.h"

struct word {
    struct word *next;
    char *text;
    uint64_t count;
};

#define BUCKETS 65536

static uint64_t hash(const char *text) {
    uint64_t sum = 14695981039346656037ull;
    while (*text) sum = (sum ^ (unsigned char)*text++) * 1099511628211ull;
    return sum;
}

/* A word of a skewed distribution: small numbers are frequent. */
static char *next_word(uint64_t different) {
    uint64_t number = next_random() % different;
    if (next_random() % 4) number = number * number / different;
    char *text = new_data(32);
    snprintf(text, 32, "w%llu", (unsigned long long)number);
    return text;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const uint64_t totals[SIZES] = {100000, 500000, 1500000, 4000000, 6553600, 13107200, 26214400};
    uint64_t total = totals[size], different = size > 3 ? 100000 : total / 4;
    /* In the paper's configurations the original has the whole file in memory, some eight bytes a word. */
    char *file = size > 3 ? new_data(total * 8) : NULL;
    if (file) memset(file, 'w', total * 8);
    struct word **table = new_object(BUCKETS * sizeof *table);
    for (uint64_t i = 0; i < total; i++) {
        char *text = next_word(different);
        struct word **bucket = &table[hash(text) % BUCKETS], *word = *bucket;
        while (word && strcmp(word->text, text)) word = word->next;
        if (!word) {
            word = new_object(sizeof *word);
            word->text = text;
            word->next = *bucket;
            *bucket = word;
        }
        word->count++;
    }
    uint64_t checksum = file ? file[total] : 0, words = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (struct word *word = table[i]; word; word = word->next) {
            checksum += hash(word->text) * word->count;
            words += word->count;
        }
    if (words != total) {
        fprintf(stderr, "%llu words counted, not %llu\n", (unsigned long long)words, (unsigned long long)total);
        return 1;
    }
    return finish(checksum);
}
