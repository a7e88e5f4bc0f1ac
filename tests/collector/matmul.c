/* Phoenix's matrix multiply, on rows that are objects: each product is a fresh row, each factor column a temporary. */
#include "collector.h"

static int64_t **matrix(size_t n) {
    int64_t **rows = new_object(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        rows[i] = new_data(n * sizeof **rows);
        for (size_t j = 0; j < n; j++) rows[i][j] = next_random() % 1000;
    }
    return rows;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const size_t sides[SIZES] = {100, 400, 700, 1000, 500, 1000, 2000};
    size_t n = sides[size];
    int64_t **a = matrix(n), **b = matrix(n), **product = new_object(n * sizeof *product);
    for (size_t i = 0; i < n; i++) product[i] = new_data(n * sizeof **product);
    /* In the paper's configurations, which are run for their memory, the first columns are enough. */
    size_t computed = size > 3 ? 100 : n;
    for (size_t j = 0; j < computed; j++) {
        for (size_t i = 0; i < n; i++) {
            int64_t sum = 0, *column = new_data(n * sizeof *column);
            for (size_t k = 0; k < n; k++) column[k] = b[k][j];
            for (size_t k = 0; k < n; k++) sum += a[i][k] * column[k];
            product[i][j] = sum;
        }
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < computed; j++) checksum = mix(checksum, product[i][j]);
    return finish(checksum);
}
