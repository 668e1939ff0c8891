#!/usr/bin/env python3
"""Runs the notebooks of examples/notebooks from the repository's root; one whose data is missing is skipped.

usage: check_notebooks.py FOLDER [--write]      --write: keeps what they print and draw

The last line printed is "ok"."""
import glob
import os
import sys

import nbclient
import nbformat

FOLDER = os.path.abspath(sys.argv[1])
SHARED = os.path.abspath(os.environ.get("SHARED", "../shared"))


def main():
    os.environ["ML_100K"] = os.environ.get("ML_100K", f"{SHARED}/data/ml-100k")
    for path in sorted(glob.glob("examples/notebooks/*.ipynb")):
        if "movielens" in path and not os.path.exists(os.environ["ML_100K"]):
            print(f"skipped: {path}, as {os.environ['ML_100K']} is not there")
            continue
        os.environ["FOLDER"] = os.path.join(FOLDER, os.path.basename(path))
        os.makedirs(os.environ["FOLDER"])
        notebook = nbformat.read(path, as_version=4)
        try:
            nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
        except nbclient.exceptions.CellExecutionError as e:
            if "no HTTP server" not in str(e):
                raise
            print(f"skipped: {path}, as this build has no HTTP server")
            continue
        drawn = sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
        if drawn != 1 or os.path.getsize(path) > 60000:
            sys.exit(f"check_notebooks.py: {path}: {drawn} pictures, {os.path.getsize(path)} bytes")
        if "--write" in sys.argv:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
            nbformat.write(notebook, path)
        print(f"{path}: ran")
    print("ok")


main()
