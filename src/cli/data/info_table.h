/* hstu info of a snapshot of a dynamic table. */
#ifndef HSTU_CLI_DATA_INFO_TABLE_H
#define HSTU_CLI_DATA_INFO_TABLE_H

#include <stdbool.h>

#include "base/status.h"

status info_table(const char *folder, bool is_json);

#endif
