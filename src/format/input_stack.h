/* The inside of input.h: an input is a stack of layers.
 *
 * The lowest layer is a file, read with read(2).  A decoder layer (libarchive) on top of it
 * decompresses it or walks through the files of an archive; a compressed member of an archive has a
 * third layer.  A layer owns the one below.  Shared by input.c, archive_decoder.c and bundle.c
 * only. */
#ifndef HSTU_FORMAT_INPUT_STACK_H
#define HSTU_FORMAT_INPUT_STACK_H

#include "format/input.h"

enum { INPUT_HEAD_BYTES = 512 }; /* the magic of a tar file is at byte 257 */

typedef enum { CONTENT_PLAIN, CONTENT_COMPRESSED, CONTENT_ARCHIVE, CONTENT_FOREIGN } content_kind;

struct decoder; /* libarchive's part of a layer: archive_decoder.c */

struct input {
    char *name;
    input *below;            /* NULL for a file */
    struct decoder *decoder; /* NULL for a file */
    int fd;                  /* of a file, else -1 */
    bool is_seekable;
    uint64_t file_at;     /* the offset in the file */
    uint64_t file_bytes;  /* 0 = unknown */
    unsigned char *block; /* what input_block reads a file into; made on first use */
    unsigned char head[INPUT_HEAD_BYTES]; /* looked at already, but not yet handed out */
    size_t head_at, head_bytes;
};

/* A layer without content; `name` is copied. */
status input_create(input **out, const char *name);

/* Opens a file, with a decoder if it is compressed; *out_kind says whether the result is an archive
 * or plain bytes. */
status input_open_stack(input **out, const char *path, content_kind *out_kind);

/* Peeks at the first bytes without consuming them; *out_what is a word for messages. */
status input_sniff(input *in, content_kind *out_kind, const char **out_what);

/* The next bytes of a layer, in memory of the layer itself; *n = 0 only at the end. */
status input_block(input *in, const void **bytes, size_t *n);

/* A decoder on `below`, which it owns from then on; on failure the caller still owns `below`.
 * input_decompress decompresses a stream; input_walk walks through an archive, file by file. */
status input_decompress(input **out, input *below);
status input_walk(input **out, input *below);

/* The next regular file of an archive, which can then be read; *out_path = NULL after the last.
 * The path is valid until the next call and holds no control characters. */
status input_walk_next(input *in, const char **out_path);

/* The decoder's parts of input_block and input_close; at most `max` bytes, the rest is kept. */
status decoder_block(input *in, size_t max, const void **bytes, size_t *n);
void decoder_destroy(struct decoder *d);

#endif
