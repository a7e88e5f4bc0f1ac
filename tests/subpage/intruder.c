/* Intrusion detection, after STAMP's intruder: argv[1] flows of at most argv[2] bytes are cut into packets, which arrive in
 * random order; flows are put together again, and searched for signatures, which a tenth of them has. argv[3] packets are
 * taken at most, with a pause after each argv[4]. */
#include "work.h"

#define BUCKETS (1 << 16)
#define FRAGMENTS_MAX 16
static const char *const signatures[] = {"Drop Table", "/etc/passwd", "cmd.exe /c", "<script>x"};
enum { SIGNATURES = sizeof signatures / sizeof *signatures };

struct packet {
    struct packet *next;
    long flow;
    int number, of, length;
    char data[];
};
struct flow {
    struct flow *next;
    long id;
    int arrived, length;
    struct packet *packets; /* By number. */
};
static struct flow *flows[BUCKETS];

/* Cuts a flow into packets, which are added to the others. */
static long cut(long flow, const char *text, int length, struct packet **packets) {
    int of = 1 + (int)(work_random() % FRAGMENTS_MAX), from = 0;
    of = of > length ? length : of;
    for (int number = 0; number < of; number++) {
        int to = (number + 1) * length / of;
        struct packet *packet = work_alloc(sizeof *packet + (size_t)(to - from));
        *packet = (struct packet){NULL, flow, number, of, to - from};
        memcpy(packet->data, text + from, (size_t)(to - from));
        packets[number] = packet;
        from = to;
    }
    return of;
}

/* Takes a packet in. Returns the text of a flow that is whole. */
static char *arrive(struct packet *packet) {
    struct flow **at = &flows[(unsigned long)packet->flow * 2654435761u % BUCKETS];
    while (*at && (*at)->id != packet->flow)
        at = &(*at)->next;
    if (!*at) {
        *at = work_alloc(sizeof **at);
        **at = (struct flow){NULL, packet->flow, 0, 0, NULL};
    }
    struct flow *flow = *at;
    struct packet **place = &flow->packets;
    while (*place && (*place)->number < packet->number)
        place = &(*place)->next;
    packet->next = *place;
    *place = packet;
    flow->length += packet->length;
    if (++flow->arrived < packet->of)
        return NULL;
    char *text = work_alloc((size_t)flow->length + 1), *end = text;
    for (struct packet *each = flow->packets, *next; each; each = next) {
        memcpy(end, each->data, (size_t)each->length);
        end += each->length;
        next = each->next;
        free(each);
    }
    *end = 0;
    *at = flow->next;
    free(flow);
    return text;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    long count = atol(argv[1]), updates = atol(argv[3]), per_pause = atol(argv[4]);
    int longest = atoi(argv[2]);
    char *text = malloc((size_t)longest + 1);
    work_heed_signals();
    struct work_mark begin = work_mark();
    struct packet **queue = work_alloc((size_t)count * FRAGMENTS_MAX * sizeof *queue);
    long packets = 0, attacks = 0, found = 0, whole = 0;
    for (long flow = 0; flow < count; flow++) {
        int length = 16 + (int)(work_random() % (uint64_t)(longest - 15));
        for (int i = 0; i < length; i++)
            text[i] = (char)('a' + work_random() % 26);
        if (work_random() % 10 == 0) {
            const char *signature = signatures[work_random() % SIGNATURES];
            size_t at = work_random() % (uint64_t)(length - (int)strlen(signature) + 1);
            memcpy(text + at, signature, strlen(signature));
            attacks++;
        }
        packets += cut(flow, text, length, queue + packets);
    }
    for (long i = packets - 1; i > 0; i--) {
        long other = (long)(work_random() % (uint64_t)(i + 1));
        struct packet *packet = queue[i];
        queue[i] = queue[other];
        queue[other] = packet;
    }
    struct work_mark filled = work_mark();
    long i = 0;
    for (; i < packets && i < updates && !work_ended; i++) {
        char *all = arrive(queue[i]);
        if (all) {
            whole++;
            for (int n = 0; n < SIGNATURES; n++)
                found += strstr(all, signatures[n]) != NULL;
            free(all);
        }
        work_pause(i, per_pause);
    }
    work_report(begin, filled, i);
    return i == packets && (found != attacks || whole != count);
}
