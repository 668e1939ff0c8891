/* The cores that the quota of a container lets a process use: `docker run --cpus 2`, a limit of
 * Kubernetes or of systemd.  The process may run on every core of the machine then, but only for
 * so much of each 100 ms; with a thread for every core it would stand still for the rest. */
#ifndef HSTU_BASE_CPU_QUOTA_H
#define HSTU_BASE_CPU_QUOTA_H

/* Cores, such as 1.5, by the quota of the process's cgroup (version 1 or 2) or of one above it,
 * whichever is least; 0: there is none.  `own` names the cgroups of the process, as
 * /proc/self/cgroup does, `root` is where they are mounted: /sys/fs/cgroup. */
double cpu_quota(const char *own, const char *root);

#endif
