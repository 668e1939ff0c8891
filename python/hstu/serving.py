"""A server as a context manager."""
from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Optional

from . import _library as _l
from ._library import Path
from ._program import Process

_START_S, _STOP_S = 600, 60


class Server(Process):
    """`hstu serve`, ready to answer at .url; close() or leaving the context stops it.  .log: its newest lines.

    >>> with hstu.serve(run, data=data, device="cpu") as server:
    ...     answer = server.request("v1/recommend", {"user": 7, "top_k": 3})
    >>> len(answer["items"])
    3
    """
    url: Optional[str] = None

    def __init__(self, *runs: Path, log: bool = False, **options: Any) -> None:
        self.is_ready, self.is_shown = threading.Event(), log
        super().__init__("serve", list(runs), {"port": 0, **options})
        try:
            end = time.monotonic() + _START_S
            while not self.is_ready.wait(0.1) and self.reader.is_alive() and time.monotonic() < end:
                pass
            if self.url is None:
                self.fail(f"did not start within {_START_S} s" if self.reader.is_alive() else "ended")
        except BaseException:
            self.kill()
            raise

    def on_log(self, line: str) -> None:
        if self.is_shown:
            super().on_log(line)
        if line.startswith("ready: "):
            self.url = line.split()[1]
            self.is_ready.set()

    def fail(self, what: str) -> None:
        """Raises why the server is not there, with its last words."""
        if not self.reader.is_alive():
            self.process.wait(_STOP_S)
            self.raise_failure()
        raise _l.Error(f"the server {what}; its last words: " + "\n".join(list(self.log)[-5:]))

    def request(self, path: str, body: Any = None, *, timeout: float = 60) -> Any:
        """The answer to GET path, or with a body to POST path, both JSON.  An error of the server is hstu.Error."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path.lstrip('/')}", data), timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            with e:
                said = e.read().decode("utf-8", "replace")
            raise (_l.UsageError if 400 <= e.code < 500 else _l.Error)(f"{e.code}: {said.strip()}") from None
        except urllib.error.URLError as e:
            self.reader.join(1)  # its end is not seen at once
            if not self.reader.is_alive():
                self.fail("has ended")
            raise _l.Error(f"{self.url}{path}: {e.reason}") from e
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        self.process.wait(_STOP_S)
        self.process.stdout.close()

    def close(self) -> None:
        """Stops the server, which answers pending requests first; raises Error if it had ended by itself."""
        is_open = self.url is not None
        had_ended, self.url = self.process.poll() is not None, None
        self.stop()
        try:
            self._wait()
        except subprocess.TimeoutExpired:
            self.kill()
        if had_ended and is_open:
            self.fail("ended by itself")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        try:
            self.close()
        except _l.Error:
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"<hstu.Server {self.url or 'closed'}>"


def serve(*runs: Path, data: Optional[Path] = None, log: bool = False, **options: Any) -> Server:
    """Starts `hstu serve` on a free port and waits until it is ready: `with hstu.serve(run, data=data) as server: ...`.

    Options are those of the command: port, host, state, keys, name, split, device, ...  log=True shows its log."""
    return Server(*runs, log=log, data=data, **options)
