/* Ranks of mpirun, where an MPI is installed; they have the bits of one process. */
#include "dist/mpi.h"

#include <unistd.h>

#include "train_test.h"

/* mpirun as it is called here: more ranks than cores, also as root. */
static const char mpirun[] = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                             "--oversubscribe --bind-to none";

static bool has_mpi(void) {
    char why[512], *text;
    if (mpi_library(why, sizeof why) == NULL) return false;
    bool has = test_command(&text, "%s -n 2 true", mpirun) == 0;
    free(text);
    return has;
}

static void write_config(const char *path) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
}

/* MPI libraries leak at their end; our own leaks are looked for where ranks are forked. */
TEST(mpi_same_bits_as_one_process) {
    char *text, gin[512];
    if (!has_mpi()) exit(TEST_SKIPPED);
    snprintf(gin, sizeof gin, "%s/c.gin", test_folder());
    write_config(gin);
    for (int n = 1; n <= 2; n++) {
        int code = test_command(&text,
                                "ASAN_OPTIONS=detect_leaks=0 HSTU_THREADS=1 %s -n %d '%s' train "
                                "--gin-config-file '%s' --data "
                                "'%s' --out '%s/run%d' --max-iters 5 --device cpu --batch-per step",
                                mpirun, n, test_program(), gin, synth_folder(), test_folder(), n);
        if (code != 0) fprintf(stderr, "%s\n", text);
        CHECK_EQ(code, 0);
        free(text);
    }
    const char *a = run_path("run1"), *b = run_path("run2");
    CHECK(same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors"));
}

/* Started by mpirun and told to start ranks itself, or by torchrun: refused, not trained twice. */
TEST(mpi_and_other_launchers_exclude_each_other) {
    char *text;
    const char *train = "train --gin-config-file configs/demo.gin --data x --out y --device cpu";
    CHECK_EQ(test_command(&text, "OMPI_COMM_WORLD_SIZE=2 '%s' %s --ranks 2", test_program(), train),
             2);
    CHECK(strstr(text, "mpirun has started some already") != NULL);
    free(text);
    CHECK_EQ(test_command(&text, "WORLD_SIZE=2 RANK=0 MASTER_ADDR=h '%s' %s --ranks 2",
                          test_program(), train),
             2);
    CHECK(strstr(text, "torchrun (WORLD_SIZE, RANK) has started some already") != NULL);
    free(text);
}

/* A rank that is stopped is missed by the others, not by mpirun.  It is stopped once the log has an
 * epoch, so all ranks are connected by then, and a heartbeat has told its step. */
TEST(mpi_misses_a_stopped_rank) {
    char *text, gin[512];
    if (!has_mpi()) exit(TEST_SKIPPED);
    snprintf(gin, sizeof gin, "%s/c.gin", test_folder());
    write_config(gin);
    int code = test_command(
        &text,
        "cat >'%s/rank.sh' <<'END'\n"
        "if [ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 1 ]; then\n"
        "  (for i in $(seq 1200); do ! grep -qs event...epoch '%s/run/log.jsonl' || break; sleep "
        "0.1; done\n"
        "   sleep 2; kill -STOP $$) &\n"
        "fi\n"
        "exec '%s' train --gin-config-file '%s' --data '%s' --out '%s/run' --epochs 100000 "
        "--device cpu\n"
        "END\n"
        "HSTU_THREADS=1 timeout -s KILL 180 env %s -n 2 sh '%s/rank.sh'",
        test_folder(), test_folder(), test_program(), gin, synth_folder(), test_folder(), mpirun,
        test_folder());
    if (code == 0 || strstr(text, "does not answer") == NULL) fprintf(stderr, "%s\n", text);
    CHECK(code != 0 && code != 137);
    CHECK_CONTAINS(text, "rank 1 on ");
    CHECK_CONTAINS(text, "was lost at step ");
    CHECK_CONTAINS(text, "it does not answer");
    free(text);
}
