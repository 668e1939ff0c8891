#!/usr/bin/env python3
"""Parquet files of three writers, read by `hstu prep parquet` and compared with what Python reads.

matrix.py HSTU FOLDER [--golden OUT | --seeds OUT]

Writes small synthetic tables with pyarrow, polars and duckdb over types, encodings, compressions,
nulls, page versions, row-group sizes and dictionaries; each is read back by pyarrow, its events are
sorted in Python, and the result must be what --emit-csv writes, exactly.  Needs pyarrow, polars and
duckdb; prints one line, or the cases that differ.  --golden writes the few files under tests/parquet
with what Python read of them, as csv; --seeds the seeds under tests/fuzz/seeds.
"""
import csv
import datetime
import itertools
import json
import os
import random
import subprocess
import sys
import uuid

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

HSTU, FOLDER = os.path.abspath(sys.argv[1]), sys.argv[2]
ROWS = 700
BASE_TIME = 1_600_000_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
csv.field_size_limit(1 << 30)


def ids(kind, n, rng, n_different):
    """A column of ids as a pyarrow array."""
    number = [rng.randrange(n_different) for _ in range(n)]
    if kind == "text":
        return pa.array(["id \u00e9-%d" % (k * 37) for k in number])
    if kind == "large_text":
        return pa.array(["prefix/shared/%06d" % k for k in number], pa.large_string())
    if kind == "category":
        return pa.array(["c%d" % k for k in number]).dictionary_encode()
    if kind == "uuid":
        values = [uuid.UUID(int=(k + 1) * 0x1234567890ABCDEF1234567).bytes for k in number]
        return pa.array(values, pa.uuid())
    if kind == "double":
        return pa.array([float(k) for k in number], pa.float64())
    wide = {"int64": 2**61, "uint32": 4_000_000_000, "uint64": 2**62, "int16": 100, "int32": 2**30,
            "int8": 0, "uint8": 100, "uint16": 60_000}[kind]
    signed = -1 if kind.startswith("int") else 1
    return pa.array([(wide - k) * (signed if k % 2 else 1) if wide else k % 100 - 50 for k in number],
                    getattr(pa, kind)())


def times(kind, n, rng):
    seconds = [BASE_TIME + rng.randrange(5_000) for _ in range(n)]
    if kind == "seconds":
        return pa.array(seconds, pa.int64())
    if kind == "int32":
        return pa.array(seconds, pa.int32())
    if kind == "date":
        return pa.array([s // 86400 + k % 50 for k, s in enumerate(seconds)], pa.int32()).cast(pa.date32())
    per = {"ms": 1000, "us": 10**6, "ns": 10**9}[kind[:2]]
    zone = "UTC" if kind.endswith("z") else None
    return pa.array([s * per + rng.randrange(per) for s in seconds], pa.timestamp(kind[:2], zone))


def actions(kind, n, rng):
    if kind == "bool":
        return pa.array([rng.random() < 0.3 for _ in range(n)])
    if kind in ("float32", "float64"):
        return pa.array([rng.randrange(1, 11) / 2 for _ in range(n)], getattr(pa, kind)())
    return pa.array([rng.randrange(1, 6) for _ in range(n)], getattr(pa, kind)())


KIND_OPTION = {"bool": "code", "float32": "half-stars", "float64": "half-stars"}


def make_table(rng, user="int64", item="int64", time="seconds", action="int32", n=ROWS):
    columns = {"user_id": ids(user, n, rng, 23), "item_id": ids(item, n, rng, 90),
               "timestamp": times(time, n, rng), "rating": actions(action, n, rng),
               # Nobody asks for these: nulls, structs and maps beside the events do no harm.
               "note": pa.array([None if k % 3 else "n%d" % k for k in range(n)]),
               "extra": pa.array([{"a": k, "b": [k]} for k in range(n)])}
    return pa.table(columns)


def make_lists(rng, user="int64", item="int64", time="seconds", action="int32", n=60):
    """A row a user; null lists and empty lists have no events."""
    lengths = [rng.choice([0, 1, 2, 3, 40]) for _ in range(n)]
    is_null = [k == 0 and rng.random() < 0.5 for k in lengths]

    def nest(flat):
        at, out = 0, []
        values = flat.to_pylist() if not pa.types.is_timestamp(flat.type) else list(flat)
        for length, null in zip(lengths, is_null):
            out.append(None if null else values[at:at + length])
            at += length
        kind = flat.type if not pa.types.is_dictionary(flat.type) else flat.type.value_type
        return pa.array(out, pa.list_(kind))

    total = sum(lengths)
    return pa.table({"user_id": ids(user, n, rng, 1000), "item_id": nest(ids(item, total, rng, 90)),
                     "timestamp": nest(times(time, total, rng)), "rating": nest(actions(action, total, rng))})


def plain(value):
    """An id as hstu writes it."""
    if isinstance(value, float):
        return int(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def ticks(values):
    """Nanoseconds since 1970 of a column of times, and whether they are timestamps or dates."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        per = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
        return [v * per for v in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(kind):
        return [v * 86400 * 10**9 for v in values.cast(pa.int32()).to_pylist()]
    return [v * 10**9 for v in values.to_pylist()]


def ticks_a_second(stamps):
    """The coarsest ticks that keep all times."""
    return next(per for per in (1, 10**3, 10**6, 10**9) if all(t % (10**9 // per) == 0 for t in stamps))


def flatten(table):
    """The columns of events, with lists exploded as the rule says."""
    columns = {name: table[name].combine_chunks() for name in ("user_id", "item_id", "timestamp", "rating")}
    is_list = {name: pa.types.is_list(c.type) or pa.types.is_large_list(c.type) for name, c in columns.items()}
    if any(is_list.values()):
        lead = next(c for name, c in columns.items() if is_list[name])
        counts = [len(v) if v.is_valid else 0 for v in lead]
        parents = pa.array([row for row, n in enumerate(counts) for _ in range(n)], pa.int64())
        for name, c in columns.items():
            columns[name] = c.flatten() if is_list[name] else c.take(parents)
    return columns


def expected(table, action_kind):
    columns = flatten(table)
    stored = {"half-stars": lambda v: round(2 * v) - 1, "stars": lambda v: v - 1, "code": int}[action_kind]
    histories = {}
    rows = zip(columns["user_id"].to_pylist(), columns["item_id"].to_pylist(), ticks(columns["timestamp"]),
               columns["rating"].to_pylist())
    for user, item, time, rating in rows:
        histories.setdefault(plain(user), []).append((time, plain(item), stored(rating)))
    for events in histories.values():
        events.sort(key=lambda e: e[0])
    return histories


def read_csv(path, is_number):
    histories = {}
    with open(path, newline="", encoding="utf-8") as f:
        for row in itertools.islice(csv.reader(f), 1, None):
            user = int(row[0]) if is_number else row[0]
            items, ratings, stamps = (json.loads(text) for text in row[1:])
            histories[user] = list(zip(stamps, items, ratings))
    return histories


def prep(path, action_kind, extra=()):
    out = os.path.join(FOLDER, "out")
    emitted = os.path.join(FOLDER, "out.csv")
    run = subprocess.run([HSTU, "prep", "parquet", "--input", path, "--out", out, "--emit-csv", emitted,
                          "--action-col", "rating", "--action-kind", action_kind, "--json", *extra],
                         capture_output=True, text=True, env={**os.environ, "HSTU_LOG": "quiet"})
    return run, emitted


failures = []
n_cases = 0


def read_back(path):
    """As pyarrow reads it, else duckdb: pyarrow 26 cannot read some of duckdb's DELTA pages."""
    columns = ["user_id", "item_id", "timestamp", "rating"]
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except OSError:
        return duckdb.sql("SELECT %s FROM '%s'" % (", ".join(columns), path)).to_arrow_table()


def compare(name, path, action_kind, extra=(), wanted=None):
    """One file: hstu's histories against Python's."""
    global n_cases
    n_cases += 1
    wanted = expected(read_back(path) if wanted is None else wanted, action_kind)
    run, emitted = prep(path, action_kind, extra)
    if run.returncode != 0:
        failures.append("%s: exit code %d: %s" % (name, run.returncode, run.stderr.strip()))
        return
    got = read_csv(emitted, not isinstance(next(iter(wanted)), str))
    per = ticks_a_second([e[0] for events in wanted.values() for e in events])
    wanted = {u: [(t * per // 10**9, i, a) for t, i, a in events] for u, events in wanted.items()}
    if wanted == got:
        return
    user = next((u for u in wanted if wanted[u] != got.get(u)), None)
    failures.append("%s: the events differ; user %r: wanted %r, got %r" %
                    (name, user, wanted.get(user, [])[:5], got.get(user, [])[:5]))


def pyarrow_cases(rng):
    path = os.path.join(FOLDER, "in.parquet")
    base = {"compression": "none"}
    for compression, version, dictionary, group in itertools.product(
            ("none", "snappy", "zstd", "gzip"), ("1.0", "2.0"), (True, False), (ROWS, 97)):
        kinds = dict(user=rng.choice(["int64", "text", "int32", "uint64", "uint16"]),
                     item=rng.choice(["int64", "text", "large_text", "uint32", "category", "int8"]),
                     time=rng.choice(["seconds", "int32", "ms", "us", "nsz", "date"]),
                     action=rng.choice(["int32", "int8", "float32", "float64", "bool", "uint64"]))
        for make in (make_table, make_lists):
            options = dict(compression=compression, data_page_version=version, use_dictionary=dictionary,
                           row_group_size=group if make is make_table else max(7, group // 20),
                           data_page_size=rng.choice([64, 1000, 1 << 20]), write_batch_size=rng.choice([16, 1024]),
                           write_page_checksum=rng.random() < 0.5, write_statistics=rng.random() < 0.5,
                           version=rng.choice(["2.4", "2.6"]) if kinds["time"][:2] != "ns" else "2.6")
            pq.write_table(make(rng, **kinds), path, **options)
            compare("pyarrow %s %s %s" % (make.__name__, kinds, options), path,
                    KIND_OPTION.get(kinds["action"], "stars"))
    encodings = [("int64", "DELTA_BINARY_PACKED", "user_id"), ("int32", "DELTA_BINARY_PACKED", "user_id"),
                 ("uint32", "DELTA_BINARY_PACKED", "user_id"), ("text", "DELTA_LENGTH_BYTE_ARRAY", "user_id"),
                 ("large_text", "DELTA_BYTE_ARRAY", "user_id"), ("text", "DELTA_BYTE_ARRAY", "user_id"),
                 ("uuid", "PLAIN", "user_id"), ("uuid", "DELTA_BYTE_ARRAY", "user_id"),
                 ("int64", "BYTE_STREAM_SPLIT", "user_id"), ("double", "PLAIN", "user_id")]
    for (kind, encoding, column), version, compression, size in itertools.product(
            encodings, ("1.0", "2.0"), ("none", "zstd"), (100, 1 << 20)):
        other = {"item_id": "PLAIN", "timestamp": "DELTA_BINARY_PACKED", "note": "DELTA_LENGTH_BYTE_ARRAY",
                 "rating": rng.choice(["PLAIN", "BYTE_STREAM_SPLIT"])}
        pq.write_table(make_table(rng, user=kind, item="text", time="us", action="float64"), path, use_dictionary=False,
                       column_encoding={**other, column: encoding}, data_page_version=version,
                       compression=compression, data_page_size=size, row_group_size=rng.choice([100, 1000]))
        compare("pyarrow %s %s v%s %s" % (kind, encoding, version, compression), path, "half-stars")
    pq.write_table(make_table(rng, action="bool"), path, use_dictionary=False, column_encoding={"rating": "RLE"})
    compare("pyarrow boolean RLE", path, "code")
    pq.write_table(make_table(rng, time="ns"), path, use_deprecated_int96_timestamps=True)
    compare("pyarrow int96", path, "stars")
    pq.write_table(make_lists(rng), path, use_compliant_nested_type=False)
    compare("pyarrow lists by their old names", path, "stars")
    required = make_table(rng).select(["user_id", "item_id", "timestamp", "rating"])
    schema = pa.schema([f.with_nullable(False) for f in required.schema])
    pq.write_table(required.cast(schema), path, **base)
    compare("pyarrow required columns", path, "stars")
    basket = make_lists(rng)
    pq.write_table(basket.set_column(2, "timestamp", times("ms", len(basket), rng)), path)
    compare("pyarrow baskets: a list of items, one time", path, "stars")
    parts = os.path.join(FOLDER, "parts")
    os.makedirs(os.path.join(parts, "day=1"), exist_ok=True)
    for part in ("a.parquet", "b.parquet", "day=1/c.parquet"):
        pq.write_table(make_table(rng), os.path.join(parts, part))
    pq.write_table(make_table(rng).slice(0, 0), os.path.join(parts, "0-empty.parquet"))
    with open(os.path.join(parts, "_SUCCESS"), "w"):
        pass
    compare("pyarrow parts", parts, "stars")
    holes = make_table(rng, user="text", item="int32")
    is_there = [k % 7 != 3 for k in range(len(holes))]
    users = [u if k else None for u, k in zip(holes["user_id"].to_pylist(), is_there)]
    for version, dictionary in itertools.product(("1.0", "2.0"), (True, False)):
        pq.write_table(holes.set_column(0, "user_id", pa.array(users)), path, data_page_version=version,
                       use_dictionary=dictionary, data_page_size=300)
        compare("pyarrow nulls skipped", path, "stars", ["--skip-bad", "1000"], wanted=holes.filter(pa.array(is_there)))
    ratings = [r if k else None for r, k in zip(make_table(rng)["rating"].to_pylist(), is_there)]
    pq.write_table(holes.set_column(holes.column_names.index("rating"), "rating", pa.array(ratings)), path)
    run = subprocess.run([HSTU, "prep", "parquet", "--input", path, "--out", FOLDER + "/unknown", "--json"],
                         capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["unknown_actions"] == is_there.count(False), run.stdout


def polars_cases(rng):
    path = os.path.join(FOLDER, "in.parquet")
    for compression, statistics, group in itertools.product(
            ("uncompressed", "snappy", "zstd", "gzip"), (True, False), (None, 64)):
        for make in (make_table, make_lists):
            kinds = dict(user=rng.choice(["int64", "text", "uint32"]), item=rng.choice(["int64", "text"]),
                         time=rng.choice(["seconds", "ms", "us", "ns", "date"]),
                         action=rng.choice(["int32", "float64", "bool"]))
            table = make(rng, **kinds)
            if make is make_table:
                table = table.drop_columns(["extra"])
            pl.from_arrow(table).write_parquet(path, compression=compression, statistics=statistics,
                                               row_group_size=group,
                                               data_page_size=rng.choice([None, 256]))
            compare("polars %s %s %s %s %s" % (make.__name__, kinds, compression, statistics, group), path,
                    KIND_OPTION.get(kinds["action"], "stars"))


def duckdb_cases(rng):
    path = os.path.join(FOLDER, "in.parquet")
    for compression, group, version in itertools.product(
            ("uncompressed", "snappy", "zstd", "gzip"), (2048, 122880), ("V1", "V2")):
        for make in (make_table, make_lists):
            kinds = dict(user=rng.choice(["int64", "text", "uint32", "int16"]), item=rng.choice(["int64", "text"]),
                         time=rng.choice(["seconds", "ms", "us", "ns", "date"]),
                         action=rng.choice(["int32", "float64", "float32", "bool"]))
            table = make(rng, **kinds, n=3000 if make is make_table else 200)
            if make is make_table:
                table = table.drop_columns(["extra"])
            events = table  # found by its name
            duckdb.sql("COPY events TO '%s' (FORMAT parquet, COMPRESSION %s, ROW_GROUP_SIZE %d, PARQUET_VERSION %s)"
                       % (path, compression, group, version))
            compare("duckdb %s %s %s %s %s" % (make.__name__, kinds, compression, group, version), path,
                    KIND_OPTION.get(kinds["action"], "stars"))


def write_golden(out):
    """A file of each writer with all it does by itself, and what Python reads of it."""
    rng = random.Random(7)
    big = dict(compression="snappy", data_page_size=256, write_page_checksum=True)
    small = 40
    files = {
        "pyarrow_v1": lambda p: pq.write_table(make_table(rng, time="ms", action="float64", n=small), p, **big),
        "pyarrow_v2": lambda p: pq.write_table(make_table(rng, user="text", time="us", n=small), p,
                                               data_page_version="2.0", compression="zstd", row_group_size=50),
        "pyarrow_delta": lambda p: pq.write_table(
            make_table(rng, user="text", item="large_text", n=small), p, use_dictionary=False, compression="none",
            column_encoding={"user_id": "DELTA_LENGTH_BYTE_ARRAY", "item_id": "DELTA_BYTE_ARRAY",
                             "timestamp": "DELTA_BINARY_PACKED", "rating": "DELTA_BINARY_PACKED",
                             "note": "PLAIN"}),
        "pyarrow_lists": lambda p: pq.write_table(make_lists(rng, time="ns", action="float32", n=20), p,
                                                  compression="gzip", row_group_size=9),
        "polars": lambda p: pl.from_arrow(make_table(rng, item="text", time="us", n=small).drop_columns(["extra"]))
        .write_parquet(p, row_group_size=50),
        "polars_lists": lambda p: pl.from_arrow(make_lists(rng, user="text", n=20)).write_parquet(p, compression="snappy"),
        "duckdb_v1": lambda p: write_duckdb(make_table(rng, user="text", time="date", n=small), p, "V1"),
        "duckdb_v2": lambda p: write_duckdb(make_table(rng, item="text", time="us", action="bool", n=small), p, "V2"),
        "duckdb_lists": lambda p: write_duckdb(make_lists(rng, n=20), p, "V2"),
    }
    for name, write in files.items():
        path = os.path.join(out, name + ".parquet")
        write(path)
        columns = flatten(pq.read_table(path))
        stamps = ticks(columns["timestamp"])
        per = ticks_a_second(stamps)
        with open(os.path.join(out, name + ".csv"), "w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f, lineterminator="\n")
            writer.writerow(["user_id", "item_id", "timestamp", "rating"])
            for row in zip(columns["user_id"].to_pylist(), columns["item_id"].to_pylist(), stamps,
                           columns["rating"].to_pylist()):
                writer.writerow([row[0], row[1], row[2] * per // 10**9, int(row[3]) if isinstance(row[3], bool) else row[3]])


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def delta(values):
    """DELTA_BINARY_PACKED of up to 33 values: one block, of which one miniblock of 16 bits is used."""
    steps = [b - a for a, b in zip(values, values[1:])]
    least = min(steps, default=0)
    packed = b"".join((s - least).to_bytes(2, "little") for s in steps).ljust(64, b"\0")
    zigzag = [(v << 1) ^ (v >> 63) for v in (values[0], least)]
    return (varint(128) + varint(4) + varint(len(values)) + varint(zigzag[0]) + varint(zigzag[1]) +
            bytes([16, 0, 0, 0]) + packed)


def write_seeds(out):
    """Small files without compression for fuzz_parquet, and pages for fuzz_parquet_decode."""
    rng = random.Random(5)
    files, pages = os.path.join(out, "parquet"), os.path.join(out, "parquet_decode")
    os.makedirs(files, exist_ok=True)
    os.makedirs(pages, exist_ok=True)
    few = dict(compression="none", store_schema=False, write_statistics=False)
    columns = ["user_id", "item_id", "timestamp", "rating"]
    small = lambda **kinds: make_table(rng, n=9, **kinds).select(columns)
    pq.write_table(small(item="text"), os.path.join(files, "dictionary"), **few)
    pq.write_table(small(user="text", action="bool"), os.path.join(files, "plain_v2"), use_dictionary=False,
                   data_page_version="2.0", **few)
    pq.write_table(small(user="large_text", item="text", time="us"), os.path.join(files, "delta"), use_dictionary=False,
                   column_encoding={"user_id": "DELTA_BYTE_ARRAY", "item_id": "DELTA_LENGTH_BYTE_ARRAY",
                                    "timestamp": "DELTA_BINARY_PACKED", "rating": "BYTE_STREAM_SPLIT"}, **few)
    for version in ("1.0", "2.0"):
        pq.write_table(make_lists(rng, n=5), os.path.join(files, "lists_v" + version[0]), data_page_version=version,
                       row_group_size=3, **few)
    for compression in ("snappy", "zstd", "gzip"):
        pq.write_table(small(time="ms"), os.path.join(files, compression), write_page_checksum=True,
                       **{**few, "compression": compression})
    pq.write_table(small(user="uuid", time="ns"), os.path.join(files, "int96"), use_deprecated_int96_timestamps=True, **few)
    pl.from_arrow(small()).write_parquet(os.path.join(files, "polars"), compression="uncompressed", statistics=False)
    write_duckdb(small(), os.path.join(files, "duckdb"), "V2")
    texts = [b"alpha", b"alphabet", b"beta"]
    seeds = {
        "ints": bytes([0, 2]) + b"".join(k.to_bytes(8, "little") for k in range(5)),
        "texts": bytes([0, 6]) + b"".join(len(t).to_bytes(4, "little") + t for t in texts),
        "booleans": bytes([3, 0]) + (4).to_bytes(4, "little") + bytes([20, 1, 3, 0xA5]),
        "indices": bytes([8, 1]) + bytes([10, 40, 7, 1, 3]) + bytes(range(10)),
        "deltas": bytes([5, 2]) + delta([5, 9, -3, 70, 70]),
        "lengths": bytes([6, 6]) + delta([len(t) for t in texts]) + b"".join(texts),
        "prefixes": bytes([7, 6]) + delta([0, 5, 0]) + delta([5, 3, 4]) + b"alphabetbeta",
        "split": bytes([9, 5]) + bytes(range(32)),
    }
    for name, content in seeds.items():
        with open(os.path.join(pages, name), "wb") as f:
            f.write(content)


def write_duckdb(table, path, version):
    if "extra" in table.column_names:
        table = table.drop_columns(["extra"])
    events = table  # found by its name
    duckdb.sql("COPY events TO '%s' (FORMAT parquet, PARQUET_VERSION %s)" % (path, version))


def main():
    os.makedirs(FOLDER, exist_ok=True)
    if len(sys.argv) > 4 and sys.argv[3] == "--golden":
        write_golden(sys.argv[4])
        return 0
    if len(sys.argv) > 4 and sys.argv[3] == "--seeds":
        write_seeds(sys.argv[4])
        return 0
    rng = random.Random(20)
    pyarrow_cases(rng)
    polars_cases(rng)
    duckdb_cases(rng)
    for line in failures[:20]:
        print(line)
    print("%d files of pyarrow %s, polars %s and duckdb %s, %d differ" %
          (n_cases, pa.__version__, pl.__version__, duckdb.__version__, len(failures)))
    return 1 if failures else 0


sys.exit(main())
