#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prep_test.h"

#define HEADER "userId,movieId,rating,timestamp\n"

TEST(usage_errors) {
    put_file("in.csv", "1,2,3\n");
    prep_fails("", 2, "SOURCE");
    prep_fails("ml-2m --input in.csv --out out", 2, "source 'ml-2m' is unknown; did you mean 'ml-");
    prep_fails(
        "netflix --input in.csv --out out", 2,
        "ml-100k, ml-1m, ml-20m, kuairand-pure, kuairand-1k, kuairand-27k, kuairec, amzn-books, "
        "amzn-beauty, amzn-sports, amzn-toys, processed-seqs, csv");
    prep_fails("csv --out out", 2, "--input is missing");
    prep_fails("csv --input in.csv", 2, "--out is missing");
    prep_fails("csv --input in.csv --out out --user-cl 1", 2, "--user-col");
    prep_fails(
        "ml-1m --input in.csv --out out --user-col 1", 2,
        "--user-col is for csv, jsonl, parquet and processed-seqs; ml-1m has its own layout");
    prep_fails("ml-1m --input in.csv --out out --random-logs", 2, "--random-logs is for");
    prep_fails("csv --input in.csv --out out --url http://x", 2, "--url needs --download");
    prep_fails("csv --input in.csv --out out --item-name x", 2, "--item-name needs --emit-csv");
    prep_fails("csv --input nowhere.csv --out out", 1, "nowhere.csv");
}

TEST(help_names_every_source) {
    char *out = prep_ok("--help");
    static const char *const names[] = {
        "ml-100k",    "ml-1m", "ml-20m",     "kuairand-pure",  "kuairand-1k", "kuairand-27k",
        "amzn-books", "csv",   "--emit-csv", "processed-seqs", "--download",  "--string-ids"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        CHECK_CONTAINS(out, names[i]);
}

TEST(summary_says_what_was_done_and_what_next) {
    put_file("in/ratings.csv", HEADER "1,2,3.5,9\n1,2,3.5,9\n1,3,4.0,8\n");
    char *out = prep_ok("ml-20m --input in --out out");
    CHECK_CONTAINS(out, "out/data.seq   ml-20m\n");
    CHECK_CONTAINS(out, "  Users                  1\n");
    CHECK_CONTAINS(out, "  Items                  2   seen in events; 2 in the catalogue\n");
    CHECK_CONTAINS(out, "  Events                 3   longest history 3\n");
    CHECK_CONTAINS(out, "  Duplicates             1   kept; --drop-duplicates drops them\n");
    CHECK_CONTAINS(out, "  Reordered              1   events sorted by time\n");
    CHECK_CONTAINS(out, "Next: hstu info out\n");
    CHECK_CONTAINS(prep_ok("ml-20m --input in --out \"it's data\""),
                   "Next: hstu info 'it'\\''s data'\n");
}

static void check_bad(const char *text, const char *reason) {
    put_file("in/ratings.csv", text);
    prep_fails("ml-20m --input in --out out --emit-csv out.csv", 1, reason);
}

TEST(bad_input_leaves_nothing_behind) {
    check_bad("", "in/ratings.csv: the file is empty");
    check_bad(HEADER, "no events");
    check_bad(HEADER "1,2,3.5,100\n1,2,3.5", "in/ratings.csv:3: the line has 3 fields");
    check_bad(HEADER "1,2,3.5,100\nx,2,3.5,100\n",
              "in/ratings.csv:3: userId: 'x' is not a whole number");
    check_bad(HEADER "1,2,3.5,\n", "in/ratings.csv:2: timestamp is empty");
    check_bad(HEADER "1,2,9.5,100\n",
              "in/ratings.csv:2: rating: '9.5' is not from 0.5 to 5 in steps of 0.5");
    check_bad(HEADER "1,2,3.5,100\n1,99999999999999999999,3.5,100\n",
              "in/ratings.csv:3: movieId: '99999999999999999999' does not fit a 64-bit number");
    check_bad("a,b\n1,2\n", "in/ratings.csv:1: there is no column 'userId'; the header has a, b");
    /* CRLF does not move the line numbers. */
    check_bad("userId,movieId,rating,timestamp\r\n1,2,3.5,1\r\n1,2,3.5,x\r\n",
              "in/ratings.csv:3: timestamp: 'x' is not a whole number");
}

TEST(crlf_byte_order_mark_and_no_last_newline_change_nothing) {
    put_file("a/ratings.csv", HEADER "1,2,3.5,100\n1,3,4.0,90\n");
    put_file("b/ratings.csv", "\xef\xbb\xbfuserId,movieId,rating,timestamp\r\n"
                              "1,2,3.5,100\r\n\r\n1,3,4.0,90");
    prep_ok("ml-20m --input a --out x --emit-csv x.csv");
    prep_ok("ml-20m --input b --out y --emit-csv y.csv");
    CHECK_STR(get_file("x.csv"), get_file("y.csv"));
    CHECK_CONTAINS(get_file("x.csv"), "1,\"[3, 2]\",\"[7, 6]\",\"[90, 100]\"");
}

TEST(an_old_result_stays_when_the_new_one_fails) {
    char *out;
    put_file("in/ratings.csv", HEADER "1,2,3.5,100\n");
    prep_ok("ml-20m --input in --out out");
    CHECK_EQ(run_shell(&out, "cp out/data.seq before"), 0);
    put_file("in/ratings.csv", HEADER "1,2,3.5,later\n");
    CHECK_EQ(run_prep(&out, "ml-20m --input in --out out"), 1);
    CHECK_EQ(run_shell(&out, "cmp out/data.seq before && ls -A out"), 0);
    CHECK_STR(out, "data.seq\n");
    put_file("in/ratings.csv", HEADER "1,2,3.5,101\n");
    prep_ok("ml-20m --input in --out out");
    CHECK_EQ(run_shell(&out, "cmp -s out/data.seq before"), 1);
}

TEST(targets_that_cannot_be_written) {
    put_file("in/ratings.csv", HEADER "1,2,3.5,100\n");
    put_file("file", "");
    prep_fails("ml-20m --input in --out file", 2, "--out file is a file; give a folder");
    prep_fails("ml-20m --input in --out file/sub", 1, "file");
    prep_fails("ml-20m --input in --out out --emit-csv nowhere/x.csv", 1, "nowhere");
    /* Root may write to any folder, so another user tries. */
    const char *as_other =
        geteuid() == 0 ? "setpriv --reuid=65534 --regid=65534 --clear-groups" : "";
    char *out;
    int code = run_shell(&out,
                         "chmod 755 . in && cp %s program && mkdir ro && chmod 555 ro "
                         "&& (%s ./program prep ml-20m --input in --out ro/out 2>&1; "
                         "%s ./program prep ml-20m --input in --out ro)",
                         test_program(), as_other, as_other);
    CHECK_EQ(code, 1);
    CHECK_CONTAINS(out, "--out ro/out: cannot write to ro: Permission denied");
    CHECK_CONTAINS(out, "--out ro: cannot write to ro: Permission denied");
    CHECK_EQ(run_shell(&out, "ls -A ro"), 0);
    CHECK_STR(out, "");
}

TEST(the_help_page_is_wrapped_once) {
    char *out;
    CHECK_EQ(run_shell(&out, "COLUMNS=80 %s prep --help", test_program()), 0);
    CHECK_CONTAINS(out, "\n  kuairand-pure, kuairand-1k, kuairand-27k  KuaiRand, eight signals as "
                        "bits\n");
    CHECK_CONTAINS(out, "\n--input is a folder, the original archive as it is, or a single file, "
                        "compressed\nor not. With --download it is the folder");
    for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (strlen(line) > 80) FAIL_TEST("wider than 80: %s", line);
}

TEST(a_csv_never_replaces_the_input_or_the_data) {
    const char *text = "1,2,3\n";
    char *out;
    put_file("in.csv", text);
    prep_fails("csv --input in.csv --out out --emit-csv ./in.csv", 2,
               "--emit-csv ./in.csv is the input; give another file");
    CHECK_EQ(run_shell(&out, "ln -s in.csv link"), 0);
    prep_fails("csv --input in.csv --out out --emit-csv link", 2, "link is the input");
    CHECK_STR(get_file("in.csv"), text);
    prep_fails("csv --input in.csv --out out --emit-csv out/data.seq", 2,
               "--emit-csv out/data.seq is where the data goes; give another file");
    prep_ok("csv --input in.csv --out out");
    CHECK_EQ(run_prep(&out, "csv --input in.csv --out out --emit-csv out/../out/data.seq"), 2);
    CHECK_EQ(run_shell(&out, "%s info out", test_program()), 0);
}

TEST(a_csv_may_go_into_the_folder_that_the_command_makes) {
    char *out;
    put_file("in.csv", "1,2,3\n");
    prep_ok("csv --input in.csv --out a/b --emit-csv a/b/seqs.csv");
    CHECK_CONTAINS(get_file("a/b/seqs.csv"), "1,\"[2]\"");
    put_file("bad.csv", "1,2,3\n1,2\n");
    CHECK_EQ(run_prep(&out, "csv --input bad.csv --out new --emit-csv new/seqs.csv"), 1);
    CHECK_EQ(run_shell(&out, "test -e new"), 1);
    CHECK_EQ(run_prep(&out, "csv --input bad.csv --out a/b --emit-csv a/b/seqs.csv"), 1);
    CHECK_CONTAINS(get_file("a/b/seqs.csv"), "1,\"[2]\""); /* that of before */
}

/* A full disk, without one: files of this process may not grow beyond a limit.  SIGXFSZ is ignored,
 * so that the write fails as it does on a full disk. */
TEST(a_full_disk_leaves_nothing_behind) {
    char *out, *left;
    int code = run_shell(
        &out,
        "mkdir in && awk 'BEGIN { print \"userId,movieId,rating,timestamp\"; "
        "for (i = 0; i < 30000; i++) print i %% 100 \",\" i \",3.5,\" i }' > in/ratings.csv && "
        "trap '' XFSZ && ulimit -f 64 && %s prep ml-20m --input in --out out --emit-csv out.csv",
        test_program());
    CHECK_EQ(code, 1);
    CHECK_CONTAINS(out, "data.seq");
    CHECK_CONTAINS(out, "File too large");
    run_shell(&left, "ls -A");
    CHECK_STR(left, "in\n");
}

/* Many blocks in random order of users, time and item, on one thread and on three. */
TEST(the_bytes_do_not_depend_on_threads) {
    char *out;
    int code = run_shell(
        &out,
        "mkdir in && awk 'BEGIN { print \"userId,movieId,rating,timestamp\"; "
        "for (i = 0; i < 400000; i++) { x = (i * 7919) %% 400009; "
        "print x %% 977 \",\" (x * 31) %% 5003 \",\" (1 + x %% 10) / 2 \",\" (x * 17) %% 9973 } }' "
        "> in/ratings.csv && for t in 1 2 3 8; do HSTU_THREADS=$t %s prep ml-20m --input in --out "
        "o$t --json && cmp o1/data.seq o$t/data.seq || exit 9; done",
        test_program());
    if (code != 0) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "\"events\":400000,");
}

/* The reported error does not depend on threads either: it is the first in the file. */
TEST(the_first_error_of_the_file_is_told) {
    char *out;
    int code = run_shell(
        &out,
        "mkdir in && awk 'BEGIN { print \"userId,movieId,rating,timestamp\"; "
        "for (i = 2; i < 500000; i++) print (i >= 200000 ? \"x\" : 1) \",1,1,\" i }' "
        "> in/ratings.csv && for i in 1 2 3 4 5; do HSTU_THREADS=3 %s prep ml-20m --input in --out "
        "o 2>&1 | grep -o 'ratings.csv:[0-9]*'; done && ls",
        test_program());
    CHECK_EQ(code, 0);
    CHECK_STR(out, "ratings.csv:200000\nratings.csv:200000\nratings.csv:200000\n"
                   "ratings.csv:200000\nratings.csv:200000\nin\n");
}

/* The other tests do without the search for leaks; here a good and a bad run are searched. */
TEST(nothing_is_leaked) {
    char *out;
    put_file("good.csv", "1,2,3\n");
    put_file("bad.csv", "1,2,3\n1,2,x\n");
    CHECK_EQ(run_shell(&out,
                       "export ASAN_OPTIONS=detect_leaks=1; %s prep csv --input good.csv --out a "
                       "--emit-csv a.csv && ! %s prep csv --input bad.csv --out b",
                       test_program(), test_program()),
             0);
    if (strstr(out, "LeakSanitizer") != NULL) FAIL_TEST("%s", out);
    CHECK_CONTAINS(out, "bad.csv:2: column 3: 'x' is not a time");
}

#ifdef HSTU_HAS_CURL
static const char books[] = "u,a,5.0,1\nu,b,5.0,2\nu,c,5.0,3\nu,d,5.0,4\nu,e,5.0,5\n"
                            "v,a,5.0,1\nv,b,5.0,2\nv,c,5.0,3\nv,d,5.0,4\nv,e,5.0,5\n"
                            "w,a,5.0,1\nw,b,5.0,2\nw,c,5.0,3\nw,d,5.0,4\nw,e,5.0,5\n"
                            "x,a,5.0,1\nx,b,5.0,2\nx,c,5.0,3\nx,d,5.0,4\nx,e,5.0,5\n"
                            "y,a,5.0,1\ny,b,5.0,2\ny,c,5.0,3\ny,d,5.0,4\ny,e,5.0,5\n";

/* Serves one file to every request, in a process of its own; its port. */
static int start_server(const char *content, pid_t *child) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof address;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(s >= 0 && bind(s, (struct sockaddr *)&address, n) == 0 && listen(s, 8) == 0);
    CHECK(getsockname(s, (struct sockaddr *)&address, &n) == 0);
    *child = fork();
    if (*child != 0) {
        close(s);
        return ntohs(address.sin_port);
    }
    for (;;) {
        char request[4096], answer[8192];
        int c = accept(s, NULL, NULL);
        if (c < 0 || read(c, request, sizeof request) <= 0) _exit(1);
        int length = snprintf(answer, sizeof answer,
                              "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n"
                              "Connection: close\r\n\r\n%s",
                              strlen(content), content);
        if (write(c, answer, (size_t)length) != length) _exit(1);
        close(c);
    }
}
#endif

TEST(download_fetches_then_reads) {
#ifdef HSTU_HAS_CURL
    char args[512];
    pid_t child;
    int port = start_server(books, &child);
    snprintf(args, sizeof args,
             "amzn-books --download --url http://127.0.0.1:%d/x.csv --out data/books --json", port);
    char *out = prep_ok(args);
    CHECK_EQ(kill(child, SIGKILL), 0);
    waitpid(child, NULL, 0);
    CHECK_CONTAINS(out, "\"users\":5,\"items\":5,\"catalogue\":5,\"events\":25,");
    /* The archive is beside the result, and is not fetched again: there is no server any more. */
    CHECK_STR(get_file("data/ratings_Books.csv"), books);
    prep_ok(args);
    prep_ok("amzn-books --download --input data --out again");
    prep_fails("amzn-books --download --url http://127.0.0.1:1/x.csv --out out", 1, "127.0.0.1:1");
#else
    SKIP_TEST("built without libcurl");
#endif
}

TEST(download_needs_an_address_and_a_folder) {
    put_file("file.csv", "1,2,3\n");
    prep_fails("csv --download --out out", 2, "csv has no public address");
    prep_fails("ml-1m --download --input file.csv --out out", 2,
               "--input file.csv is a file; with --download it is the folder");
}

TEST(prep_notes_events_of_the_future) {
    static const char *const rows[] = {"1,1,1700000000\n1,2,1700000060",
                                       "1,1,1700000000\n1,2,4070908800"};
    for (size_t i = 0; i < 2; i++) {
        char *text;
        CHECK_EQ(run_shell(
                     &text,
                     "printf 'user,item,time\\n%s\\n' | %s prep csv --input - --out %s/future 2>&1",
                     rows[i], test_program(), test_folder()),
                 0);
        CHECK((strstr(text, "the newest event is in the future") != NULL) == (i == 1));
    }
}
