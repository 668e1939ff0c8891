/* chain_reference_f.def in both precisions. */
#include "tune/chain_reference.h"

#include <math.h>

#define REAL        double
#define NAME(x)     x##64
#define ROUND(p, x) (x)
#define EXP         exp
#define SQRT        sqrt
#define ERF         erf
#include "tune/chain_reference_f.def"
#undef REAL
#undef NAME
#undef ROUND
#undef EXP
#undef SQRT
#undef ERF

#define REAL        float
#define NAME(x)     x##32
#define ROUND(p, x) round_to((p)->act, (x))
#define EXP         expf
#define SQRT        sqrtf
#define ERF         erff
#include "tune/chain_reference_f.def"
