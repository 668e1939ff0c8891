/* hstu train --tensorboard and --csv-log: the numbers of the log, resumed and killed runs too. */
#include "train/report/tracker.h"

#include "run_test.h"

#define TRAIN "./hstu train --device cpu --data data --out r --tensorboard tb --csv-log log.csv "

static int n_fields(const char *line) {
    int n = 1;
    for (; *line != '\0' && *line != '\n'; line++)
        n += *line == ',';
    return n;
}

/* The csv has a row an epoch, with the digits of the log, and a resumed run adds to it. */
TEST(tracker_csv_is_the_log) {
    free(shell(0, TRAIN "--gin-config-file m.gin --epochs 1"));
    char *text = shell(0, TRAIN "--resume --epochs 2 > out; cat log.csv; ls tb | wc -l; "
                                "grep '\"event\":\"epoch\"' r/log.jsonl");
    CHECK(strncmp(text, "epoch,step,loss,lr,tokens_per_s,seconds,hr@1,hr@10,", 51) == 0);
    const char *row = strstr(text, "\n1,5,"), *second = strstr(text, "\n2,10,");
    CHECK(row != NULL && second != NULL && second > row);
    CHECK_EQ(n_fields(row + 1), n_fields(text));
    CHECK_EQ(n_fields(second + 1), n_fields(text));
    CHECK_CONTAINS(second, "\n2\n{\"event\":\"epoch\",\"epoch\":0,\"step\":5,"); /* two files */
    char loss[64] = "\"loss\":";
    size_t n = strcspn(row + 5, ",");
    CHECK(n > 4 && n < 40);
    memcpy(loss + 7, row + 5, n);
    CHECK_CONTAINS(text, loss);
    free(text);
    free(shell(1, "./hstu train --device cpu --data data --out q --gin-config-file m.gin --epochs "
                  "1 --tensorboard /dev/null/x"));
    free(shell(1, "./hstu train --device cpu --data data --out p --gin-config-file m.gin --epochs "
                  "1 --csv-log none/x.csv"));
}

/* A resumed run's file says from which step on it counts: after that of the checkpoint. */
TEST(tracker_begins_after_the_step_it_goes_on_from) {
    tracker t;
    char *text;
    CHECK_OK(tracker_open(&t, &(tracker_options){.tensorboard = test_folder()}, "run", 5));
    tracker_close(&t);
    CHECK_EQ(test_command(&text, "cat %s/*tfevents* | od -An -v -tx1 | tr -d '\\n'", test_folder()),
             0);
    CHECK_CONTAINS(text, " 10 06 ");
    free(text);
}

/* TensorBoard reads the files of a run that was resumed, with a torn record at the end of one. */
TEST(tracker_opens_in_tensorboard) {
    const char *python = "build/python/bin/python";
    char *text;
    if (test_command(NULL, "%s -c 'import tensorboard'", python) != 0)
        SKIP_TEST("tensorboard is not installed in build/python");
    free(shell(0, TRAIN "--gin-config-file m.gin --epochs 2"));
    free(shell(0, "for f in tb/*; do printf '\\100\\0\\0\\0\\0\\0\\0\\0torn' >> $f; done"));
    free(shell(0, TRAIN "--resume --epochs 3"));
    int code = test_command(&text, "%s tests/torch/events.py %s/r %s/tb 2>&1", python,
                            test_folder(), test_folder());
    if (code != 0 || strstr(text, "\nok\n") == NULL) FAIL_TEST("%s", text);
    free(text);
}
