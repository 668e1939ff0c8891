#!/usr/bin/env python3
"""What `hstu prep ml-20m` does, in pandas: read, map ratings, sort, group, write.

prep_pandas.py FOLDER OUT lists|array

lists: typed read_csv (no inference), one stable sort over (user, time), groupby().agg(list) as the
reference preprocessors do, and a pickle, which is faster than their to_csv.
array: groups are found with numpy on the sorted column, without groupby, and raw .npy columns are
written, the layout of a .seq file: the best we could do with the tools, and nobody's script.
Prints seconds (imports left out), peak memory and counts as JSON.
"""
import json
import os
import resource
import sys
import time

import numpy as np
import pandas as pd


def read(folder):
    types = {"userId": np.int64, "movieId": np.int64, "rating": np.float32, "timestamp": np.int64}
    return pd.read_csv(os.path.join(folder, "ratings.csv"), dtype=types)


def write_columns(df, movies, out):
    df = df.sort_values(["userId", "timestamp"], kind="stable")
    users = df["userId"].to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], users[1:] != users[:-1])))
    catalogue = np.union1d(movies["movieId"].to_numpy(), df["movieId"].unique())
    columns = {
        "user_id": users[starts],
        "item_id": catalogue,
        "offsets": np.append(starts, len(users)).astype(np.uint64),
        "item": (np.searchsorted(catalogue, df["movieId"].to_numpy()) + 1).astype(np.uint32),
        "action": (2 * df["rating"].to_numpy() - 1).astype(np.uint16),
        "time": df["timestamp"].to_numpy(),
    }
    for name, column in columns.items():
        with open(os.path.join(out, name + ".npy"), "wb") as f:
            np.save(f, column)
            f.flush()
            os.fsync(f.fileno())
    return len(starts), int(np.diff(columns["offsets"]).max())


def write_lists(df, out):
    df["rating"] = (2 * df["rating"] - 1).astype(np.int64)
    df = df.sort_values(["userId", "timestamp"], kind="stable")
    lists = df.groupby("userId", sort=False).agg(list).reset_index()
    lists.to_pickle(os.path.join(out, "processed_seqs.pkl"))
    return len(lists), int(lists["movieId"].apply(len).max())


def main():
    folder, out = sys.argv[1], sys.argv[2]
    os.makedirs(out, exist_ok=True)
    start = time.perf_counter()
    df = read(folder)
    movies = pd.read_csv(os.path.join(folder, "movies.csv"))
    events = len(df)
    if sys.argv[3] == "lists":
        users, longest = write_lists(df, out)
    else:
        users, longest = write_columns(df, movies, out)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"users": users, "events": events, "max_len": longest,
                      "seconds": round(seconds, 3), "peak_bytes": peak}))


main()
