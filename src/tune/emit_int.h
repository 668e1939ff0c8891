/* What the files of the generator share: the text of a kernel as it grows. */
#ifndef HSTU_TUNE_EMIT_INT_H
#define HSTU_TUNE_EMIT_INT_H

#include "tune/emit.h"

typedef struct emitter {
    const kernel_spec *s;
    buf *out;
    status state;
    int64_t shared_bytes;
    int32_t e; /* model dimension */
    int first, last;
} emitter;

/* Appends text; the first failure is kept in the emitter. */
void say(emitter *m, const char *fmt, ...) PRINTF_LIKE(2, 3);

const chain_op *op_at(const emitter *m, int op);

const chain_tensor *tensor_at(const emitter *m, int tensor);

int columns_of(const emitter *m, int tensor);

/* Elements between the rows of a tensor of tokens. */
int stride_of(const emitter *m, int tensor);

/* Whether an operator's output is scores. */
bool is_scores(const emitter *m, int op);

/* Shared memory of an operand of a product. */
int64_t operand_bytes(const emitter *m, int rows, int depth);

/* Declares shared memory: n elements in C, `bytes` in CUDA. */
void say_shared(emitter *m, const char *type, const char *name, int64_t n, int64_t bytes);

void say_floats(emitter *m, const char *name, int64_t n);

/* Stages of the pipeline of TILE_PRODUCT on a GPU. */
int stages_of(const emitter *m);

/* The operands of TILE_PRODUCT. */
void say_operands(emitter *m);

/* An element of a tensor at the position of the value: (t, col) or (i, j). */
void say_load(emitter *m, int tensor);

/* An element of a float32 vector. */
void say_vector(emitter *m, int tensor, const char *at);

/* Elementwise operators first..last on v. */
void say_chain(emitter *m, int first, int last);

/* Stores v as the output of the kernel's last operator. */
void say_store(emitter *m);

#endif
