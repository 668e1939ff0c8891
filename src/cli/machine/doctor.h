/* What `hstu doctor` finds: one line each, with what to do about it.  doctor.c looks at the host,
 * doctor_gpu.c at the GPUs, through libraries that are opened at run time and linked nowhere. */
#pragma once

#include "base/base.h"

typedef enum { FOUND_OK, FOUND_LACK, FOUND_TROUBLE } found_state;

/* What a machine may be wanted for. */
typedef enum {
    FOR_TRAIN = 1,
    FOR_SERVE = 2,
    FOR_RANKS = 4,
    FOR_ENCODE = 8,
    FOR_ALL = FOR_TRAIN | FOR_SERVE | FOR_RANKS | FOR_ENCODE
} purpose;

typedef enum { SECTION_MACHINE, SECTION_GPU, SECTION_LIBRARIES } found_section;

typedef struct finding {
    found_section section;
    found_state state;
    char name[16];
    char text[256];
    char remedy[256];   /* "" where nothing is to be done */
    unsigned unfit_for; /* purposes: the machine is no use for them as it is */
} finding;

/* Begins a remedy that ends with "make".  Packages for the system are of no use to a program file
 * of `make dist` or of a wheel. */
#ifdef HSTU_DIST
#define DOCTOR_MAKE "this program file stays without; a build from source has it: "
#else
#define DOCTOR_MAKE ""
#endif

enum { MAX_FINDINGS = 128 };

typedef struct findings {
    finding all[MAX_FINDINGS];
    int n;
    found_section section; /* of those that are added */
} findings;

/* Adds one, whose text is formatted: with a remedy, or NULL, and the purposes that it makes the
 * machine unfit for.  Beyond the last one the last one is replaced. */
void finding_add(findings *f, found_state state, const char *name, unsigned unfit_for,
                 const char *remedy, const char *fmt, ...) PRINTF_LIKE(6, 7);
#define FINDING(f, state, name, ...) finding_add(f, state, name, 0, NULL, __VA_ARGS__)

void doctor_ask_gpus(findings *f); /* doctor_gpu.c */

/* The parsers, pure, so that tests can call them.  The word in brackets: "always [madvise] never";
 * "" where there is none. */
const char *doctor_chosen_word(const char *text);

/* The reasons that slow a GPU's clocks, of NVML's bits, as words: "power limit, hot"; "" for none.
 */
const char *doctor_throttle_words(unsigned long long bits);
