/* Phoenix's string match: each word of a text is enciphered and compared with four keys. The cipher text is an object that is
 * garbage at once; words that match are kept in a list, whose old part stays. */
#include "collector.h"

#define KEYS 4
#define WORD 12

struct match {
    struct match *next;
    char *word;
    int key;
};

/* The original's cipher: each letter moves on by five. */
static char *encipher(const char *word, size_t length) {
    char *out = new_data(length + 1);
    for (size_t i = 0; i < length; i++) out[i] = word[i] + 5;
    out[length] = 0;
    return out;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const size_t texts[SIZES] = {200000, 4000000, 12000000, 40000000, 52428800, 104857600, 209715200};
    size_t bytes = texts[size];
    char *text = new_data(bytes), *keys[KEYS];
    static const char *const plain[KEYS] = {"aabb", "baba", "abab", "bbaa"};
    for (int key = 0; key < KEYS; key++) keys[key] = encipher(plain[key], strlen(plain[key]));
    /* Words of four letters or more, most of them long and none of the keys. */
    for (size_t at = 0; at < bytes;) {
        uint64_t random = next_random();
        size_t length = random % 8 ? 5 + random / 8 % (WORD - 5) : 4;
        for (size_t i = 0; i < length && at < bytes; i++) text[at++] = 'a' + (random >> (16 + i)) % 2;
        if (at < bytes) text[at++] = ' ';
    }
    struct match *matches = NULL;
    uint64_t found[KEYS] = {0}, checksum = 0;
    for (size_t at = 0; at < bytes;) {
        size_t length = 0;
        while (at + length < bytes && text[at + length] != ' ') length++;
        char *cipher = encipher(text + at, length);
        for (int key = 0; key < KEYS; key++)
            if (!strcmp(cipher, keys[key])) {
                struct match *match = new_object(sizeof *match);
                match->word = cipher;
                match->key = key;
                /* Chains stay short, so that marking does not go deep. */
                match->next = ++found[key] % 64 ? matches : NULL;
                matches = match;
            }
        at += length + 1;
    }
    for (struct match *match = matches; match; match = match->next)
        for (const char *letter = match->word; *letter; letter++) {
            if (*letter != keys[match->key][letter - match->word]) {
                fprintf(stderr, "a match is not its key\n");
                return 1;
            }
            checksum = mix(checksum, *letter);
        }
    for (int key = 0; key < KEYS; key++) checksum = mix(checksum, found[key]);
    return finish(checksum);
}
