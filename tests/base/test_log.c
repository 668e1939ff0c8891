#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "test.h"

static const uint64_t SECOND = 1000000000;

static const char *count_text(double value) {
    static char text[32];
    human_count(text, sizeof text, value);
    return text;
}

static const char *bytes_text(double value) {
    static char text[32];
    human_bytes(text, sizeof text, value);
    return text;
}

static const char *duration_text(double value) {
    static char text[32];
    human_duration(text, sizeof text, value);
    return text;
}

TEST(human_counts) {
    CHECK_STR(count_text(0), "0");
    CHECK_STR(count_text(789), "789");
    CHECK_STR(count_text(0.517), "0.52");
    CHECK_STR(count_text(999.4), "999");
    CHECK_STR(count_text(999.6), "1.00 k");
    CHECK_STR(count_text(45600), "45.6 k");
    CHECK_STR(count_text(99960), "100 k");
    CHECK_STR(count_text(999999), "1.00 M");
    CHECK_STR(count_text(1234567), "1.23 M");
    CHECK_STR(count_text(3e9), "3.00 G");
    CHECK_STR(count_text(18446744073709551615.0), "18.4 E");
    CHECK_STR(count_text(-1), "0");
    CHECK_STR(count_text(NAN), "0");
}

TEST(human_byte_counts) {
    CHECK_STR(bytes_text(0), "0 B");
    CHECK_STR(bytes_text(999), "999 B");
    CHECK_STR(bytes_text(1000), "1.0 kB");
    CHECK_STR(bytes_text(1234567890), "1.2 GB");
    CHECK_STR(bytes_text(198702078), "199 MB");
}

TEST(human_durations) {
    CHECK_STR(duration_text(0), "0.0 s");
    CHECK_STR(duration_text(4.24), "4.2 s");
    CHECK_STR(duration_text(9.97), "10 s");
    CHECK_STR(duration_text(59.4), "59 s");
    CHECK_STR(duration_text(59.6), "1 m 00 s");
    CHECK_STR(duration_text(185), "3 m 05 s");
    CHECK_STR(duration_text(3600), "1 h 00 m");
    CHECK_STR(duration_text(7384), "2 h 03 m");
    CHECK_STR(duration_text(273600), "3 d 04 h");
    CHECK_STR(duration_text(INFINITY), "11574 d 01 h");
    CHECK_STR(duration_text(NAN), "0.0 s");
}

static int columns_of(const char *text) {
    int n = 0;
    for (; *text != '\0'; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

TEST(progress_renders_a_bar) {
    char text[512];
    progress p = {.what = "reading ratings.dat", .unit = "events", .total = 1000000};
    p.done = 500000;
    progress_render(&p, 2 * SECOND, 80, text, sizeof text);
    CHECK_STR(text, "reading ratings.dat  ▕█████▌     ▏  50%  500 k/1.00 M events  250 k/s  ETA "
                    "2.0 s");
    CHECK_EQ(columns_of(text), 80);
    p.done = p.total;
    progress_render(&p, 2 * SECOND, 60, text, sizeof text);
    CHECK_STR(text, "reading ratings.dat  100%  1.00 M/1.00 M events  500 k/s");
    p.done = 0;
    progress_render(&p, 0, 120, text, sizeof text);
    CHECK_CONTAINS(text, "   0%  0/1.00 M events  0/s");
    CHECK(strstr(text, "ETA") == NULL);
}

TEST(progress_renders_bytes_and_resumed_work) {
    char text[512];
    progress p = {.what = "ml-20m.zip", .unit = "B", .total = 200000000};
    p.start_done = 100000000;
    p.done = 150000000;
    progress_render(&p, 10 * SECOND, 80, text, sizeof text);
    CHECK_CONTAINS(text, "%  150 MB/200 MB  5.0 MB/s  ETA 10 s");
    p.done = 250000000; /* a server that sends more than it said */
    progress_render(&p, 10 * SECOND, 80, text, sizeof text);
    CHECK_CONTAINS(text, "100%  250 MB/200 MB");
}

TEST(progress_renders_without_a_total) {
    char text[512];
    progress p = {.what = "scanning", .unit = "users", .done = 6040};
    snprintf(p.suffix, sizeof p.suffix, "loss 4.95");
    progress_render(&p, SECOND, 80, text, sizeof text);
    CHECK_STR(text, "scanning  6.04 k users  6.04 k/s  loss 4.95");
}

TEST(progress_keeps_to_any_width) {
    char text[2048];
    progress p = {.what = "/a/very/long/path/Am\xc3\xa9lie/\xe2\x82\xac/ratings.dat and more of it",
                  .unit = "events",
                  .total = 7,
                  .done = 3};
    for (int width = 1; width < 300; width++) {
        progress_render(&p, SECOND, width, text, sizeof text);
        CHECK(columns_of(text) <= width);
    }
    for (int n = 1; n < 200; n++) {
        progress_render(&p, SECOND, 150, text, n);
        CHECK((int)strlen(text) < n);
    }
}

static int terminal = -1;

AFTER_TESTS {
    if (terminal >= 0) close(terminal);
}

/* stderr becomes the slave side of a new terminal; returns the master side. */
static int open_terminal(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
        SKIP_TEST("no pseudo terminal can be had");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    CHECK(slave >= 0 && dup2(slave, STDERR_FILENO) >= 0);
    fcntl(master, F_SETFL, O_NONBLOCK);
    close(slave);
    return terminal = master;
}

/* All that was written.  What is written in two calls may arrive in two pieces, the second a moment
 * later: the terminal is over when nothing more has come for 20 ms. */
static const char *read_terminal(int master) {
    static char text[65536];
    struct pollfd ready = {.fd = master, .events = POLLIN};
    size_t n = 0;
    while (poll(&ready, 1, 20) == 1 && n < sizeof text - 1) {
        ssize_t got = read(master, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return text;
}

TEST(progress_draws_on_a_terminal) {
    int master = open_terminal();
    progress p, second;
    uint64_t start = clock_ns();
    progress_begin(&p, "working", "users", 10);
    CHECK(p.is_active);
    progress_begin(&second, "inner", "users", 10);
    CHECK(!second.is_active);
    progress_update(&p, 1);
    /* A machine under load may have taken its time to get here. */
    bool is_early = clock_ns() - start < SECOND / 10;
    CHECK(read_terminal(master)[0] == '\0' || !is_early);
    usleep(120000);
    progress_suffix(&p, "loss %.2f", 4.95);
    progress_update(&p, 5);
    const char *drawn = read_terminal(master);
    CHECK(strncmp(drawn, "\r\033[Kworking  ", 13) == 0);
    CHECK_CONTAINS(drawn, "  50%  5/10 users");
    CHECK_CONTAINS(drawn, "loss 4.95");
    start = clock_ns();
    log_info("hello");
    CHECK_STR(read_terminal(master), "\r\033[Khello\r\n");
    progress_update(&p, 7);
    is_early = clock_ns() - start < SECOND / 10;
    CHECK(read_terminal(master)[0] == '\0' || !is_early);
    usleep(120000);
    progress_update(&p, 8);
    CHECK_CONTAINS(read_terminal(master), "80%");
    progress_end(&second);
    progress_end(&p);
    CHECK_STR(read_terminal(master), "\r\033[K");
    log_info("after");
    CHECK_STR(read_terminal(master), "after\r\n");
    progress_update(&p, 9);
    progress_end(&p);
    CHECK_STR(read_terminal(master), "");
}

TEST(progress_is_silent_when_quiet) {
    int master = open_terminal();
    progress p;
    log_set_level(LOG_QUIET);
    progress_begin(&p, "working", "users", 10);
    CHECK(!p.is_active);
    usleep(120000);
    progress_update(&p, 5);
    progress_end(&p);
    CHECK_STR(read_terminal(master), "");
    CHECK_EQ(p.done, 5);
}

TEST(progress_is_silent_without_a_terminal) {
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    progress p;
    progress_begin(&p, "working", "users", 10);
    usleep(120000);
    progress_update(&p, 5);
    progress_end(&p);
    CHECK(read(ends[0], &byte, 1) < 0);
    close(ends[0]);
    close(ends[1]);
}

static progress shared_bar;
static void *update_often(void *ctx) {
    (void)ctx;
    for (uint64_t i = 0; i < 200000; i++) {
        progress_update(&shared_bar, i);
        if (i % 50000 == 0) progress_suffix(&shared_bar, "at %d", (int)i);
        if (i % 100000 == 0) log_info("line");
    }
    return NULL;
}

/* For the thread sanitizer above all. */
TEST(progress_takes_several_threads) {
    open_terminal();
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK); /* nobody reads the other side */
    pthread_t threads[4];
    progress_begin(&shared_bar, "threads", "steps", 200000);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, update_often, NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    progress_end(&shared_bar);
    CHECK_EQ(shared_bar.done, 199999);
}

/* Without a terminal: nothing for half a minute, then a line with the time left. */
TEST(progress_without_a_terminal_says_what_is_left) {
    int said[2], before = dup(STDERR_FILENO);
    char text[400] = "";
    progress p;
    CHECK(before >= 0 && pipe(said) == 0 && dup2(said[1], STDERR_FILENO) >= 0);
    progress_begin(&p, "epoch 1", "events", 1000);
    progress_update(&p, 100);
    p.start_ns -= 31 * (uint64_t)SECOND;
    p.last_draw_ns -= 31 * (uint64_t)SECOND;
    progress_update(&p, 500);
    progress_update(&p, 600);
    progress_end(&p);
    dup2(before, STDERR_FILENO);
    close(said[1]);
    CHECK(read(said[0], text, sizeof text - 1) > 0);
    close(said[0]);
    close(before);
    CHECK_CONTAINS(text, "epoch 1:  50%  500/1.00 k events  16.1/s  ETA 31 s\n");
    CHECK(strchr(text, '\n')[1] == '\0');
}
