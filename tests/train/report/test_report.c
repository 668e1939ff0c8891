#include "train/report/report.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/hash.h"
#include "oom.h"
#include "run_test.h"
#include "train/report/run_log.h"

static char *page_of(const char *run) {
    char path[1024], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/report.html", run);
    CHECK_OK(file_read_all(path, 1 << 20, &text, &n));
    return text;
}

static const char three_epochs[] =
    "{\"event\":\"start\",\"step\":0,\"cpu\":\"<b>&\\\"x\\\"\",\"users\":40}\n"
    "{\"event\":\"epoch\",\"epoch\":0,\"step\":5,\"loss\":5.5,\"seconds\":1,\"tokens_per_s\":1500,"
    "\"hr@10\":0.125,\"ndcg@10\":0.0625}\n"
    "{\"event\":\"epoch\",\"epoch\":1,\"step\":10,\"loss\":4.25,\"seconds\":1,\"tokens_per_s\":"
    "1600,"
    "\"hr@10\":0.25,\"ndcg@10\":0.125,\"mrr\":null}\n"
    "{\"event\":\"epoch\",\"epoch\":2,\"step\":15,\"loss\":null,\"seconds\":2,\"tokens_per_s\":"
    "1700,"
    "\"auc\":0.75}\n";

TEST(report_is_one_whole_page) {
    const char *run = test_folder();
    write_text("log.jsonl", three_epochs);
    write_text("config.json", "{\"source\": \"<script>\"}");
    CHECK_OK(report_write(run));
    char *page = page_of(run);
    CHECK(strncmp(page, "<!doctype html>", 15) == 0);
    CHECK_STR(page + strlen(page) - 15, "</body></html>\n");
    CHECK_EQ(count_parts(page, "<svg"), 3);
    CHECK_EQ(count_parts(page, "</svg>"), 3);
    CHECK_EQ(count_parts(page, "<table"), count_parts(page, "</table>"));
    /* Nothing is loaded, nothing runs, and text from users stays text. */
    CHECK(strstr(page, "http") == NULL && strstr(page, "<script") == NULL);
    CHECK(strstr(page, "src=") == NULL && strstr(page, "<b>&") == NULL);
    CHECK_CONTAINS(page, "&lt;b&gt;&amp;&quot;x&quot;");
    CHECK_CONTAINS(page, "&lt;script&gt;");
    CHECK_CONTAINS(page, "prefers-color-scheme:dark");
    /* The last values, and their mean; a missing one stays empty. */
    CHECK_CONTAINS(page, "<tr><td>last</td><td>4.2500</td><td>0.2500</td><td>0.1250</td>");
    CHECK_CONTAINS(page, "<tr><td>mean of the last 2</td><td>4.8750</td><td>0.1875</td>");
    CHECK_CONTAINS(page, "<tr><td>3</td><td></td><td></td><td></td><td>0.7500</td><td>2.0</td>");
    CHECK(strstr(page, "nan") == NULL && strstr(page, "inf") == NULL);
    CHECK_CONTAINS(page, "under way");
    mem_free(page);
}

static const char with_all[] =
    "{\"event\":\"start\",\"step\":0,\"protocol\":{\"ties\":\"as <they> come\"}}\n"
    "{\"event\":\"baselines\",\"step\":0,\"part\":\"validation\",\"popularity\":{\"ndcg@10\":0."
    "0625},"
    "\"item-knn\":{\"ndcg@10\":0.125}}\n"
    "{\"event\":\"epoch\",\"epoch\":0,\"step\":5,\"loss\":5.5,\"lr\":0.5,\"part\":\"validation\","
    "\"ndcg@10\":0.25,\"is_best\":true}\n"
    "{\"event\":\"epoch\",\"epoch\":1,\"step\":10,\"loss\":5,\"lr\":0.25,\"part\":\"validation\","
    "\"ndcg@10\":0.125}\n"
    "{\"event\":\"samples\",\"step\":10,\"users\":[{\"user\":\"u<1>\",\"history\":[\"old & new\"],"
    "\"target\":\"It\",\"rank\":2,\"items\":[{\"title\":\"No\"},{\"title\":\"It\"}]}]}\n"
    "{\"event\":\"done\",\"step\":10,\"part\":\"test\",\"ndcg@10\":0.375,\"stopped_early\":true}\n";

TEST(report_has_baselines_best_rate_and_samples) {
    write_text("log.jsonl", with_all);
    CHECK_OK(report_write(test_folder()));
    char *page = page_of(test_folder());
    CHECK_EQ(count_parts(page, "<svg"), 4); /* loss, metrics, one with baselines, learning rate */
    CHECK_EQ(count_parts(page, "curve dash"), 2);
    CHECK_CONTAINS(page, "ndcg@10 on the validation part, and baselines");
    CHECK_CONTAINS(page, "Metrics on the validation part");
    CHECK_CONTAINS(page, "<b>1</b><span>best epoch</span>");
    CHECK_CONTAINS(page, "<b>0.3750</b><span>ndcg@10, test</span>");
    CHECK_CONTAINS(page, "<tr><td>1 (best)</td>");
    CHECK_CONTAINS(page, "<line class=mark");
    CHECK_CONTAINS(page, "<title>learning rate 0.25 (epoch 2)</title>");
    CHECK_CONTAINS(page, "<h3>example 1</h3>"); /* by number: a page may be passed on */
    CHECK(strstr(page, "u&lt;1&gt;") == NULL && strstr(page, "u<1>") == NULL);
    CHECK_CONTAINS(page, "<li>old &amp; new</li>");
    CHECK_CONTAINS(page, "<li>No</li><li class=hit>It &#10003;</li>");
    CHECK_CONTAINS(page, "(position 2)");
    CHECK_CONTAINS(page, "as &lt;they&gt; come");
    CHECK_CONTAINS(page, "Result on the test part, with the best weights");
    CHECK_CONTAINS(page, "finished early");
    CHECK(strstr(page, "nan") == NULL);
    mem_free(page);
}

/* Figures with their intervals, and a plot of each task's bins beside the line of a calibrated
 * model; what is no bin is left out. */
TEST(report_has_intervals_and_calibration) {
    write_text("log.jsonl",
               "{\"event\":\"epoch\",\"epoch\":0,\"step\":5,\"loss\":5.5}\n"
               "{\"event\":\"done\",\"step\":10,\"part\":\"test\",\"auc\":0.75,\"ece\":0.1,"
               "\"intervals\":{\"auc\":[0.7,0.8],\"ece\":[1]},"
               "\"calibration\":{\"cl<ick\":[[0.125,0.25,7],[0.5,0.375,7],[1],\"x\",[\"y\",1,2]],"
               "\"like\":[],\"other\":5}}\n");
    CHECK_OK(report_write(test_folder()));
    char *page = page_of(test_folder());
    CHECK_CONTAINS(page, "<td>0.75 <span class=dim>[0.7000, 0.8000]</span></td>");
    CHECK_CONTAINS(page, "<td>0.1</td>");
    CHECK_CONTAINS(page, "Calibration on the test part");
    CHECK_CONTAINS(page, "cl&lt;ick: share of positives by predicted probability");
    CHECK_EQ(count_parts(page, "<circle"), 3); /* and the loss */
    CHECK_EQ(count_parts(page, "curve dash"), 1);
    CHECK_CONTAINS(page, "<title>cl&lt;ick 0.25 (predicted probability 0.125)</title>");
    CHECK_CONTAINS(page, "text-anchor=middle>0.2</text>"); /* x has fractions */
    CHECK(strstr(page, "nan") == NULL);
    mem_free(page);
}

/* NVIDIA's configs evaluate every so many steps: then the curves are over steps. */
TEST(report_over_steps) {
    write_text("log.jsonl",
               "{\"event\":\"eval\",\"epoch\":0,\"step\":100,\"loss\":2,\"auc\":0.5}\n"
               "{\"event\":\"epoch\",\"epoch\":0,\"step\":150,\"loss\":1,\"auc\":0.625}\n");
    CHECK_OK(report_write(test_folder()));
    char *page = page_of(test_folder());
    CHECK_CONTAINS(page, "<title>loss 2 (step 100)</title>");
    CHECK_CONTAINS(page, "<tr><td>150</td><td>1.0000</td><td>0.6250</td>");
    CHECK(strstr(page, "nan") == NULL);
    mem_free(page);
}

TEST(report_of_an_empty_log) {
    write_text("log.jsonl", "");
    CHECK_OK(report_write(test_folder()));
    write_text("log.jsonl", "{\"event\":\"done\",\"step\":1}\n[1]\nnot json\n{\"event\":7}\n");
    CHECK_OK(report_write(test_folder()));
    char *page = page_of(test_folder());
    CHECK_CONTAINS(page, "finished");
    CHECK_EQ(count_parts(page, "<svg"), 0);
    mem_free(page);
    CHECK_FAILS(report_write(run_path("none")), ERR_IO, "log.jsonl");
}

static status write_report(void *ctx) {
    return report_write(ctx);
}

TEST(report_out_of_memory) {
    write_text("log.jsonl", three_epochs);
    write_text("config.json", "{}");
    CHECK(oom_at_each_allocation(write_report, (void *)test_folder()) > 10);
    write_text("log.jsonl", with_all);
    CHECK(oom_at_each_allocation(write_report, (void *)test_folder()) > 10);
}

TEST(report_log_goes_back_to_a_step) {
    run_log l;
    char *text;
    size_t n;
    write_text("log.jsonl", three_epochs);
    CHECK_OK(run_log_open(&l, test_folder()));
    CHECK_OK(run_log_append(&l, "{\"event\":\"done\",\"step\":10}"));
    CHECK_OK(run_log_append(&l, "{\"event\":\"cut o"));
    run_log_close(&l);
    run_log_close(&l);
    CHECK_OK(run_log_rewind(test_folder(), 10));
    CHECK_OK(file_read_all(run_path("log.jsonl"), 1 << 20, &text, &n));
    CHECK_EQ(count_parts(text, "\n"), 3);
    CHECK(strstr(text, "\"step\":15") == NULL && strstr(text, "done") == NULL);
    CHECK_CONTAINS(text, "\"step\":10");
    mem_free(text);
    CHECK_OK(run_log_rewind(run_path("none"), 10)); /* no log is no harm */
}

TEST(report_chart_of_one_point_and_of_many) {
    double x[1000], y[1000], none[1000];
    buf out = {0};
    for (int i = 0; i < 1000; i++)
        x[i] = i + 1, y[i] = 1.0 / (i + 1), none[i] = NAN;
    curve curves[] = {{"a", x, y, 1, false}, {"b", x, none, 1, false}};
    chart c = {.title = "t", .x_label = "epoch", .curves = curves, .n_curves = 2};
    CHECK_OK(chart_write(&c, &out));
    CHECK_EQ(count_parts(buf_str(&out), "<circle"), 1);
    CHECK(strstr(buf_str(&out), "nan") == NULL);
    buf_clear(&out);
    curves[0].n = curves[1].n = 1000;
    CHECK_OK(chart_write(&c, &out));
    CHECK(count_parts(buf_str(&out), "<circle") <= 200);
    CHECK_CONTAINS(buf_str(&out), "(epoch 1000)");
    buf_clear(&out);
    c.curves = curves + 1, c.n_curves = 1;
    CHECK_OK(chart_write(&c, &out));
    CHECK_EQ(out.n_bytes, 0);
    buf_fini(&out);
}

/* Labels of ticks; and nothing is drawn beside the axes, ticks after the last epoch neither. */
TEST(report_chart_has_ticks_between_its_ends) {
    double x[60], y[60];
    buf out = {0};
    for (int i = 0; i < 60; i++)
        x[i] = i + 1, y[i] = i * 0.025;
    for (size_t n = 2; n <= 60; n++) {
        curve curves[] = {{"a", x, y, n, false}};
        chart c = {.title = "t", .x_label = "epoch", .curves = curves, .n_curves = 1};
        buf_clear(&out);
        CHECK_OK(chart_write(&c, &out));
        for (const char *at = strstr(buf_str(&out), " x="); at != NULL; at = strstr(at + 1, " x="))
            CHECK(strtod(at + 3, NULL) >= 50 && strtod(at + 3, NULL) <= 504);
    }
    CHECK_CONTAINS(buf_str(&out), ">0.4</text>");
    for (int i = 0; i < 60; i++)
        y[i] *= 1e4;
    curve curves[] = {{"a", x, y, 60, false}};
    chart c = {.title = "t", .x_label = "epoch", .curves = curves, .n_curves = 1};
    CHECK_OK(chart_write(&c, &out));
    CHECK_CONTAINS(buf_str(&out), ">2.00 k</text>");
    buf_fini(&out);
}

/* Numbers that a log may hold but no training wrote: the drawing ends, and every place is a number.
 */
TEST(report_chart_of_any_numbers) {
    static const double hard[][2] = {{1e17, 100000000000000016},
                                     {1e308, -1e308},
                                     {5e-324, 0},
                                     {0, -0.0},
                                     {1e300, 1e300},
                                     {9007199254740994, 9007199254740992},
                                     {-1e-310, 1e-310},
                                     {INFINITY, NAN}};
    enum { N_HARD = sizeof hard / sizeof *hard, N_RANDOM = 600 };
    for (uint64_t i = 0; i < N_HARD * N_HARD + N_RANDOM; i++) {
        double x[3], y[3];
        curve curves[] = {{"a", x, y, 3, false}};
        chart c = {.title = "t",
                   .x_label = "epoch",
                   .curves = curves,
                   .n_curves = 1,
                   .mark_name = "best",
                   .mark = 1};
        buf out = {0};
        for (uint64_t k = 0; k < 3; k++) {
            uint64_t bits[2] = {hash64(&k, sizeof k, 2 * i), hash64(&k, sizeof k, 2 * i + 1)};
            memcpy(&x[k], &bits[0], sizeof x[k]);
            memcpy(&y[k], &bits[1], sizeof y[k]);
            if (i % 3 == 0) x[k] = (double)k, y[k] = 1e17 + (double)(bits[1] % 64);
            if (i < N_HARD * N_HARD) x[k] = hard[i / N_HARD][k % 2], y[k] = hard[i % N_HARD][k % 2];
        }
        CHECK_OK(chart_write(&c, &out));
        if (strstr(buf_str(&out), "nan") != NULL || strstr(buf_str(&out), "inf") != NULL ||
            out.n_bytes > 100000)
            FAIL_TEST("x %g %g %g y %g %g %g: %s", x[0], x[1], x[2], y[0], y[1], y[2],
                      buf_str(&out));
        buf_fini(&out);
    }
}

/* Whether the kernel lists this process's lock of a folder: some file systems of containers have
 * other numbers for the kernel than for us. */
static bool is_listed_lock(const char *folder) {
    struct stat about;
    char *text, want[96];
    size_t n;
    CHECK(stat(folder, &about) == 0);
    if (file_read_all("/proc/locks", 1 << 20, &text, &n) != OK) return false;
    snprintf(want, sizeof want, "WRITE %ld %02x:%02x:%llu ", (long)getpid(), major(about.st_dev),
             minor(about.st_dev), (unsigned long long)about.st_ino);
    bool is_listed = strstr(text, want) != NULL;
    mem_free(text);
    return is_listed;
}

/* The second is refused, and told who the first is; a lock ends with its holder. */
TEST(report_run_is_locked_by_one) {
    int first, second, other; /* whose lock the kernel lists after ours */
    char want[64];
    snprintf(want, sizeof want, "another process (number %ld) trains this run", (long)getpid());
    CHECK_OK(folder_create(run_path("other"), NULL));
    CHECK_OK(run_lock(test_folder(), &first));
    CHECK_OK(run_lock(run_path("other"), &other));
    CHECK_FAILS(run_lock(test_folder(), &second), ERR_USAGE, "trains this run");
    if (is_listed_lock(test_folder())) CHECK_CONTAINS(status_reason(), want);
    CHECK_EQ(second, -1);
    run_unlock(first);
    run_unlock(other);
    CHECK_OK(run_lock(test_folder(), &second));
    run_unlock(second);
    CHECK_FAILS(run_lock(run_path("none"), &first), ERR_IO, "cannot be opened");
}

/* A pipe that nobody writes to or reads would keep the run waiting for ever. */
TEST(report_log_that_is_a_pipe_is_refused) {
    run_log l;
    CHECK_EQ(test_command(NULL, "mkfifo %s", run_path("log.jsonl")), 0);
    CHECK_FAILS(run_log_open(&l, test_folder()), ERR_IO, "log.jsonl: cannot be written");
    CHECK_FAILS(run_log_read(test_folder(), NULL, NULL), ERR_IO, "not a plain file");
    CHECK_EQ(test_command(NULL, "ln -sf /dev/null %s", run_path("log.jsonl")), 0);
    CHECK_FAILS(run_log_open(&l, test_folder()), ERR_IO, "not a plain file");
    CHECK(l.fd < 0);
}
