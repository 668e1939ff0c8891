/* hstu bench WHAT: the table of benches. */
#include "cli/bench/bench.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

const command bench_commands[] = {
    {"attention", bench_attention, "the attention: TFLOP/s, forward and backward"},
    {"cache", bench_cache, "the KV cache of serving: equal answers, by random schedules"},
    {"dataset", bench_dataset, "requests for the benches of serving"},
    {"cluster", bench_cluster, "a training step on many GPUs, predicted from one"},
    {"data", bench_data, "the batcher: tokens per second"},
    {"encode", bench_encode, "a BERT encoder: milliseconds and tokens per second"},
    {"embedding", bench_embedding, "dynamic tables: lookups, rows, inserts, pooling, a step"},
    {"latency", bench_latency, "serving: milliseconds of a request, by the state of the cache"},
    {"layers", bench_layers, "HSTU layers with cached keys and values: milliseconds"},
    {"masks", bench_masks, "softmax attention under masks, forward and backward"},
    {"search", bench_search, "the best items of a catalogue for many queries: milliseconds"},
    {"throughput", bench_throughput, "serving: requests per second, latencies under load"},
    {"train", bench_train, "a training step: tokens per second, the share of each op"},
    {0},
};
enum { N_BENCHES = sizeof bench_commands / sizeof bench_commands[0] - 1 };

const char *bench_act_name(act_type act) {
    static const char *const names[] = {
        [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_F16] = "float16"};
    return names[act];
}

status bench_find_act(const char *name, act_type *out) {
    for (int i = ACT_F32; i <= ACT_F16; i++) {
        if (strcmp(name, bench_act_name((act_type)i)) != 0) continue;
        *out = (act_type)i;
        return OK;
    }
    return fail(ERR_USAGE, "--dtype %.40s: the types are float32, bfloat16 and float16", name);
}

status bench_open(work *w, const char *device, const char *dtype) {
    act_type act = ACT_F32;
    TRY(bench_find_act(dtype, &act));
    TRY(work_open(w, NULL, device));
    status st = w->be->ops->set_precision(w->be, act, false);
    if (st != OK) work_close(w);
    return st;
}

static void print_benches(void) {
    printf("Usage: hstu bench WHAT [options]\n\n"
           "Measures what we claim, on this machine, after checking that it is right.\n\n");
    for (int i = 0; i < N_BENCHES; i++)
        printf("  %-10s %s\n", bench_commands[i].name, bench_commands[i].summary);
    printf("\n'hstu bench WHAT --help' shows the options.\n");
}

status cmd_bench(int argc, char **argv) {
    const char *names[N_BENCHES];
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_benches();
        return OK;
    }
    for (int i = 0; i < N_BENCHES; i++) {
        if (strcmp(argv[1], bench_commands[i].name) == 0)
            return bench_commands[i].run(argc - 1, argv + 1);
        names[i] = bench_commands[i].name;
    }
    const char *near = nearest_name(argv[1], names, N_BENCHES);
    return fail(ERR_USAGE, "no bench is called '%.100s'%s%s%s", argv[1],
                near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : "; 'hstu bench' lists them");
}
