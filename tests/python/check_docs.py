#!/usr/bin/env python3
"""The examples of the package's docstrings, run by doctest.

usage: check_docs.py FOLDER

Some need pandas.  The last line printed is "ok"."""
import doctest
import importlib
import os
import sys

import hstu
import hstu._program

FOLDER = sys.argv[1]
PARTS = ("hstu", "hstu.commands", "hstu.data", "hstu.model", "hstu.serving", "hstu.table")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    data, run = f"{FOLDER}/data", f"{FOLDER}/trained"
    synth = {"out": data, "users": 200, "items": 100, "mean_len": 20, "seed": 1}
    with hstu._program.Process("synth", [], {**synth, "json": True}, progress=False) as p:
        list(p.events())
    hstu.train(data=data, out=run, epochs=1, device="cpu", progress=False)
    failed = tried = 0
    for name in PARTS:
        names = {"hstu": hstu, "folder": FOLDER, "data": data, "run": run}
        done = doctest.testmod(importlib.import_module(name), extraglobs=names)
        failed, tried = failed + done.failed, tried + done.attempted
    if failed or tried < 20:
        sys.exit(f"check_docs.py: {failed} of {tried} examples failed")
    print(f"{tried} examples\nok")


main()
