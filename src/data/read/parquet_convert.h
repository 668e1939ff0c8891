/* Values of a Parquet column as what the builder stores: numbers of ids, times in ticks, actions.
 * A failure says what is wrong with the value; the caller knows its place. */
#ifndef HSTU_DATA_READ_PARQUET_CONVERT_H
#define HSTU_DATA_READ_PARQUET_CONVERT_H

#include "data/read/parquet_events.h"

/* Where converted values go: times have 64 bits, ids (as the sink numbers them) and actions 32. */
typedef struct converted {
    uint32_t *number;
    int64_t *time;
} converted;

typedef struct converter {
    const csv_layout *layout; /* kinds of ids and actions, and the times of untyped columns */
    builder_sink *sink;
    const parquet_column *column;
    event_role role;
    time_plan times;      /* of this column */
    int64_t units_a_date; /* seconds of a day for dates, else 1 */
    int time_digits;      /* after the second, as the times so far need them */
} converter;

void converter_init(converter *c, const csv_layout *layout, builder_sink *sink,
                    const parquet_column *of, event_role role);

/* Converts values from[first .. first + n) to the start of `to`; *n_done of them before a failure.
 */
status convert_values(converter *c, const parquet_data *from, size_t first, size_t n, converted to,
                      size_t *n_done);

#endif
