/* ONNX models, written: a graph is built op by op, of constants and of weights, and then written as
 * a file that appears whole or not at all.
 *
 * A value is known by its name.  The first failure stays in the graph, which then takes nothing
 * more; onnx_write returns it.  Types and ops are those of opset 17 and of ai.onnx.ml 3.  One
 * thread at a time. */
#pragma once

#include "format/protobuf.h"

typedef enum { ONNX_F32 = 1, ONNX_I64 = 7, ONNX_TEXT = 8, ONNX_BOOL = 9 } onnx_type;
typedef enum { ONNX_INPUT = 11, ONNX_OUTPUT } onnx_port_kind;

/* Fields of lists: of attributes, and of tensors. */
enum { ONNX_INTS = 8, ONNX_TEXTS = 9, ONNX_DATA_TEXTS = 6, ONNX_DATA = 9 };

typedef const char *onnx_value;

typedef struct onnx_graph {
    pb model;
    size_t begin; /* of the graph in it */
    pb lists;     /* attributes of the next op */
    arena names;
    int n_names;
    struct onnx_weight *weight;
    size_t n_weights, capacity;
} onnx_graph;

void onnx_init(onnx_graph *g); /* a zeroed one */
void onnx_fini(onnx_graph *g);

/* dims: "batch,n,50" - names, and numbers of what is fixed. */
onnx_value onnx_port(onnx_graph *g, onnx_port_kind kind, const char *name, onnx_type type,
                     const char *dims, const char *what);

/* Numbers (shape), of at most two dimensions, in memory of the caller, which stays until the file
 * is written. */
onnx_value onnx_weights(onnx_graph *g, const char *name, int n_dims, const int64_t *shape,
                        const float *values);

/* A constant of n elements, of one dimension or, for n < 0, a scalar: of numbers, or of the field
 * or fields of a tensor. */
onnx_value onnx_numbers(onnx_graph *g, onnx_type type, int64_t n, const void *values, size_t bytes);
onnx_value onnx_constant(onnx_graph *g, const char *name, onnx_type type, int64_t n,
                         const pb *data);

/* An attribute of the next op that is too long for its text; list: its field or fields. */
void onnx_set_list(onnx_graph *g, const char *name, int field, const pb *list);

/* out (n_out) = op(values...), which end with NULL; an out that is NULL gets a name.  op: "Concat
 * axis=1", with attributes that are numbers or, in brackets, lists of whole numbers.  Returns the
 * first result. */
onnx_value onnx_op(onnx_graph *g, size_t n_out, onnx_value *out, const char *op, ...);

/* Ends the graph and writes the model.  A file of it can have 2 GB, so the weights of a larger one
 * are in PATH.data beside it, at multiples of 4096 bytes, and so are all with *is_apart, which then
 * says so.  A PATH.data that is there already is refused: a model that exists may read it. */
status onnx_write(onnx_graph *g, const char *path, bool *is_apart);
