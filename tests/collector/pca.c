/* Phoenix's pca: the mean of each row of a matrix, and the covariance of each pair of rows. A mean is an object that its row
 * names, a covariance a number in a fresh row. */
#include "collector.h"

struct row {
    double *mean;
    int32_t *values;
};

int main(int argc, char **argv) {
    start(argc, argv);
    /* In the paper's configurations the covariances are too many to compute here; those of the first rows are. */
    static const size_t sides[SIZES] = {120, 400, 700, 1000, 1000, 5000, 10000};
    static const size_t related[SIZES] = {120, 400, 700, 1000, 200, 200, 200};
    size_t n = sides[size], columns = n, pairs = related[size];
    struct row **rows = new_object(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        rows[i] = new_object(sizeof **rows);
        rows[i]->values = new_data(columns * sizeof *rows[i]->values);
        for (size_t j = 0; j < columns; j++) rows[i]->values[j] = next_random() % 200;
    }
    for (size_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (size_t j = 0; j < columns; j++) sum += rows[i]->values[j];
        rows[i]->mean = new_data(sizeof *rows[i]->mean);
        *rows[i]->mean = (double)sum / columns;
    }
    int64_t **covariances = new_object(pairs * sizeof *covariances);
    for (size_t i = 0; i < pairs; i++) {
        covariances[i] = new_data(pairs * sizeof **covariances);
        for (size_t k = 0; k < pairs; k++) {
            /* As the original does: what is multiplied is copied first, and garbage at once. */
            double *product = new_data(columns * sizeof *product), sum = 0;
            for (size_t j = 0; j < columns; j++)
                product[j] = (rows[i]->values[j] - *rows[i]->mean) * (rows[k]->values[j] - *rows[k]->mean);
            for (size_t j = 0; j < columns; j++) sum += product[j];
            covariances[i][k] = (int64_t)(sum / (columns - 1) * 1000);
        }
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < pairs; i++)
        for (size_t k = 0; k < pairs; k++) {
            if (covariances[i][k] != covariances[k][i]) {
                fprintf(stderr, "the covariances of %zu and %zu differ\n", i, k);
                return 1;
            }
            checksum = mix(checksum, covariances[i][k]);
        }
    return finish(checksum);
}
