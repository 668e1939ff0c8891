#include "data/synth/synth.h"
#include "cli/cli.h"
#include "cli/output.h"

static status print_json(const char *folder, const synth_report *r, double seconds) {
    return JSON_LINE(FIELD("path", folder), FIELD("users", r->n_users),
                     FIELD("catalogue", r->n_items), FIELD("topics", r->n_topics),
                     FIELD("events", r->n_events), FIELD("max_len", r->max_len),
                     FIELD("best_hr10", r->best_hr10), FIELD("best_ndcg10", r->best_ndcg10),
                     FIELD("popularity_hr10", r->popularity_hr10), FIELD("seconds", seconds));
}

static void print_text(const char *folder, const synth_report *r, double seconds) {
    printf("%s\n\n", show_bold(show_printf("%s/data.seq", show_path(folder))));
    printf("  Users       %12s\n", show_count(r->n_users));
    printf("  Catalogue   %12s   in %s topics\n", show_count(r->n_items), show_count(r->n_topics));
    printf("  Events      %12s   longest history %s\n", show_count(r->n_events),
           show_count(r->max_len));
    printf("  Time        %10.2f s\n\n", seconds);
    printf("%s\n\n", show_bold("Test event of leave-one-out, all unseen items ranked"));
    printf("                     HR@10   NDCG@10\n");
    printf("  Best reachable     %5.3f     %5.3f\n", r->best_hr10, r->best_ndcg10);
    printf("  Popularity         %5.3f\n\n", r->popularity_hr10);
    printf("Next: hstu info %s\n", show_word(folder));
}

status cmd_synth(int argc, char **argv) {
    synth_config config = synth_config_default();
    const char *folder = NULL;
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--out", &folder, "DIR",
                 "Folder to write data.seq to; created if it does not exist."),
        OPT_INT("--users", &config.n_users, "N", 1, (int64_t)1 << 31,
                "Number of users (default 5000)."),
        OPT_INT("--items", &config.n_items, "N", 20, (int64_t)1 << 31,
                "Number of items (default 2000)."),
        OPT_DOUBLE("--mean-len", &config.mean_len, "L",
                   "Mean number of events per user, at most a quarter of the items (default 60)."),
        OPT_INT("--seed", &config.seed, "S", 0, INT64_MAX,
                "Seed of the synthetic world (default 1)."),
        OPT_FLAG("--json", &is_json, "Print one JSON object instead of text."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu synth --out DIR [options]",
        .summary = "Generate a synthetic data set. Users like a few topics, their tastes drift, "
                   "they come in sessions and tend to continue series, so a sequence model clearly "
                   "beats popularity. The best reachable result is known and printed.",
        .options = options,
        .notes = "The same options give the same file, whatever the number of threads."};
    ARGS_PARSE(&spec, NULL, NULL);
    if (folder == NULL) return fail(ERR_USAGE, "--out DIR is missing; usage: %s", spec.usage);
    synth_report report;
    pool *p = NULL;
    uint64_t start = clock_ns();
    TRY(pool_create_default(&p));
    status st = synth_write(&config, folder, p, &report);
    pool_destroy(p);
    TRY(st);
    double seconds = (double)(clock_ns() - start) / 1e9;
    if (is_json) return print_json(folder, &report, seconds);
    print_text(folder, &report, seconds);
    return OK;
}
