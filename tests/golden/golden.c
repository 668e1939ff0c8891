/* golden [--device NAME] [--dtype TYPE] DIR...: checks every .safetensors file of the folders, a
 * line each. */
#include "golden.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../mirror.h"
#include "base/file.h"

static const struct {
    const char *family;
    golden_fn run;
} FAMILIES[] = {
    {"meta_hstu_layer", golden_meta_hstu_layer},
    {"meta_hstu_model", golden_meta_model},
    {"meta_sasrec_model", golden_meta_model},
    {"fuxi_layer", golden_fuxi_layer},
    {"fuxi_model", golden_meta_model},
    {"meta_train_curve", golden_meta_train_curve},
    {"meta_buckets", golden_meta_buckets},
    {"meta_adamw", golden_meta_adamw},
    {"meta_eval", golden_meta_eval},
    {"nv_attn", golden_nv_attn},
    {"nv_layer", golden_nv_layer},
    {"nv_preproc", golden_nv_preproc},
    {"nv_rank_loss", golden_nv_rank_loss},
    {"nv_retr_loss", golden_nv_retr_loss},
    {"metrics_auc", golden_metrics_auc},
    {"mol_model", golden_meta_model},
    {"mol_sim", golden_mol_sim},
    {"mol_loss", golden_mol_loss},
    {"loss_full_ce", golden_loss_full_ce},
    {"loss_logq_inbatch", golden_loss_logq_inbatch},
    {"loss_logq_global", golden_loss_logq_global},
    {"loss_gbce", golden_loss_gbce},
    {"loss_bce", golden_loss_bce},
};

/* Printed with the expected values, not to be reproduced. */
static const char *const REMARKS[] = {"loss_float32_run", "bucket_float64"};

static bool is_remark(const char *name) {
    for (size_t i = 0; i < sizeof REMARKS / sizeof *REMARKS; i++)
        if (strcmp(REMARKS[i], name) == 0) return true;
    return false;
}

static status open_parts(golden *g, const char *folder, const char *path) {
    char grads[4096];
    TRY(st_open(&g->part[0], path));
    const char *name = st_metadata(g->part[0], "grads_file");
    if (name != NULL) {
        TRY(path_join(grads, sizeof grads, folder, name));
        TRY(st_open(&g->part[1], grads));
    }
    for (int i = 0; i < 2; i++)
        if (g->part[i] != NULL)
            TRY(NN_NEW_HOST(&g->memory, &g->is_used[i], (int64_t)g->part[i]->n_tensors));
    return OK;
}

static status check_all_used(const golden *g) {
    for (int i = 0; i < 2 && g->part[i] != NULL; i++)
        for (size_t k = 0; k < g->part[i]->n_tensors; k++) {
            const char *name = g->part[i]->tensors[k].name;
            if (!g->is_used[i][k] && !is_remark(name))
                return fail(ERR_FORMAT, "nothing looked at the tensor %s", name);
        }
    return OK;
}

static status run_family(golden *g) {
    const char *family = st_metadata(g->part[0], "family");
    for (size_t i = 0; family != NULL && i < sizeof FAMILIES / sizeof *FAMILIES; i++)
        if (strcmp(FAMILIES[i].family, family) == 0) {
            TRY(FAMILIES[i].run(g));
            return check_all_used(g);
        }
    return fail(ERR_FORMAT, "the family '%s' is unknown", family != NULL ? family : "");
}

/* The backend under test and, in a precision other than float32, the one whose error is the
 * scale. */
typedef struct backends {
    pool *workers;
    backend *tested, *naive;
} backends;

static status open_backends(backends *b) {
    backend *cpu;
    *b = (backends){0};
    TRY(pool_create(&b->workers, 2));
    TRY(test_backend(&b->tested, b->workers));
    if (test_on.p == PRECISION_F32) return OK;
    TRY(backend_create_cpu(&cpu, b->workers));
    return mirror_create(&b->naive, cpu, true, test_on.p);
}

static void close_backends(backends *b) {
    backend_destroy(b->tested);
    backend_destroy(b->naive);
    pool_destroy(b->workers);
}

/* One file on one backend. */
static status run_pass(golden *g, backend *be, const char *folder, const char *name) {
    char path[4096];
    g->be = be;
    nn_memory_init(&g->memory, be);
    status st = path_join(path, sizeof path, folder, name);
    if (st == OK) st = open_parts(g, folder, path);
    if (st == OK) st = run_family(g);
    st_close(g->part[0]);
    st_close(g->part[1]);
    nn_memory_fini(&g->memory);
    return st;
}

/* One file; whether it passed. */
static bool run_file(const backends *b, const char *folder, const char *name) {
    static golden_naive naive;
    status st = OK;
    naive = (golden_naive){.is_measuring = true};
    golden g = {.naive = b->naive != NULL ? &naive : NULL};
    for (int i = 0; b->naive != NULL && st == OK && i < GOLDEN_DRAWS; i++) {
        golden measuring = {.naive = &naive};
        mirror_shift_grid(b->naive, 1 + (double)i / GOLDEN_DRAWS);
        st = run_pass(&measuring, b->naive, folder, name);
        naive.at = 0;
    }
    naive.is_measuring = false;
    if (st == OK) st = run_pass(&g, b->tested, folder, name);
    bool passed = st == OK && g.worst_error <= g.worst_limit;
    printf("%s %-48s ", passed ? "ok  " : "FAIL", name);
    if (st != OK)
        printf("%s [%s]\n", status_reason(), status_trace());
    else
        printf("%.1e of %.0e  %s\n", g.worst_error, g.worst_limit, g.worst);
    return passed;
}

/* Files, but not the second parts. */
static int is_wanted(const struct dirent *e) {
    const char *end = ".safetensors", *second = ".grads.safetensors";
    size_t n = strlen(e->d_name);
    bool is_second = n > strlen(second) && strcmp(e->d_name + n - strlen(second), second) == 0;
    return n > strlen(end) && strcmp(e->d_name + n - strlen(end), end) == 0 && !is_second;
}

static int run_folder(const backends *b, const char *folder) {
    struct dirent **entry;
    int n = scandir(folder, &entry, is_wanted, alphasort), n_passed = 0;
    if (n < 0) {
        fprintf(stderr, "golden: %s: no such folder\n", folder);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        n_passed += run_file(b, folder, entry[i]->d_name);
        fflush(stdout);
        free(entry[i]);
    }
    free(entry);
    printf("%d passed, %d failed\n", n_passed, n - n_passed);
    return n_passed < n || n == 0;
}

int main(int argc, char **argv) {
    int at = test_device_options(argc, argv, 1), code = 0;
    if (at < 0 || at >= argc) {
        fprintf(stderr, "Usage: golden " TEST_DEVICE_USAGE " DIR...\n");
        return 2;
    }
    backends b;
    status st = open_backends(&b);
    for (; st == OK && at < argc; at++) {
        int folder_code = run_folder(&b, argv[at]);
        if (folder_code > code) code = folder_code;
    }
    if (st != OK) code = 1, fprintf(stderr, "golden: %s\n", status_reason());
    close_backends(&b);
    return code;
}
