"""The program `hstu`, run as a process: its options from Python's, its lines, its failures as exceptions.

The program parses and checks the options, so there is no second list of them here."""
from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import Any, Dict, Iterator, List, Mapping, Optional

from . import _library as _l

_REPEATED = ("set", "input", "name", "shadow", "allow_host")  # given once for each value; other lists are joined by commas
_NOT_THE_LOG = ("hstu ", "hstu: ", "Try 'hstu", "debug: ")


def path() -> str:
    """The program: HSTU_PROGRAM; beside the library of HSTU_LIBRARY; in this package; on PATH."""
    library, here = os.environ.get("HSTU_LIBRARY"), os.path.dirname(os.path.abspath(__file__))
    beside = os.path.dirname(os.path.abspath(library)) if library else here
    for place in (os.environ.get("HSTU_PROGRAM"), os.path.join(beside, "hstu"), os.path.join(beside, "..", "bin", "hstu"),
                  os.path.join(here, "bin", "hstu"), shutil.which("hstu")):
        if place and os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    raise ImportError("the program hstu is not in this package; install it with 'pip install ./python', or set HSTU_PROGRAM")


def is_frame(value: Any) -> bool:
    """Whether it is a table of pandas, polars, pyarrow or DuckDB."""
    return hasattr(value, "columns") and any(hasattr(value, f"{to}_parquet") for to in ("write", "to", "sink")) or \
        type(value).__module__.split(".")[0] == "pyarrow" and hasattr(value, "to_batches")


def _write_frame(frame: Any, path: str, is_csv: bool) -> str:
    """The frame as a file: CSV where pandas has no pyarrow."""
    if hasattr(frame, "collect") and not hasattr(frame, "write_csv"):
        frame = frame.collect()  # polars, lazy
    if hasattr(frame, "to_batches"):
        frame = frame.to_pandas()
    if not is_csv:
        try:
            if hasattr(frame, "write_parquet"):
                frame.write_parquet(f"{path}.parquet", compression="uncompressed")
            else:
                frame.to_parquet(f"{path}.parquet", compression=None, index=False)
            return f"{path}.parquet"
        except ImportError:
            pass
    if hasattr(frame, "write_csv"):
        frame.write_csv(f"{path}.csv")
    else:
        frame.to_csv(f"{path}.csv", index=False)
    return f"{path}.csv"


@contextlib.contextmanager
def files(options: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """The options with files for frames: Parquet, which keeps types and is fast, where the command reads it."""
    with tempfile.TemporaryDirectory(prefix="hstu-") as folder:
        yield {name: _write_frame(value, os.path.join(folder, name), name == "recommendations") if is_frame(value) else value
               for name, value in options.items()}


def _text(value: Any) -> str:
    value = os.fspath(value) if hasattr(value, "__fspath__") else value
    if isinstance(value, Mapping):
        return ",".join(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        flag = ("-" if len(name) == 1 else "--") + name.replace("_", "-")
        if name == "set" and isinstance(value, Mapping):
            value = [f"{k}={v!r}" for k, v in value.items()]
        if value is True:
            yield flag
        elif name in _REPEATED and isinstance(value, (list, tuple)):
            yield from (f"{flag}={_text(v)}" for v in value)
        elif value is not None and value is not False:
            yield f"{flag}={_text(value)}"


def is_notebook() -> bool:
    return "ipykernel" in sys.modules and type(sys.stdout).__module__.startswith("ipykernel")


def is_shown(progress: Optional[bool]) -> bool:
    """Whether progress is shown: as told, or where somebody looks."""
    return progress if progress is not None else is_notebook() or sys.stderr.isatty()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.terminate()


class Process:
    """`hstu COMMAND ARGUMENTS OPTIONS` as a context; leaving it by an exception interrupts the program and waits for its end.

    The program is in a session of its own, so that Ctrl-C reaches it once: from here.  A thread
    reads its stderr: the log goes to ours, the rest is the reason of a failure."""

    def __init__(self, command: str, arguments: List[Any], options: Mapping[str, Any], progress: bool = True) -> None:
        self.command, self.owner = command, os.getpid()
        self.log: collections.deque[str] = collections.deque(maxlen=100)
        words = [_l.text_bytes(w, "option") for w in (*map(_text, arguments), *_words(options))]
        env = dict(os.environ, HSTU_LOG=os.environ.get("HSTU_LOG") or ("info" if progress else "warn"))
        self.process = subprocess.Popen([path(), command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=env, start_new_session=True)
        self.poll, self.buffer = select.poll(), b""
        self.poll.register(self.process.stdout, select.POLLIN)  # type: ignore[arg-type]
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        weakref.finalize(self, _end, self.process, self.owner)  # what nobody closed ends with Python

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for raw in lines:
                self.log.append(raw.decode("utf-8", "replace").rstrip("\n"))
                self.on_log(self.log[-1])

    def on_log(self, line: str) -> None:
        if not line.startswith(_NOT_THE_LOG):
            print(line, file=sys.stderr)

    def events(self) -> Iterator[Dict[str, Any]]:
        """The JSON objects of its stdout; its failure at the end."""
        for line in iter(self._line, b""):
            yield json.loads(line)
        self.process.wait()
        self.raise_failure()

    def _line(self) -> bytes:
        """The next line, or none.  A signal may reach another thread, which does not wake this one: it looks."""
        assert self.process.stdout is not None
        while b"\n" not in self.buffer:
            if os.getpid() != self.owner:
                raise _l.UsageError(f"this process was forked by a callback of {self.command}(): the program goes on with its "
                                    "parent alone; end the child with os._exit()")
            if self.poll.poll(100):
                some = os.read(self.process.stdout.fileno(), 1 << 16)
                self.buffer += some
                if not some:
                    break
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def raise_failure(self) -> None:
        code = self.process.returncode
        if code == 0:
            return
        self.reader.join(10)
        start = f"hstu {self.command}: "
        reasons = [line[len(start):] for line in self.log if line.startswith(start)]
        text = reasons[-1] if reasons else "\n".join(list(self.log)[-5:])
        if code < 0:
            text = f"hstu {self.command} was ended by {signal.Signals(-code).name}; its last words: {text or 'none'}"
        text = re.sub(r"'--([a-z][a-z-]*)'", lambda m: f"'{m[1].replace('-', '_')}'", text)  # as they are named here
        is_usage = any(line.startswith("Try 'hstu") for line in self.log)
        raise (_l.UsageError if is_usage else _l.ConfigError if code == 2 else _l.Error)(text)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None and os.getpid() == self.owner:
            self.process.send_signal(number)

    def interrupt(self) -> None:
        """Asks the program to stop, and waits until it has: a run is saved first."""
        assert self.process.stdout is not None
        self.stop(signal.SIGINT)
        self.process.stdout.read()
        self.process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        assert self.process.stdout is not None
        if kind is not None and os.getpid() == self.owner:  # a child of fork() has no say
            self.interrupt()
        self.process.stdout.close()


def main() -> None:
    """The command `hstu` of the package."""
    os.execv(path(), ["hstu", *sys.argv[1:]])
