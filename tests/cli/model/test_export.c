/* hstu export of items and users, from outside. */
#include "format/safetensors.h"
#include "run_test.h"

static void says(int want, const char *args, const char *part) {
    char command[1024], *text;
    snprintf(command, sizeof command, "./hstu export --device cpu %s", args);
    text = shell(want, command);
    CHECK_CONTAINS(text, part);
    free(text);
}

/* Users times items is what recommending ranks by. */
TEST(export_of_users_and_items_gives_the_scores) {
    const st_tensor *users, *items;
    st_file *u, *i;
    arena a;
    says(0, "run --data data --what users --out u.safetensors", "states of 40 users, 8 numbers");
    says(0, "run --what items --out i.safetensors", "embeddings of 60 items, 8 numbers");
    char *text = shell(0, "./hstu recommend run --data data --device cpu --user 3 --keep-seen "
                          "-k 60 --json");
    CHECK_OK(st_open(&u, run_path("u.safetensors")));
    CHECK_OK(st_open(&i, run_path("i.safetensors")));
    CHECK_OK(st_get(u, "embedding", ST_F32, &users));
    CHECK_OK(st_get(i, "embedding", ST_F32, &items));
    arena_init(&a, 4096);
    const json_value *e = json_member(line_of(&a, text, 0), "items")->first;
    for (int n = 0; n < 60; n++, e = e->next) {
        const float *x = (const float *)users->data + 2 * 8;
        const float *y = (const float *)items->data + (json_member(e, "id")->integer - 1) * 8;
        double sum = 0;
        for (int c = 0; c < 8; c++)
            sum += (double)x[c] * (double)y[c];
        CHECK(fabs(sum - json_member(e, "score")->number) < 1e-6);
    }
    arena_fini(&a);
    st_close(u);
    st_close(i);
    free(text);
}

/* A component is the unit vector of a part of W x + b. */
TEST(export_of_components) {
#define PROJ "_ndp_module._item_embeddings_fn._item_emb_proj_module.1."
    const st_tensor *items, *parts, *w, *b;
    st_file *i, *c, *m;
    says(2, "run --what components --out c.safetensors", "only items of a mixture of logits");
    free(shell(0, "./hstu train m.gin --data data --device cpu --out mol --epochs 1 --set "
                  "train_fn.interaction_module_type=MoL --set train_fn.item_l2_norm=False --set "
                  "create_mol_interaction_module.query_dot_product_groups=4 --set "
                  "create_mol_interaction_module.item_dot_product_groups=3 --set "
                  "create_mol_interaction_module.item_hidden_dim=-1 --set "
                  "create_mol_interaction_module.dot_product_dimension=5 --set "
                  "train_fn.num_negatives=4 --set train_fn.sampling_strategy=local"));
    says(0, "mol --what components --out c.safetensors", "embeddings of 60 items, 15 numbers");
    says(0, "mol --what components --format csv --out c.csv", "60 items, 15 numbers");
    says(0, "mol --what items --out i.safetensors", "60 items, 8 numbers");
    CHECK_OK(st_open(&i, run_path("i.safetensors")));
    CHECK_OK(st_open(&c, run_path("c.safetensors")));
    CHECK_OK(st_open(&m, run_path("mol/last/model.safetensors")));
    CHECK_OK(st_get(i, "embedding", ST_F32, &items));
    CHECK_OK(st_get(c, "embedding", ST_F32, &parts));
    CHECK_OK(st_get(m, PROJ "weight", ST_F32, &w));
    CHECK_OK(st_get(m, PROJ "bias", ST_F32, &b));
    CHECK(w->shape[0] == 15 && w->shape[1] == 8 && parts->shape[0] == 60);
    for (int r = 0; r < 60 * 3; r++) {
        const float *x = (const float *)items->data + r / 3 * 8;
        double y[5], size = 0;
        for (int k = 0; k < 5; k++) {
            y[k] = (double)((const float *)b->data)[r % 3 * 5 + k];
            for (int e = 0; e < 8; e++)
                y[k] += (double)((const float *)w->data)[(r % 3 * 5 + k) * 8 + e] * (double)x[e];
            size += y[k] * y[k];
        }
        for (int k = 0; k < 5; k++)
            CHECK(fabs(y[k] / sqrt(size) - (double)((const float *)parts->data)[r * 5 + k]) < 1e-5);
    }
    st_close(i);
    st_close(c);
    st_close(m);
#undef PROJ
}

TEST(export_formats_and_refusals) {
    says(0, "run --data data --what items --format csv --out i.csv", "60 items");
    says(0, "run --data data --what users --format npz --out u.npz", "40 users");
    char *text = shell(0, "wc -l < i.csv; head -c 2 u.npz");
    CHECK_STR(text, "61\nPK");
    free(text);
    says(2, "run --data data --what items --format pickle --out x", "safetensors, npz or csv");
    says(0, "run --what users --out y", "states of 40 users");
    says(2, "run --data data --what moods --out x",
         "items, components, users, weights, tables or events");
    says(2, "run --what weights --format csv --out x", "safetensors, npz or pt");
    says(1, "run --data data --what items --out none/x", "none/x");
    says(1, "run --data data --what items --out /dev/null", "would be replaced");
    text = shell(0, "ls x 2>&1 || true; test -c /dev/null && ls -a | grep -c tmp || true");
    CHECK_CONTAINS(text, "0\n");
    free(text);
    FILE *f = fopen(run_path("n.gin"), "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
    free(shell(0, "./hstu train --device cpu --gin-config-file n.gin --data data --out ranking "
                  "--epochs 1"));
    says(1, "ranking --data data --what users --out x", "no state of a user");
    says(0, "ranking --data data --what items --format csv --out r.csv", "60 items");
}

/* An existing file is replaced, a folder is not, and no file of the checkpoint. */
TEST(export_replaces_files_only) {
    char *text = shell(0, "echo old >x && ./hstu export run --what weights --format npz --out x && "
                          "head -c 2 x && ./hstu export run --what items --format csv --out x "
                          "--checkpoint last --device cpu && head -n 1 x");
    CHECK_CONTAINS(text, "PK");
    CHECK_CONTAINS(text, "\nid,title,e0,");
    free(text);
    static const char *const cases[][2] = {
        {"--out data", "data: already exists; choose another --out"},
        {"--out run/last/model.safetensors", "is in the checkpoint; choose another --out"},
        {"--out x --checkpoint step-77", "has no such checkpoint"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "./hstu export run --what weights --format npz %s 2>&1",
                 cases[i][0]);
        text = shell(2, line);
        CHECK_CONTAINS(text, cases[i][1]);
        free(text);
    }
    free(shell(0, "./hstu eval run --data data --device cpu")); /* the checkpoint is whole */
}
