"""Generative recommenders (HSTU) in C and CUDA, from Python.

prep() makes a data set of events, train() a run, evaluate() and compare() judge runs,
serve() starts a server; Dataset and Model open what is there.  Failures are
exceptions, hstu.Error and its subclasses, with the reason in words.  Any thread may use any object and close it: a closed one
raises UsageError."""
from ._library import (ConfigError, DeviceError, Error, FormatError, NumericError, UnsupportedError, UsageError, library_version)
from .commands import Difference, Evaluation, Run, RunSummary, compare, evaluate, prep, train
from .data import Dataset
from .model import Model
from .serving import Server, serve
from .table import Table, TableCollection

__version__ = "0.1.0"
__all__ = ["ConfigError", "Dataset", "DeviceError", "Difference", "Error", "Evaluation", "FormatError", "Model", "NumericError",
           "Run", "RunSummary", "Server", "Table", "TableCollection", "UnsupportedError", "UsageError", "compare", "evaluate",
           "library_version", "prep", "serve", "train"]
