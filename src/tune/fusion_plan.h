/* A fusion plan: which neighbouring operators of a layer's chain (chain.h) run as one kernel.
 *
 * A plan is a 16-bit number, written in decimal or as 16 characters.  The first character (bit 0)
 * asks for the hand-written attention; characters 1 to 15 are labels of operators 0 to 14.  Maximal
 * runs of equal labels of length two or more are fused segments; every other operator is a kernel
 * of its own.  Bit 0 acts where a segment is exactly the layer's attention, and nowhere else.
 *
 * So several codes mean the same program: all labels may be inverted, and bit 0 is often without
 * effect.  The canonical code has label 0 for operator 0, and bit 0 only where it acts.  65,536
 * codes make 2^14 segmentations, of which 2^8 have a segment that is exactly the attention: 16,640
 * distinct programs, for each of the three layers.
 *
 * Not every segment can be one kernel: the generator has a limited set of templates.  A segment
 * that fits none is split: its longest legal beginning becomes a kernel, then the longest legal
 * beginning of the rest, and so on.  Any thread. */
#pragma once

#include "tune/chain.h"

enum {
    PLAN_BITS = 16,
    PLAN_CODES = 1 << PLAN_BITS,
    PLAN_PROGRAMS = (1 << 14) + (1 << 8), /* distinct ones of a layer */
    PLAN_MAX_SEGMENTS = CHAIN_OPS / 2
};

typedef struct plan_segment {
    int first, last; /* operators, from 0 */
} plan_segment;

/* A parsed plan, before it meets a layer. */
typedef struct fusion_plan {
    uint16_t value;
    bool wants_hand_written; /* bit 0 */
    int n_segments;
    plan_segment segment[PLAN_MAX_SEGMENTS];
} fusion_plan;

void plan_decode(uint16_t value, fusion_plan *out);

/* "6826" or "0001101010101010".  Sixteen characters of 0 and 1 are bits, at most five digits a
 * value; anything else is ERR_USAGE and says what is wrong. */
status plan_parse(const char *text, fusion_plan *out);

/* Sixteen characters and a NUL. */
void plan_bits(uint16_t value, char text[PLAN_BITS + 1]);

/* The code of given segments: "1-2,3-4", operators from 1 as plan_line prints them, ascending and
 * disjoint.  Canonical but for bit 0, which is as asked. */
status plan_from_segments(const char *text, bool wants_hand_written, uint16_t *out);

/* "VALUE BIT0 SEGMENTS START END ..." with operators counted from 1, without a newline. */
status plan_line(const fusion_plan *p, buf *out);

/* The code that stands for all codes of the same program of this layer. */
uint16_t plan_canonical(const chain *c, uint16_t value);

/* Whether bit 0 is set and acts. */
bool plan_uses_hand_written(const chain *c, uint16_t value);

/* What a kernel is generated from. */
typedef enum {
    TEMPLATE_NONE,         /* no template: illegal */
    TEMPLATE_ELEMENTWISE,  /* elementwise chain */
    TEMPLATE_PRODUCT,      /* product, elementwise epilogue */
    TEMPLATE_PRODUCT_NORM, /* product, elementwise, reduction over whole rows, elementwise */
    TEMPLATE_REDUCTION,    /* elementwise, reduction, elementwise */
    TEMPLATE_ATTENTION,    /* scores to weighted sum, elementwise epilogue */
    TEMPLATE_TWO_PRODUCTS, /* product, activation, product, elementwise epilogue */
    TEMPLATE_HAND_WRITTEN  /* the attention op of the backend */
} kernel_template;

const char *template_name(kernel_template t);

/* Columns of a row that a block can keep: bounds the templates that need whole rows. */
enum { PLAN_MAX_ROW = 1024, PLAN_MAX_HEAD_DIM = 256 };

/* Text of a reason why an operator cannot join a kernel. */
enum { PLAN_WHY_BYTES = 192 };

/* The template of operators first..last as one kernel; TEMPLATE_NONE where there is none, with the
 * reason in why (may be NULL). */
kernel_template plan_template(const chain *c, const chain_shape *shape, int first, int last,
                              char why[PLAN_WHY_BYTES]);

typedef struct plan_kernel {
    int first, last;
    kernel_template from;
    int segment;              /* of the plan; -1: an operator that the plan leaves alone */
    char why[PLAN_WHY_BYTES]; /* why its segment is split after it; "" where it is not */
} plan_kernel;

/* A plan lowered to kernels, in order. */
typedef struct plan_program {
    fusion_plan plan;
    int n_kernels;
    plan_kernel kernel[CHAIN_OPS];
} plan_program;

/* Cuts illegal segments.  Never fails: a single operator always has a template. */
void plan_lower(const chain *c, const chain_shape *shape, uint16_t value, plan_program *out);

/* An SVG of the chain with the kernels of a program drawn around their operators. */
status plan_draw(const chain *c, const plan_program *p, buf *out);
