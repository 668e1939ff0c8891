#include "cli/model/run_facts.h"

#include <dirent.h>

#include "model/checkpoint_load.h"

enum { MAX_DEPTH = 5 };

/* Bytes of the files in a folder; links are not followed. */
static uint64_t bytes_in(const char *folder, int depth) {
    char path[CHECKPOINT_PATH_BYTES];
    struct stat found;
    uint64_t n = 0;
    DIR *dir = depth < MAX_DEPTH ? opendir(folder) : NULL;
    if (dir == NULL) return 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (path_join(path, sizeof path, folder, e->d_name) != OK || lstat(path, &found) != 0)
            continue;
        if (S_ISREG(found.st_mode)) n += (uint64_t)found.st_size;
        if (S_ISDIR(found.st_mode)) n += bytes_in(path, depth + 1);
    }
    closedir(dir);
    return n;
}

static int compare_steps(const void *a, const void *b) {
    const run_checkpoint *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

static void list_checkpoints(run_facts *f) {
    char parent[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES];
    int64_t last = checkpoint_linked_step(f->run, "last");
    int64_t best = checkpoint_linked_step(f->run, "best");
    if (path_join(parent, sizeof parent, f->run, "checkpoints") != OK) return;
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        int64_t step = checkpoint_step_of(e->d_name);
        if (step < 0 || f->n_checkpoints == RUN_CHECKPOINTS ||
            path_join(path, sizeof path, parent, e->d_name) != OK)
            continue;
        f->checkpoint[f->n_checkpoints++] =
            (run_checkpoint){step, bytes_in(path, 1), step == last, step == best};
    }
    closedir(dir);
    qsort(f->checkpoint, (size_t)f->n_checkpoints, sizeof f->checkpoint[0], compare_steps);
}

/* Epochs have their own times; the evaluations inside an epoch have parts of them. */
static double training_seconds(const run_history *h) {
    double sum = 0, of_epoch = NAN;
    for (size_t i = 0; i < h->n; i++) {
        if (i > 0 && h->epoch[i] != h->epoch[i - 1] && isfinite(of_epoch)) sum += of_epoch;
        of_epoch = isfinite(h->seconds[i]) ? h->seconds[i] : 0;
    }
    return isfinite(of_epoch) ? sum + of_epoch : sum;
}

static const char *status_of(const run_history *h) {
    const json_value *early = h->done != NULL ? json_member(h->done, "stopped_early") : NULL;
    if (h->done == NULL) return "not finished";
    return early != NULL && early->type == JSON_BOOL && early->boolean ? "stopped early"
                                                                       : "finished";
}

status run_facts_read(run_facts *f, const char *run) {
    *f = (run_facts){.run = run};
    if (!folder_has(run, "log.jsonl"))
        return fail(ERR_USAGE, "%s: not a run (no log.jsonl); 'hstu train --out RUN' makes one",
                    run);
    TRY(run_history_read(&f->history, run));
    TRY(run_config_read(&f->config, run));
    list_checkpoints(f);
    f->bytes = bytes_in(run, 0);
    f->seconds = training_seconds(&f->history);
    f->status = status_of(&f->history);
    return OK;
}

void run_facts_fini(run_facts *f) {
    run_history_fini(&f->history);
    run_config_fini(&f->config);
}

/* Logs of older versions have metrics at the size of the catalogue and above, and means of
 * evaluations on validation beside figures of the test part. */
static bool is_meaningless(const run_facts *f, const char *name) {
    const json_value *p =
        f->history.start != NULL ? json_member(f->history.start, "protocol") : NULL;
    const char *at = strchr(name, '@');
    if (strstr(name, "_mean10") != NULL && f->history.part[0] != '\0' &&
        strcmp(f->history.part, run_facts_part(f)) != 0)
        return true;
    return at != NULL && atoi(at + 1) >= history_number(p, "catalogue");
}

double run_facts_metric(const run_facts *f, const char *name) {
    if (is_meaningless(f, name)) return NAN;
    double value = history_number(f->history.done, name);
    const double *y = run_history_values(&f->history, name);
    return isfinite(value) || y == NULL ? value : history_last(y, f->history.n);
}

const char *run_facts_part(const run_facts *f) {
    const char *part = history_text(f->history.done, "part");
    return part[0] != '\0' ? part : f->history.part[0] != '\0' ? f->history.part : "test";
}
