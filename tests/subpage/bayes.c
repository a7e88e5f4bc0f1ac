/* Structure learning, after STAMP's bayes: counts of argv[1] records with argv[2] binary variables each are put into a tree
 * (Moore, Lee), from which argv[3] tasks take how likely a variable is by others, and add the best edge to a network. A pause
 * after each argv[4] steps: nodes of the tree, then tasks. */
#include "work.h"
#include <math.h>

enum { VARIABLES_MAX = 64, PARENTS_MAX = 3 };
struct vary;
struct counts { /* Of the records that agree with the path to it. */
    long count;
    struct vary *varied;
};
struct vary {
    struct vary *next;
    int variable, common; /* The more frequent value is not stored: it is the difference. */
    struct counts *rare;
};
struct edge {
    struct edge *next;
    int from;
};
struct task {
    struct task *next;
    int variable;
};
struct term {
    int variable, value;
};

static long records, steps, per_pause;
static int variables;
static unsigned char (*data)[VARIABLES_MAX];
static struct edge *parents[VARIABLES_MAX];

static struct counts *counted(int before, long *rows, long count) {
    struct counts *counts = work_alloc(sizeof *counts);
    struct vary **end = &counts->varied;
    counts->count = count;
    counts->varied = NULL;
    for (int variable = before + 1; variable < variables; variable++) {
        struct vary *vary = work_alloc(sizeof *vary);
        long zeros = 0;
        for (long i = 0; i < count; i++)
            if (!data[rows[i]][variable]) {
                long row = rows[i];
                rows[i] = rows[zeros];
                rows[zeros++] = row;
            }
        int common = zeros < count - zeros;
        *vary = (struct vary){NULL, variable, common, NULL};
        *end = vary;
        end = &vary->next;
        work_pause(steps++, per_pause);
        if (common && zeros)
            vary->rare = counted(variable, rows, zeros);
        else if (!common && zeros < count)
            vary->rare = counted(variable, rows + zeros, count - zeros);
    }
    return counts;
}

/* How many records have these values; variables ascend. */
static long number(const struct counts *counts, const struct term *terms, int count) {
    if (!counts || count == 0)
        return counts ? counts->count : 0;
    const struct vary *vary = counts->varied;
    while (vary->variable != terms->variable)
        vary = vary->next;
    long rare = number(vary->rare, terms + 1, count - 1);
    return terms->value == vary->common ? number(counts, terms + 1, count - 1) - rare : rare;
}

/* The likelihood of a variable by others. */
static double likelihood(const struct counts *counts, int variable, const int *others, int count) {
    double sum = 0;
    for (int values = 0; values < 1 << count; values++) {
        long of[2];
        for (int value = 0; value < 2; value++) {
            struct term terms[PARENTS_MAX + 2];
            int length = 0;
            for (int i = 0; i <= count; i++) {
                struct term term = i < count ? (struct term){others[i], values >> i & 1} : (struct term){variable, value};
                int at = length++;
                for (; at > 0 && terms[at - 1].variable > term.variable; at--)
                    terms[at] = terms[at - 1];
                terms[at] = term;
            }
            of[value] = number(counts, terms, length);
        }
        for (int value = 0; value < 2; value++)
            if (of[value])
                sum += (double)of[value] * log((double)of[value] / (double)(of[0] + of[1]));
    }
    return sum;
}

static int leads(int from, int to) {
    for (const struct edge *edge = parents[to]; edge; edge = edge->next)
        if (edge->from == from || leads(from, edge->from))
            return 1;
    return 0;
}

/* Adds the edge to a variable that explains most. */
static void learn(const struct counts *counts, int variable) {
    int others[PARENTS_MAX + 1], count = 0, best = -1;
    for (const struct edge *edge = parents[variable]; edge; edge = edge->next)
        others[count++] = edge->from;
    if (count == PARENTS_MAX)
        return;
    double now = likelihood(counts, variable, others, count), most = now + 8;
    for (int from = 0; from < variables; from++) {
        int is_parent = from == variable || leads(variable, from);
        for (int i = 0; i < count; i++)
            is_parent |= others[i] == from;
        others[count] = from;
        double with = is_parent ? now : likelihood(counts, variable, others, count + 1);
        if (with > most) {
            most = with;
            best = from;
        }
    }
    if (best >= 0) {
        struct edge *edge = work_alloc(sizeof *edge);
        *edge = (struct edge){parents[variable], best};
        parents[variable] = edge;
    }
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long tasks = atol(argv[3]);
    records = atol(argv[1]);
    variables = atoi(argv[2]);
    per_pause = atol(argv[4]);
    work_heed_signals();
    if (variables < 2 || variables > VARIABLES_MAX)
        return 2;
    struct work_mark begin = work_mark();
    data = work_alloc((size_t)records * sizeof *data);
    long *rows = work_alloc((size_t)records * sizeof *rows);
    for (long row = 0; row < records; row++) {
        rows[row] = row;
        for (int variable = 0; variable < variables; variable++) {
            /* Half of them copy an earlier one most of the time. */
            int copies = variable % 2 && work_random() % 10;
            data[row][variable] = copies ? data[row][variable / 2] : work_random() % 4 == 0;
        }
    }
    struct work_mark filled = work_mark();
    struct counts *all = counted(-1, rows, records);
    struct task *queue = NULL;
    long n = 0;
    for (; n < tasks && !work_ended; n++) {
        struct task *task = work_alloc(sizeof *task);
        *task = (struct task){queue, (int)(work_random() % (uint64_t)variables)};
        queue = task;
        work_pause(steps++, per_pause);
        if (n % 4 == 3)
            for (; queue; queue = task) {
                learn(all, queue->variable);
                task = queue->next;
                free(queue);
            }
    }
    work_report(begin, filled, steps);
    for (int i = 0; i < 100; i++) {
        struct term terms[2] = {{(int)(work_random() % (uint64_t)(variables - 1)), i & 1}, {variables - 1, i >> 1 & 1}};
        long right = 0;
        for (long row = 0; row < records; row++)
            right += data[row][terms[0].variable] == terms[0].value && data[row][terms[1].variable] == terms[1].value;
        if (number(all, terms, 2) != right)
            return 1;
    }
    return 0;
}
