/* hstu bench search: the items it checks a search against are right, or the search is. */
#include "cli/bench/bench.h"
#include "test.h"

TEST(search_finds_what_a_loop_finds) {
    static const search_shape shapes[] = {
        {.n_items = 70000, .n_queries = 3, .dim = 5, .k = 20, .seed = 3}, /* many are equal */
        {.n_items = 7, .n_queries = 2, .dim = 64, .k = 9, .seed = 4},
        {.n_items = 300, .n_queries = 70, .dim = 33, .k = 1, .seed = 5},
        {.n_items = 70000, .n_queries = 3, .dim = 5, .k = 20, .seed = 3, .share = .01},
        {.n_items = 3000, .n_queries = 70, .dim = 64, .k = 9, .seed = 4, .share = .1}};
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 5; i++) {
        search_row row;
        CHECK_OK(search_measure(be, &shapes[i], &row));
        CHECK(row.seconds > 0 && row.bytes == 4.0 * (double)(shapes[i].n_items * shapes[i].dim));
        double allowed = shapes[i].share * (double)shapes[i].n_items;
        CHECK(fabs((double)row.n_allowed - allowed) <= 6 * sqrt(allowed));
        CHECK(isnan(row.gather_s) == (shapes[i].share == 0));
    }
    backend_destroy(be);
}

/* With all items as candidates nothing is missed; with few of them something is. */
TEST(search_by_mixture_has_its_recall) {
    search_shape shape = {.n_items = 300, .n_queries = 3, .dim = 16, .k = 20, .seed = 5};
    search_mol_row row;
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(search_mol_measure(be, &shape, &(mol_stages){300, 0}, &row));
    CHECK(row.recall == 1 && row.exact_s > 0 && row.stages_s > 0 && row.index_s > 0);
    CHECK(row.bytes >= 4.0 * 300 * 64);
    CHECK_OK(search_mol_measure(be, &shape, &(mol_stages){20, 0}, &row));
    CHECK(row.recall > .5 && row.recall < 1);
    backend_destroy(be);
}

static const ops *right;
static int wrong_place;

/* A search with one mistake: another item, or a score that is off by the last bit. */
static status rank_wrongly(backend *be, const rank_args *a) {
    TRY(right->rank(be, a));
    if (wrong_place >= 0)
        a->best[wrong_place] ^= 1;
    else
        a->best_score[2] = nextafterf(a->best_score[2], 1e9f);
    return OK;
}

TEST(search_sees_wrong_answers) {
    search_shape shape = {.n_items = 300, .n_queries = 2, .dim = 33, .k = 5, .seed = 5};
    search_row row;
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    ops wrong = *be->ops;
    right = be->ops;
    wrong.rank = rank_wrongly;
    be->ops = &wrong;
    for (wrong_place = -1; wrong_place < 5; wrong_place++) {
        char place[32];
        snprintf(place, sizeof place, "place %d of the search",
                 wrong_place < 0 ? 3 : wrong_place + 1);
        CHECK_FAILS(search_measure(be, &shape, &row), ERR_NUMERIC, place);
    }
    be->ops = right;
    backend_destroy(be);
}
