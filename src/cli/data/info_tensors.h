/* hstu info of a file of tensors: .pt and .pth (base/torch_file.h) and .safetensors. */
#ifndef HSTU_CLI_DATA_INFO_TENSORS_H
#define HSTU_CLI_DATA_INFO_TENSORS_H

#include <stdbool.h>

#include "base/status.h"

/* By the first bytes of the file, or the end of its name. */
bool info_is_tensors(const char *path);

status info_tensors(const char *path, bool is_json);

#endif
