#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/api_int.h"
#include "test.h"

static int n_destroyed;

static void count(void *object) {
    (void)object;
    n_destroyed++;
}

static const handle_type type = {"thing", count, .survives_fork = false},
                         other_type = {"other", count, .survives_fork = true};

static void check_refused(const void *value, const char *text) {
    handle *h = (handle *)&h;
    CHECK_FAILS(handle_hold(&h, value, &type), ERR_USAGE, text);
    CHECK(h == NULL);
    CHECK_FAILS(handle_enter(&h, value, &type), ERR_USAGE, text);
    CHECK(h == NULL);
    handle_close(value, &type); /* nothing happens */
}

TEST(handle_refuses_what_is_not_open) {
    int object;
    void *first, *second, *other;
    CHECK_OK(handle_open(&first, &type, &object, OK));
    CHECK_OK(handle_open(&other, &other_type, &object, OK));
    CHECK(handle_type_of(first) == &type && handle_type_of(&object) == NULL);
    check_refused(NULL, "the thing is NULL; open one first");
    check_refused(&object, "the thing is closed, or this is not a thing");
    check_refused(other, "the thing is closed, or this is not a thing");
    handle_close(first, &type);
    CHECK_EQ(n_destroyed, 1);
    check_refused(first, "the thing is closed");
    /* Not even when its slot has been taken again, and again. */
    for (int i = 0; i < 70000; i++) {
        CHECK_OK(handle_open(&second, &type, &object, OK));
        CHECK(second != first && second != NULL);
        handle_close(second, &type);
    }
    check_refused(first, "the thing is closed");
    handle_close(other, &other_type);
    CHECK_EQ(n_destroyed, 70002);
}

TEST(handle_limits_the_open_objects) {
    static void *values[65536];
    void *more;
    for (int i = 0; i < 65536; i++)
        CHECK_OK(handle_open(&values[i], &type, NULL, OK));
    CHECK_FAILS(handle_open(&more, &type, NULL, OK), ERR_UNSUPPORTED, "65536 objects of libhstu");
    CHECK(more == NULL);
    CHECK_EQ(n_destroyed, 1);
    for (int i = 0; i < 65536; i++)
        handle_close(values[i], &type);
    CHECK_EQ(n_destroyed, 65537);
}

TEST(handle_keeps_an_object_that_is_held) {
    void *value;
    handle *h, *again;
    CHECK_OK(handle_open(&value, &type, NULL, OK));
    CHECK_OK(handle_hold(&h, value, &type));
    handle_close(value, &type);
    CHECK_EQ(n_destroyed, 0);
    CHECK_FAILS(handle_hold(&again, value, &type), ERR_USAGE, "is closed");
    (void)fail(ERR_IO, "mine");
    CHECK_EQ(handle_release(h, ERR_IO), HSTU_ERR_IO);
    CHECK_EQ(n_destroyed, 1);
    CHECK_STR(hstu_error(), "mine");
}

typedef struct turns {
    void *value;
    int n_inside, n_wrong, n_done; /* only touched between enter and leave */
} turns;

static void *take_turns(void *ctx) {
    turns *t = ctx;
    for (int i = 0; i < 2000; i++) {
        handle *h;
        if (handle_enter(&h, t->value, &type) != OK) break;
        t->n_wrong += ++t->n_inside != 1;
        t->n_done++;
        t->n_inside--;
        handle_leave(h, OK);
    }
    return NULL;
}

TEST(handle_enters_one_thread_at_a_time) {
    turns t = {0};
    pthread_t threads[8];
    CHECK_OK(handle_open(&t.value, &type, NULL, OK));
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, take_turns, &t), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    CHECK(t.n_wrong == 0 && t.n_done == 16000);
    handle_close(t.value, &type);
}

static char reason[256];

static void *wait_for_turn(void *value) {
    handle *h;
    if (handle_enter(&h, value, &type) != OK)
        snprintf(reason, sizeof reason, "%s", status_reason());
    return NULL;
}

/* Who waits for a turn learns that there is none any more; who has it ends in peace. */
TEST(handle_closed_during_a_call) {
    void *value;
    handle *h;
    pthread_t thread;
    CHECK_OK(handle_open(&value, &type, NULL, OK));
    CHECK_OK(handle_enter(&h, value, &type));
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_turn, value), 0);
    usleep(50000); /* it waits; if it has not come that far, the reason is another */
    handle_close(value, &type);
    CHECK_EQ(n_destroyed, 0);
    handle_leave(h, OK);
    pthread_join(thread, NULL);
    CHECK_CONTAINS(reason, "closed");
    CHECK_EQ(n_destroyed, 1);
}

/* The child of a fork while another thread is inside: no deadlock, no destruction. */
TEST(handle_after_fork) {
    void *value, *survivor;
    handle *h, *mine;
    int result;
    CHECK_OK(handle_open(&value, &type, NULL, OK));
    CHECK_OK(handle_open(&survivor, &other_type, NULL, OK));
    CHECK_OK(handle_enter(&mine, value, &type));
    pid_t child = fork();
    if (child == 0) {
        void *fresh;
        alarm(20);
        check_refused(value, "the thing was opened before fork()");
        handle_close(value, &type);
        CHECK_OK(handle_hold(&h, survivor, &other_type));
        CHECK_EQ(handle_release(h, OK), HSTU_OK);
        CHECK_EQ(n_destroyed, 0);
        handle_close(survivor, &other_type);
        CHECK_EQ(n_destroyed, 1);
        CHECK_OK(handle_open(&fresh, &type, NULL, OK));
        CHECK_OK(handle_enter(&h, fresh, &type));
        handle_leave(h, OK);
        _exit(33);
    }
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result));
    CHECK_EQ(WEXITSTATUS(result), 33);
    handle_leave(mine, OK);
    handle_close(value, &type);
    handle_close(survivor, &other_type);
    CHECK_EQ(n_destroyed, 2);
}
