#!/usr/bin/env python3
"""Event files of `hstu train --tensorboard` read by TensorBoard itself.

usage: events.py RUN DIR

Every scalar must be the number of RUN/log.jsonl, as float32, at its step.  Needs the package
tensorboard; the last line printed is "ok"."""
import json
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run, folder = sys.argv[1:]


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


wanted = {}
for line in map(json.loads, open(f"{run}/log.jsonl")):
    kind, step = line["event"], line["step"]
    if kind not in ("epoch", "eval", "done"):
        continue
    put = lambda tag, at, value: wanted.setdefault(tag, []).append((at, single(value)))
    if kind != "done":
        put("losses/ar_loss", step, line["loss"])
        put("loss/train", step, line["loss"])
        put("lr", step, line["lr"])
        put("speed/tokens_per_s", step, line["tokens_per_s"])
    prefix, at = {"epoch": ("eval_epoch", line["epoch"]), "eval": ("eval", step), "done": ("test", step)}[kind]
    for key, value in line.items():
        if "@" in key or key in ("mrr", "auc"):
            put(f"{prefix}/{key}", at, value)

read = EventAccumulator(folder, size_guidance={"scalars": 0})
read.Reload()
tags = set(read.Tags()["scalars"])
if tags != set(wanted):
    sys.exit(f"events.py: tags differ: {sorted(tags ^ set(wanted))}")
for tag, values in wanted.items():
    got = [(e.step, e.value) for e in read.Scalars(tag)]
    if tag.startswith("test/"):  # a run that was resumed ended before, too; its log keeps the last end
        got = got[-1:]
    if got != values:
        sys.exit(f"events.py: {tag}: {got}, in the log {values}")
print(len(wanted), "tags")
print("ok")
