/* Shared libraries that are looked for when they are first needed, so that a program starts without
 * them. */
#ifndef HSTU_BASE_LIBRARY_H
#define HSTU_BASE_LIBRARY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the first that can be loaded: `name` where the loader looks (LD_LIBRARY_PATH, the folder it
 * was linked with, the system's), then `in_packages`, a pattern such as "nvidia/x/lib/libx.so.1",
 * in the folders of Python's packages: the one that this library is installed in, the active
 * environment's, the system's and the user's.  NULL: there is none. */
void *library_find(const char *name, const char *in_packages);

#ifdef __cplusplus
}
#endif

#endif
