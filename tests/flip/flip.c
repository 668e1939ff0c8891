/* flip: changes one bit of a file and reads it again, for every byte of every format we write.
 *
 *   build/release/tests/flip [--all] [--stride N] [FORMAT ...]
 *
 * All eight bits of the first 1,024 bytes and of text files, one bit of every other byte (--all:
 * all bits of all bytes; --stride N: of every N-th byte only).  A flip must be refused with a
 * reason, or change nothing of what is read; a text log may read otherwise.  A crash, a hang and
 * silently other numbers are failures, and are listed with file, byte and bit.
 *
 * The files are made by the program of this build in a folder under /dev/shm or /tmp. */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/set/seq_file.h"
#include "embed/snapshot.h"
#include "embed/store.h"
#include "model/trained.h"
#include "train/report/report.h"
#include "train/report/run_log.h"

enum { HEADER_BYTES = 1024, HANG_SECONDS = 30, MAX_FILES = 64, MAX_SHOWN = 10 };

static char folder[128], program[4096];
static seq_file *good_data;
static backend *be;

/* Reads the format whose flipped file has the full name `path`; on success *out says what was read:
 * equal numbers, equal *out. */
typedef status (*reader)(const char *path, uint64_t *out);

static uint64_t hash_more(uint64_t hash, const void *bytes, size_t n) {
    return n == 0 ? hash : hash64(bytes, n, hash);
}

static status read_data(const char *path, uint64_t *out) {
    seq_file *s;
    buf text = {0};
    TRY(seq_file_open(&s, path, NULL));
    uint64_t h = hash_more(s->n_items, s->offsets, (s->n_users + 1) * sizeof *s->offsets);
    h = hash_more(h, s->item, s->n_events * sizeof *s->item);
    h = hash_more(h, s->action, s->n_events * sizeof *s->action);
    h = hash_more(h, s->time, s->n_events * sizeof *s->time);
    status st = OK;
    for (uint64_t i = 1; i <= s->n_items && st == OK; i++) {
        st = seq_item_title(s, (uint32_t)i, &text);
        h = hash_more(h, buf_str(&text), text.n_bytes);
    }
    buf_fini(&text);
    seq_file_close(s);
    *out = h;
    return st;
}

static status add_rows(void *ctx, const embed_rows *rows) {
    uint64_t *sum = ctx;
    size_t floats = (size_t)rows->n_floats;
    for (int64_t i = 0; i < rows->n; i++) { /* a sum: rows come in any order */
        uint64_t h = hash_more(rows->keys[i], &rows->scores[i], sizeof rows->scores[i]);
        *sum += hash_more(h, rows->rows + (size_t)i * floats, floats * sizeof(float));
    }
    return OK;
}

/* The folder of a snapshot around one of its files: FOLDER/rank-0-of-1/NAME. */
static status read_snapshot(const char *path, uint64_t *out) {
    char name[256];
    snapshot_info info;
    snprintf(name, sizeof name, "%s", path);
    *strrchr(name, '/') = '\0';
    *strrchr(name, '/') = '\0';
    TRY(embed_snapshot_info(name, &info));
    *out = hash_more((uint64_t)info.step, &info.n_rows, sizeof info.n_rows);
    return embed_snapshot_each(name, add_rows, out);
}

/* The run, or the checkpoint, around a file: everything a command that uses the model reads. */
static status read_run(const char *run, uint64_t *out) {
    trained t;
    status st = trained_open(&t, run, good_data, be, 0);
    uint64_t h = 0;
    for (int i = 0; st == OK && i < t.session.n_params; i++)
        h = hash_more(h, t.session.params[i].value, (size_t)t.session.params[i].n * sizeof(float));
    if (st == OK) h = hash_more(h, &t.origin.step, sizeof t.origin.step);
    if (st == OK) h = hash_more(h, &t.origin.data, sizeof t.origin.data);
    dynamic_tables *tables = st == OK ? model_tables(t.session.model) : NULL;
    for (int i = 0; tables != NULL && i < tables->n && st == OK; i++) {
        uint64_t sum = 0;
        st = embed_export(tables->item[i].table, 0, add_rows, &sum);
        h = hash_more(h, &sum, sizeof sum);
    }
    trained_close(&t);
    *out = h;
    return st;
}

static char run_of_file[256];
static status read_checkpoint(const char *path, uint64_t *out) {
    (void)path;
    return read_run(run_of_file, out);
}

/* As a run without a checkpoint is resumed. */
static status read_config(const char *path, uint64_t *out) {
    char run[256];
    config *c;
    buf text = {0};
    snprintf(run, sizeof run, "%s", path);
    *strrchr(run, '/') = '\0';
    TRY(checkpoint_run_config(&c, run));
    status st = config_write_json(c, &text, 0);
    *out = hash_more(1, buf_str(&text), text.n_bytes);
    buf_fini(&text);
    config_destroy(c);
    return st;
}

static status count_line(void *ctx, const json_value *line) {
    (void)line;
    ++*(uint64_t *)ctx;
    return OK;
}

static status read_log(const char *path, uint64_t *out) {
    char run[256];
    *out = 0;
    snprintf(run, sizeof run, "%s", path);
    *strrchr(run, '/') = '\0';
    TRY(run_log_read(run, count_line, out));
    return report_write(run);
}

/* One format: which files, how they are read. */
typedef struct format {
    const char *name, *files; /* files: for find, from the folder */
    reader read;
    const char *run; /* of a checkpoint */
    bool is_text;    /* all bits of all bytes */
    bool may_differ; /* a log for people: a changed letter is a changed letter */
} format;

static const format formats[] = {
    {"data.seq", "data/data.seq", read_data, NULL, false, false},
    {"checkpoint", "static/last/*", read_checkpoint, "static", false, false},
    {"tables", "dynamic/last/*", read_checkpoint, "dynamic", false, false},
    {"snapshot", "dynamic/snapshots/step-00000004/table-0-item/*", read_snapshot, NULL, false,
     false},
    {"config.json", "young/config.json", read_config, NULL, true, false},
    {"log.jsonl", "static/log.jsonl", read_log, NULL, true, true},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* What came of the flips of a file; shared with the child that does them. */
typedef struct tally {
    uint64_t at; /* the flip under way: 8 byte + bit */
    uint64_t n_flips, n_refused, n_same, n_other, n_mute;
    uint64_t bad[MAX_SHOWN];
} tally;

static void put_byte(int fd, uint64_t at, unsigned char value) {
    if (pwrite(fd, &value, 1, (off_t)at) != 1) abort();
}

static void put_back(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
}

static void judge(const format *f, tally *t, status st, uint64_t got, uint64_t want) {
    t->n_flips++;
    if (st != OK && status_reason()[0] == '\0') t->n_mute++;
    if (st != OK)
        t->n_refused++;
    else if (got == want)
        t->n_same++;
    else if (t->n_other++ < MAX_SHOWN && !f->may_differ)
        t->bad[t->n_other - 1] = t->at;
}

/* The child: from the flip t->at on. */
static void flip_all(const format *f, const char *path, tally *t, uint64_t want, bool all,
                     uint64_t stride) {
    char *bytes;
    size_t n;
    if (file_read_all(path, 1 << 24, &bytes, &n) != OK) abort();
    for (; t->at < 8 * (uint64_t)n; t->at++) {
        uint64_t byte = t->at / 8, bit = t->at % 8, got = 0;
        bool has_all = all || f->is_text || byte < HEADER_BYTES;
        if (byte % stride != 0 || (!has_all && bit != byte * 5 % 8)) continue;
        alarm(HANG_SECONDS);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        put_byte(fd, byte, (unsigned char)(bytes[byte] ^ 1 << bit));
        status st = f->read(path, &got);
        judge(f, t, st, got, want);
        put_byte(fd, byte, (unsigned char)bytes[byte]);
        close(fd);
    }
    alarm(0);
    mem_free(bytes);
}

/* All flips of one file; the number of failures. */
static uint64_t flip_file(const format *f, const char *path, bool all, uint64_t stride) {
    tally *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t want = 0, n_bad = 0;
    char *bytes;
    size_t n;
    if (t == MAP_FAILED || file_read_all(path, 1 << 24, &bytes, &n) != OK) abort();
    if (f->read(path, &want) != OK) {
        printf("%s: cannot be read before anything is flipped: %s\n", path, status_reason());
        return 1;
    }
    put_back(path, bytes, n);
    for (bool is_done = false; !is_done;) {
        int code = 0;
        pid_t child = (fflush(stdout), fork());
        if (child == 0) {
            flip_all(f, path, t, want, all, stride);
            _exit(0);
        }
        waitpid(child, &code, 0);
        is_done = WIFEXITED(code) && WEXITSTATUS(code) == 0;
        if (is_done) break;
        printf("  %s: byte %" PRIu64 ", bit %" PRIu64 ": %s\n", path, t->at / 8, t->at % 8,
               WIFSIGNALED(code) && WTERMSIG(code) == SIGALRM ? "it hangs" : "it crashes");
        n_bad++;
        t->n_flips++;
        t->at++;
        put_back(path, bytes, n);
    }
    for (uint64_t i = 0; !f->may_differ && i < t->n_other && i < MAX_SHOWN; i++)
        printf("  %s: byte %" PRIu64 ", bit %" PRIu64 ": silently reads otherwise\n", path,
               t->bad[i] / 8, t->bad[i] % 8);
    printf("%-12s %-42s %8zu %9" PRIu64 " %9" PRIu64 " %7" PRIu64 " %7" PRIu64 " %7" PRIu64 "\n",
           f->name, path + strlen(folder) + 1, n, t->n_flips, t->n_refused, t->n_same, t->n_other,
           n_bad);
    n_bad += t->n_mute + (f->may_differ ? 0 : t->n_other);
    mem_free(bytes);
    munmap(t, sizeof *t);
    return n_bad;
}

static void command(const char *text) {
    char line[8192];
    snprintf(line, sizeof line, "cd %s && PATH=%s:$PATH && { %s\n} >command.log 2>&1 </dev/null",
             folder, program, text);
    if (system(line) == 0) return;
    printf("this failed; see %s/command.log: %s\n", folder, text);
    exit(1);
}

static void make_world(void) {
    static const char dynamic_gin[] =
        "TrainerArgs.train_batch_size = 16\nTrainerArgs.eval_interval = 1000\n"
        "DatasetArgs.dataset_name = 'synth'\nDatasetArgs.max_history_seqlen = 12\n"
        "DatasetArgs.max_num_candidates = 2\nNetworkArgs.dtype_str = 'float32'\n"
        "NetworkArgs.num_layers = 1\nNetworkArgs.num_attention_heads = 1\n"
        "NetworkArgs.hidden_size = 4\nNetworkArgs.num_position_buckets = 32\n"
        "items/DynamicEmbeddingArgs.feature_names = ['item']\n"
        "items/DynamicEmbeddingArgs.table_name = 'item'\n"
        "items/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 256\n"
        "BenchmarkDatasetArgs.embedding_args = [@items/DynamicEmbeddingArgs()]\n"
        "RankingArgs.prediction_head_arch = [4, 5]\nRankingArgs.num_tasks = 1\n";
    static const char static_gin[] =
        "train_fn.dataset_name = 'synth'\ntrain_fn.max_sequence_length = 12\n"
        "train_fn.local_batch_size = 16\ntrain_fn.main_module = 'HSTU'\n"
        "train_fn.item_embedding_dim = 4\nhstu_encoder.num_blocks = 1\n"
        "hstu_encoder.num_heads = 1\nhstu_encoder.dqk = 4\nhstu_encoder.dv = 4\n"
        "train_fn.loss_module = 'SampledSoftmaxLoss'\ntrain_fn.num_negatives = 4\n"
        "train_fn.sampling_strategy = 'local'\n";
    char path[256];
    snprintf(path, sizeof path, "%s/static.gin", folder);
    put_back(path, static_gin, strlen(static_gin));
    snprintf(path, sizeof path, "%s/dynamic.gin", folder);
    put_back(path, dynamic_gin, strlen(dynamic_gin));
    command("hstu synth --out data --users 40 --items 50 --mean-len 8 --seed 1");
    command("hstu train --device cpu --gin-config-file static.gin --data data --out static "
            "--epochs 2 --keep 1");
    command("hstu train --device cpu --gin-config-file dynamic.gin --data data --out dynamic "
            "--max-iters 4 --snapshot-every 2 --keep 1");
    command("cp -r static young && rm -r young/last young/checkpoints");
    snprintf(path, sizeof path, "%s/data/data.seq", folder);
    if (seq_file_open(&good_data, path, NULL) != OK || backend_create_cpu(&be, NULL) != OK) abort();
}

/* The files of a format, by find(1). */
static uint64_t flip_format(const format *f, bool all, uint64_t stride) {
    char line[512], path[512];
    uint64_t n_bad = 0;
    int n = 0;
    snprintf(run_of_file, sizeof run_of_file, "%s/%s", folder, f->run != NULL ? f->run : "");
    snprintf(line, sizeof line, "find -L %s/%s -type f | sort", folder, f->files);
    FILE *list = popen(line, "r");
    while (list != NULL && fgets(path, sizeof path, list) != NULL) {
        path[strcspn(path, "\n")] = '\0';
        n_bad += flip_file(f, path, all, stride);
        n++;
    }
    if (list == NULL || pclose(list) != 0 || n == 0) {
        printf("%s: there is no such file\n", f->files);
        return 1;
    }
    return n_bad;
}

static bool is_wanted(const char *name, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc == 0;
}

int main(int argc, char **argv) {
    bool all = false;
    uint64_t stride = 1, n_bad = 0;
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "--all") == 0)
            all = true;
        else if (strcmp(argv[at], "--stride") == 0 && at + 1 < argc && atoi(argv[at + 1]) > 0)
            stride = (uint64_t)atoi(argv[++at]);
        else
            return fprintf(stderr, "usage: flip [--all] [--stride N] [FORMAT ...]\n"), 2;
    }
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    char *end = n > 0 ? strstr(program, "/tests/flip") : NULL;
    if (end == NULL) return 1;
    *end = '\0';
    snprintf(folder, sizeof folder, "%s/hstu-flip-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(folder) == NULL) return 1;
    log_set_level(LOG_QUIET);
    make_world();
    printf("%-12s %-42s %8s %9s %9s %7s %7s %7s\n", "format", "file", "bytes", "flips", "refused",
           "same", "other", "crashes");
    for (int i = 0; i < N_FORMATS; i++)
        if (is_wanted(formats[i].name, argc - at, argv + at))
            n_bad += flip_format(&formats[i], all, stride);
    seq_file_close(good_data);
    backend_destroy(be);
    if (n_bad == 0) command("cd / && rm -rf \"$OLDPWD\"");
    printf(n_bad == 0 ? "every flip was refused or changed nothing\n"
                      : "%" PRIu64 " failures; the files are kept in %s\n",
           n_bad, folder);
    return n_bad != 0;
}
