"""libhstu.so by ctypes: its functions, its structs, its failures as exceptions.

The library looks handles up and takes turns on one object, so threads, closed objects and forks need no lock here.  What
ctypes would do silently is refused: cut texts at a NUL, and integers to the width of their field."""
from __future__ import annotations

import ctypes
import importlib
import operator
import os
import time
from ctypes import (POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_uint16, c_uint32, c_uint64,
                    c_void_p)
from typing import TYPE_CHECKING, Any, TypeVar, Union

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    Floats = NDArray[numpy.float32]  # a memoryview where numpy is not there

Path = Union[str, "os.PathLike[str]"]
Id = Union[str, int]  # of a user or an item


class Error(Exception):
    """A call failed; the text says why, in words a user can act on."""


class UsageError(Error, ValueError):
    """An argument is wrong."""


class ConfigError(Error, ValueError):
    """A setting is wrong, or config, data and model do not fit together."""


class FormatError(Error):
    """A file is not what it should be."""


class UnsupportedError(Error, NotImplementedError):
    """This build or version cannot do it."""


class DeviceError(Error):
    """A GPU failed or is missing."""


class NumericError(Error, ValueError):
    """A number is not finite, or a loss exploded."""


_BY_STATUS = {1: UsageError, 2: ConfigError, 3: MemoryError, 4: OSError, 5: FormatError, 6: UnsupportedError,
              7: DeviceError, 8: KeyboardInterrupt, 9: NumericError}
for _error in (Error, *Error.__subclasses__()):
    _error.__module__ = "hstu"


class DataInfo(Structure):
    _fields_ = [("users", c_uint64), ("catalogue", c_uint64), ("events", c_uint64), ("time_per_second", c_int64),
                ("contextual_features", c_int32), ("has_text_users", c_int32), ("has_text_items", c_int32)]


class History(Structure):
    _fields_ = [("length", c_uint64), ("item", POINTER(c_uint32)), ("action", POINTER(c_uint16)),
                ("time", POINTER(c_int64))]


class ModelInfo(Structure):
    _fields_ = [("users", c_uint64), ("items", c_uint64), ("parameters", c_int64), ("step", c_uint64), ("dim", c_int32),
                ("item_dim", c_int32), ("n_scores", c_int32), ("is_retrieval", c_int32)]


_SIGNATURES = {
    "hstu_data_open": [POINTER(c_void_p), c_char_p],
    "hstu_data_get_info": [c_void_p, POINTER(DataInfo)],
    "hstu_data_history": [c_void_p, c_uint64, POINTER(History)],
    "hstu_data_copy_history": [c_void_p, c_uint64, c_uint64, c_void_p, c_void_p, c_void_p],
    "hstu_data_find_user": [c_void_p, c_char_p, POINTER(c_uint64)],
    "hstu_data_find_item": [c_void_p, c_char_p, POINTER(c_uint32)],
    "hstu_data_find_action": [c_void_p, c_char_p, POINTER(c_uint16)],
    "hstu_data_item_id": [c_void_p, c_uint32, c_char_p, c_uint64],
    "hstu_data_item_title": [c_void_p, c_uint32, c_char_p, c_uint64],
    "hstu_data_user_id": [c_void_p, c_uint64, c_char_p, c_uint64],
    "hstu_model_open": [POINTER(c_void_p), c_char_p, c_char_p, c_char_p],
    "hstu_model_get_info": [c_void_p, POINTER(ModelInfo)],
    "hstu_model_recommend_by_rules": [c_void_p, c_void_p, c_uint64, c_int32, c_int32, c_char_p, c_void_p, c_void_p],
    "hstu_model_recommend_history_by_rules": [c_void_p, POINTER(History), c_int32, c_int32, c_char_p, c_void_p, c_void_p],
    "hstu_model_score": [c_void_p, c_void_p, c_uint64, c_void_p, c_int32, c_void_p],
    "hstu_model_encode": [c_void_p, c_void_p, c_uint64, c_void_p],
    "hstu_model_item_embeddings": [c_void_p, c_void_p],
    "hstu_model_similar": [c_void_p, c_uint32, c_int32, c_void_p, c_void_p],
}
_OTHERS = {
    "hstu_version": (c_char_p, []),
    "hstu_error": (c_char_p, []),
    "hstu_data_close": (None, [c_void_p]),
    "hstu_model_close": (None, [c_void_p]),
    "hstu_model_data": (c_void_p, [c_void_p]),
    "hstu_model_score_name": (c_char_p, [c_void_p, c_int32]),
}


def _open():
    path = os.environ.get("HSTU_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libhstu.so")
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"{path} cannot be loaded ({e}); install the package with 'pip install ./python', or set "
                          "HSTU_LIBRARY to a libhstu.so") from e
    try:
        for name, args in _SIGNATURES.items():
            getattr(lib, name).argtypes, getattr(lib, name).restype = args, c_int32
        for name, (result, args) in _OTHERS.items():
            getattr(lib, name).argtypes, getattr(lib, name).restype = args, result
    except AttributeError as e:
        raise ImportError(f"{path} is a library of another version ({e}); build it again: 'pip install ./python', or "
                          "'make' for the one of HSTU_LIBRARY") from e
    return lib


lib = _open()


def call(name, *args):
    """Calls a function that can fail."""
    status = getattr(lib, name)(*args)
    if status != 0:
        refuse(status)


def refuse(status):
    """Raises what a call that failed has left."""
    raise _BY_STATUS.get(status, Error)(lib.hstu_error().decode("utf-8", "replace"))


def library_version() -> str:
    return str(lib.hstu_version().decode())


def text_bytes(text, what):
    """The bytes of a text for C, where it would end at the first NUL."""
    try:
        value = text if isinstance(text, bytes) else str(text).encode()
    except UnicodeEncodeError as e:
        raise UsageError(f"{what} {text!r} is not valid Unicode") from e
    if b"\0" in value:
        raise UsageError(f"{what} {text!r} contains a NUL character")
    return value


def path_bytes(path):
    return None if path is None else text_bytes(os.fsencode(path), "path")


def integer(kind, value, what):
    """An integer that fits a field of C."""
    try:
        number = operator.index(value)
    except TypeError as e:
        raise UsageError(f"{what} {value!r} is not an integer") from e
    if kind(number).value != number:
        raise UsageError(f"{what} {number} is out of range: it does not fit {8 * ctypes.sizeof(kind)} bits")
    return number


_Self = TypeVar("_Self", bound="Object")


class Object:
    """An object of the library: a handle, closed once, whoever closes it.  The library refuses a closed one."""
    _handle = c_void_p(1)  # no handle has this value; an open object has one of its own
    _close = None  # the function that closes it

    def close(self) -> None:
        """Closes the object; calls on other threads run to their end, later ones raise UsageError."""
        handle = self.__dict__.pop("_handle", None)  # one of several threads gets it
        if handle:
            self._close(handle)

    __del__ = close

    def __reduce_ex__(self, _):  # of copy, deepcopy and pickle, also by multiprocessing
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it stands for memory of this process; open another")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def in_pieces(n, work):
    """work(first, count) over n things in pieces of about a tenth of a second, so that Ctrl-C is seen between them."""
    first, count = 0, 64
    while True:  # nothing is a piece, too: the library says whether it may be asked
        count, begin = min(count, n - first), time.monotonic()
        work(first, count)
        first += count
        if first == n:
            return
        count *= 2 if time.monotonic() - begin < 0.1 else 1


def text_of(name, handle, number):
    """A text of an item or a user: the buffer grows until it is whole."""
    size = 256
    while True:
        text = ctypes.create_string_buffer(size)
        call(name, handle, number, text, size)
        if len(text.value) < size - 1:
            return text.value.decode("utf-8", "replace")
        size *= 4


def array(values, what):
    """numpy's view of an array of numpy, torch, JAX, ... in host memory, without a copy; None if it is no array."""
    is_numpy = hasattr(values, "__array_interface__")
    if not is_numpy and not hasattr(values, "__dlpack__"):
        return None
    try:
        import numpy
        return numpy.asarray(values) if is_numpy else numpy.from_dlpack(values)
    except ImportError:
        return None
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise UsageError(f"{what}: {e}") from e


def frame(columns, library):
    """A table of pandas or polars of {name: list}."""
    if library not in ("pandas", "polars"):
        raise UsageError(f"a frame of {library!r}: give pandas or polars")
    return importlib.import_module(library).DataFrame(columns)


def floats(shape):
    """Memory for float32 numbers: (what Python sees, its address).  numpy's array where numpy is there."""
    count = 1
    for n in shape:
        count *= n
    try:
        import numpy
    except ImportError:
        memory = (c_float * max(count, 1))()
        view = memoryview(memory).cast("B")[:4 * count]
        return (view.cast("f", list(shape)) if count else view.cast("f")), ctypes.addressof(memory)
    array = numpy.empty(shape, dtype=numpy.float32)
    return array, array.ctypes.data


def numbers(kind, values, what):
    values = [integer(kind, v, what) for v in values]
    return (kind * len(values))(*values)


def reference(value):
    return byref(value)
