/* Phoenix's k-means: points move between clusters until they stay. Each point is an object that names its cluster; each
 * round makes new means, so that old points come to point to young objects. */
#include "collector.h"

static size_t dimensions;

struct mean {
    uint64_t points;
    double at[];
};

struct point {
    struct mean *cluster;
    double *at;
    uint64_t id;
};

static double distance(const double *a, const double *b) {
    double sum = 0;
    for (size_t i = 0; i < dimensions; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

int main(int argc, char **argv) {
    start(argc, argv);
    static const size_t counts[SIZES] = {10000, 100000, 300000, 1000000, 500, 1000, 5000};
    static const size_t wide[SIZES] = {3, 3, 3, 3, 500, 1000, 5000};
    /* In the paper's configurations there are as many clusters as points. They are run for their memory: once, and against
     * the first clusters alone. */
    size_t count = counts[size], k = size > 3 ? count : 10, rounds = size > 3 ? 1 : 12, compared = size > 3 ? 10 : k;
    dimensions = wide[size];
    struct point **points = new_object(count * sizeof *points);
    for (size_t i = 0; i < count; i++) {
        points[i] = new_object(sizeof **points);
        points[i]->at = new_data(dimensions * sizeof(double));
        points[i]->id = i;
        for (size_t d = 0; d < dimensions; d++) points[i]->at[d] = next_random() % 1000;
    }
    struct mean **means = new_object(k * sizeof *means);
    for (size_t i = 0; i < k; i++) {
        means[i] = new_object(sizeof **means + dimensions * sizeof(double));
        memcpy(means[i]->at, points[i * 7 % count]->at, dimensions * sizeof(double));
    }
    for (size_t round = 0; round < rounds; round++) {
        struct mean **fresh = new_object(k * sizeof *fresh);
        for (size_t j = 0; j < k; j++) fresh[j] = new_object(sizeof **fresh + dimensions * sizeof(double));
        for (size_t i = 0; i < count; i++) {
            /* As the original does: a small result per point that is garbage at once. */
            double *distances = new_data(k * sizeof *distances);
            size_t best = 0;
            for (size_t j = 0; j < compared; j++) {
                distances[j] = distance(points[i]->at, means[j]->at);
                if (distances[j] < distances[best]) best = j;
            }
            points[i]->cluster = fresh[best];
            for (size_t d = 0; d < dimensions; d++) fresh[best]->at[d] += points[i]->at[d];
            fresh[best]->points++;
        }
        for (size_t j = 0; j < k; j++)
            for (size_t d = 0; d < dimensions; d++)
                fresh[j]->at[d] = fresh[j]->points ? fresh[j]->at[d] / fresh[j]->points : means[j]->at[d];
        means = fresh;
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < count; i++) checksum = mix(checksum, points[i]->id + points[i]->cluster->points);
    return finish(checksum);
}
