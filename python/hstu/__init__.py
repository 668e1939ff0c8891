"""Generative recommenders (HSTU) in C and CUDA, from Python.

Dataset opens prepared data, Model a trained run, train() trains one.  Failures are exceptions, hstu.Error and its
subclasses, with the reason in words.  Any thread may use any object and close it: a closed one raises UsageError."""
from ._library import (ConfigError, DeviceError, Error, FormatError, NumericError, UnsupportedError, UsageError, library_version)
from .data import Dataset
from .model import Model
from .table import Table, TableCollection
from .training import train

__version__ = "0.1.0"
__all__ = ["ConfigError", "Dataset", "DeviceError", "Error", "FormatError", "Model", "NumericError", "Table", "TableCollection",
           "UnsupportedError", "UsageError", "library_version", "train"]
