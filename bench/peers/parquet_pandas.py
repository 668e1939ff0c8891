#!/usr/bin/env python3
"""What `hstu prep parquet` does, with pandas and pyarrow: read, number ids, sort, write.

parquet_pandas.py FILE OUT usual|array

usual: factorize the ids, sort_values over (user, time), the columns to .npy files.
array: the best we could do with the tools: one stable argsort of a combined integer key, and numpy
arrays from then on.
Prints wall and CPU seconds (imports left out), peak memory and counts as JSON.
"""
import json
import os
import resource
import sys
import time

import numpy as np
import pandas as pd


def cpu_seconds():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def write_columns(out, users, items, user, item, action, stamp):
    counts = np.bincount(user, minlength=len(users))
    columns = {
        "user_id": np.asarray(users),
        "item_id": np.asarray(items),
        "offsets": np.concatenate(([0], np.cumsum(counts))).astype(np.uint64),
        "item": (item + 1).astype(np.uint32),
        "action": action,
        "time": stamp,
    }
    for name, column in columns.items():
        with open(os.path.join(out, name + ".npy"), "wb") as f:
            np.save(f, column)
            f.flush()
            os.fsync(f.fileno())
    return int(counts.max())


def usual(df, out):
    df["user"], users = pd.factorize(df["userId"], sort=True)
    df["item"], items = pd.factorize(df["movieId"], sort=True)
    df["action"] = (2 * df["rating"] - 1).astype(np.uint16)
    df = df.sort_values(["user", "timestamp"], kind="stable")
    longest = write_columns(out, users, items, df["user"].to_numpy(), df["item"].to_numpy(),
                            df["action"].to_numpy(), df["timestamp"].to_numpy())
    return len(users), longest


def array(df, out):
    user, users = pd.factorize(df["userId"], sort=True)
    item, items = pd.factorize(df["movieId"], sort=True)
    action = (2 * df["rating"].to_numpy() - 1).astype(np.uint16)
    stamp = df["timestamp"].to_numpy()
    low = stamp.min()
    # User and time in one integer: a stable argsort of it is a radix or tim sort.
    order = np.argsort(user.astype(np.int64) * (int(stamp.max()) - int(low) + 1) + (stamp - low),
                       kind="stable")
    longest = write_columns(out, users, items, user[order], item[order], action[order], stamp[order])
    return len(users), longest


def main():
    path, out, how = sys.argv[1:4]
    os.makedirs(out, exist_ok=True)
    start, start_cpu = time.perf_counter(), cpu_seconds()
    df = pd.read_parquet(path, engine="pyarrow")
    events = len(df)
    n_users, longest = (usual if how == "usual" else array)(df, out)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"users": n_users, "events": events, "max_len": longest,
                      "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
                      "peak_bytes": peak}))


main()
