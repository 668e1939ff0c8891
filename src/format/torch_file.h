/* .pt and .pth files: tensors as torch.save writes them, read and written without Python.
 *
 * A file is a zip archive with a pickle (data.pkl) and one member of raw bytes for each storage.
 * Reading maps the file and executes nothing (pickle.h): tensors in nested dicts, lists and
 * tuples get one name each, "model_state_dict.module._o.weight" or "optimizer.state[0].exp_avg".
 * Every offset, stride and size is checked against the storage.  What is read is a view of the map,
 * valid until st_close, for any number of threads. */
#pragma once

#include "format/safetensors.h"

enum { TORCH_NAME_BYTES = 512 };

/* Whether the first bytes are those of a zip archive or of a pickle: a file that torch_open would
 * read, or refuse with a better reason than other readers. */
bool torch_is_file(const char *path);

/* ERR_FORMAT: what is wrong, where, and what to do in Python.  ERR_UNSUPPORTED: TorchScript, files
 * of torch before 1.6. */
status torch_open(st_file **out, const char *path);

/* An integer of the outermost dict, such as "epoch"; false: there is none. */
bool torch_find_int(const st_file *f, const char *key, int64_t *out);

/* Copies rows first..first+n-1 (of the first dimension; a scalar is one row) to `to`, as contiguous
 * float32; bfloat16 and float16 are exact, float64 is rounded.  ERR_FORMAT: the tensor holds no
 * such numbers. */
status torch_read_floats(const st_file *f, const st_tensor *t, int64_t first, int64_t n, float *to);

/* "float32", as torch calls it. */
const char *torch_dtype_name(st_dtype dtype);

/* Writes an OrderedDict of contiguous tensors in the order given, which
 * torch.load(weights_only=True) opens.  A dot in a name means nothing here: the dict is flat. */
status torch_write(const char *path, const st_tensor *tensors, size_t n_tensors);
