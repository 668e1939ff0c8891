/* The inside of a mask (mask.h): a rule, or the file that holds the bits. */
#ifndef HSTU_OPS_MASK_INT_H
#define HSTU_OPS_MASK_INT_H

#include "ops/mask.h"

typedef struct mask_file mask_file;

struct mask {
    mask_rule rule;
    mask_file *file; /* NULL for a rule */
};

/* Opens and checks a file of bits or csr. */
status mask_file_open(mask_file **out, const char *path, bool is_csr);
void mask_file_close(mask_file *f);

bool mask_file_is_by_sequence(const mask_file *f);
int64_t mask_file_length(const mask_file *f, int64_t sequence);
status mask_file_check(const mask_file *f, int64_t sequence, int64_t n);

/* Sets the bits of one query row; the words are zero. */
void mask_file_fill_row(const mask_file *f, int64_t sequence, int32_t n, int32_t row,
                        uint64_t *words);

#endif
