#include "api/api_int.h"

enum { SLOT_BITS = 16, N_SLOTS = 1 << SLOT_BITS };

struct handle {
    const handle_type *type;
    void *object;
    uint64_t process; /* n_forks when it was opened */
    int64_t n_holds;  /* and one more while it is open */
    bool is_open;
    pthread_mutex_t turn; /* of handle_enter */
};

/* All of it under the lock, which is held for a look-up only. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_forks; /* between the first process and this one */
static struct {
    uint64_t n_uses;
    handle *h; /* NULL: free */
} slots[N_SLOTS];
static uint32_t next_slot;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    n_forks++;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void *value_of(uint32_t slot) {
    return (void *)(uintptr_t)(slots[slot].n_uses << SLOT_BITS | slot);
}

/* The slots are used in turn, so that one used a moment ago is free for long. */
static status take_slot(handle *h, void **value) {
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        uint32_t slot = (next_slot + i) % N_SLOTS;
        if (slots[slot].h != NULL) continue;
        slots[slot].h = h;
        slots[slot].n_uses++;
        next_slot = slot + 1;
        *value = value_of(slot);
        return OK;
    }
    return fail(ERR_UNSUPPORTED, "%d objects of libhstu are open; close some first", (int)N_SLOTS);
}

status handle_open(void *out, const handle_type *type, void *object, status st) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    handle *h = NULL;
    void *value = NULL;
    pthread_once(&once, watch_forks);
    if (st == OK) st = MEM_NEW(&h, 1);
    if (st == OK) {
        *h = (handle){.type = type, .object = object, .n_holds = 1, .is_open = true};
        pthread_mutex_init(&h->turn, NULL);
        pthread_mutex_lock(&lock);
        h->process = n_forks;
        st = take_slot(h, &value);
        pthread_mutex_unlock(&lock);
    }
    memcpy(out, &value, sizeof value); /* a pointer of any type */
    if (st == OK) return OK;
    failure f;
    failure_save(&f, st);
    type->destroy(object);
    mem_free(h);
    return failure_restore(&f);
}

/* Under the lock: the open handle of a value, or NULL. */
static handle *find(const void *value) {
    uint32_t slot = (uint32_t)((uintptr_t)value % N_SLOTS);
    return value == value_of(slot) ? slots[slot].h : NULL;
}

const handle_type *handle_type_of(const void *value) {
    pthread_mutex_lock(&lock);
    const handle *h = find(value);
    const handle_type *type = h != NULL ? h->type : NULL;
    pthread_mutex_unlock(&lock);
    return type;
}

static bool is_usable(const handle *h) {
    return h->process == n_forks || h->type->survives_fork;
}

static status refuse(const handle *h, const void *value, const handle_type *type) {
    if (value == NULL) return fail(ERR_USAGE, "the %s is NULL; open one first", type->name);
    if (h == NULL || h->type != type)
        return fail(ERR_USAGE, "the %s is closed, or this is not a %s", type->name, type->name);
    return fail(ERR_USAGE,
                "the %s was opened before fork(), and its threads stayed in the parent process; "
                "open it again in this one",
                type->name);
}

status handle_hold(handle **out, const void *value, const handle_type *type) {
    status st = OK;
    pthread_mutex_lock(&lock);
    handle *h = find(value);
    if (h == NULL || h->type != type || !is_usable(h))
        st = refuse(h, value, type);
    else
        h->n_holds++;
    pthread_mutex_unlock(&lock);
    *out = st == OK ? h : NULL;
    return st;
}

/* Destroying an object may fail inside and record another reason. */
static void destroy(handle *h, status st) {
    failure f;
    failure_save(&f, st);
    h->type->destroy(h->object);
    pthread_mutex_destroy(&h->turn);
    mem_free(h);
    if (st != OK) failure_restore(&f);
}

hstu_status handle_release(handle *h, status st) {
    if (h == NULL) return (hstu_status)st;
    pthread_mutex_lock(&lock);
    bool is_last = --h->n_holds == 0;
    pthread_mutex_unlock(&lock);
    if (is_last) destroy(h, st);
    return (hstu_status)st;
}

static bool is_open(const handle *h) {
    pthread_mutex_lock(&lock);
    bool yes = h->is_open;
    pthread_mutex_unlock(&lock);
    return yes;
}

status handle_enter(handle **out, const void *value, const handle_type *type) {
    TRY(handle_hold(out, value, type));
    pthread_mutex_lock(&(*out)->turn);
    if (is_open(*out)) return OK;
    status st = fail(ERR_USAGE, "the %s was closed while this call waited for it", type->name);
    handle_leave(*out, st);
    *out = NULL;
    return st;
}

hstu_status handle_leave(handle *h, status st) {
    if (h != NULL) pthread_mutex_unlock(&h->turn);
    return handle_release(h, st);
}

void *handle_object(const handle *h) {
    return h->object;
}

void handle_close(const void *value, const handle_type *type) {
    pthread_mutex_lock(&lock);
    handle *h = find(value);
    if (h != NULL && h->type != type) h = NULL;
    if (h != NULL) slots[(uintptr_t)value % N_SLOTS].h = NULL;
    bool is_ours = h != NULL && is_usable(h);
    if (is_ours) h->is_open = false;
    pthread_mutex_unlock(&lock);
    if (is_ours) handle_release(h, OK);
}
