#!/usr/bin/env python3
"""Vectors of the titles of ML-1M by the small model inside the wordllama package (pip install wordllama).

    bench/peers/title_vectors.py MOVIES.dat titles.npy

A row for each line of movies.dat, of 256 numbers; the year in brackets is left out, because it is a feature of its own.
"""
import pathlib
import re
import shutil
import sys

import numpy
import wordllama

package = pathlib.Path(wordllama.__file__).parent
# The package looks for its tokenizer in a folder of another name than the one it ships, and downloads it then.
if not (package / "tokenizer").exists():
    shutil.copytree(package / "tokenizers", package / "tokenizer")

lines = pathlib.Path(sys.argv[1]).read_text(encoding="latin-1").splitlines()
titles = [re.sub(r" \(\d{4}\)$", "", line.split("::")[1]) for line in lines]
vectors = wordllama.WordLlama.load().embed(titles, norm=True)
numpy.save(sys.argv[2], vectors.astype("float32"))
print(f"{vectors.shape[0]} titles, {vectors.shape[1]} numbers each")
