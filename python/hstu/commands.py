"""The commands of the program as functions: prep, train, evaluate, compare.

Keyword options are those of the command by the names of its help, with _ for -: `hstu train --help`, or python -m hstu.  The
command checks them; an unknown one is a UsageError that names the nearest."""
from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._library import Path
from ._program import Process, files, is_notebook, is_shown
from .data import Dataset

Event = Dict[str, Any]
Callback = Callable[[Event], Optional[object]]

_METRIC = re.compile(r"(hr|ndcg|recall|precision|mrr|coverage|novelty|diversity|auc|gauc|acc|logloss|ne|ece)(@\d+|:.+)?$")
_SHOWN = ("hr@10", "ndcg@10", "mrr", "auc", "gauc", "logloss")


def _metrics(line: Event) -> Dict[str, float]:
    """Numbers of a line that are metrics; what could not be computed is left out."""
    return {k: float(v) for k, v in line.items() if _METRIC.match(k) and isinstance(v, (int, float))}


def _short(metrics: Dict[str, float]) -> str:
    return ", ".join(f"{k} {metrics[k]:.4f}" for k in _SHOWN if k in metrics) or "no metrics"


def prep(events: Any, out: Path, *, source: Optional[str] = None, progress: Optional[bool] = None, **options: Any) -> Dataset:
    """Converts events to a prepared data set in the folder `out`, as `hstu prep` does, and opens it.

    events: a DataFrame of pandas or polars (also pyarrow and DuckDB); a path or a list of paths; or the name of a known data
    set, with download=True or input=PATH.  source: the format, where the file's name does not say it.  Other options are those
    of the command: user, item, time and action name columns, items may be a frame, too.

    >>> import pandas
    >>> log = pandas.DataFrame({"user": [1, 1, 2, 2], "item": ["a", "b", "b", "c"], "time": [10, 20, 30, 40]})
    >>> hstu.prep(log, folder + "/log", progress=False)
    <hstu.Dataset: 2 users, 3 items, 4 events>
    """
    if events is None or _is_name(events):
        source = source or events
    else:
        options = dict(options, input=events)
    with files(options) as options:
        first = options.get("input")
        source = source or _format_of(first[0] if isinstance(first, (list, tuple)) and first else first)
        with Process("prep", [source], {**options, "out": out, "json": True}, is_shown(progress)) as p:
            list(p.events())
    return Dataset(out)


def _is_name(events: Any) -> bool:
    """Of a data set that the program knows: no file, and no name of one."""
    return isinstance(events, str) and not os.path.exists(events) and re.fullmatch(r"[a-z0-9-]+", events) is not None


def _format_of(path: Any) -> str:
    name = re.sub(r"\.(gz|zst|bz2|xz|zip|tar|tgz)$", "", os.fspath(path).lower())
    return "parquet" if name.endswith((".parquet", ".pq")) else "jsonl" if name.endswith((".jsonl", ".ndjson")) else "csv"


@dataclass
class Run:
    """A run that train() made: a path, for Model, evaluate, compare and serve, and the lines of its log.

    metrics: of the last evaluation, on the test part at the end."""
    path: str
    log: List[Event] = field(default_factory=list)

    def __fspath__(self) -> str:
        return self.path

    @property
    def last(self) -> Event:
        return self.log[-1] if self.log else {}

    @property
    def metrics(self) -> Dict[str, float]:
        return next((m for m in map(_metrics, reversed(self.log)) if m), {})

    def __repr__(self) -> str:
        return f"<hstu.Run {self.path}: step {self.last.get('step', 0)}, {_short(self.metrics)}>"


def train(config: Optional[Path] = None, data: Union[Path, None] = None, out: Optional[Path] = None, *,
          overrides: Union[Sequence[str], Mapping[str, Any]] = (), callback: Optional[Callback] = None, progress: Optional[bool] = None,
          **options: Any) -> Run:
    """Trains as `hstu train` does, into the folder `out`.

    config: a gin file; without one the data and the device decide.  overrides: bindings, as in
    {"train_fn.learning_rate": 1e-3} or ["train_fn.learning_rate = 1e-3"].  Other options are those of the command: epochs,
    validate, patience, split, init_from, resume, ranks, device, seed, ...

    callback: called with a dict after the start, every epoch and evaluation, and the end; returning False stops the run, which
    is then saved and can be resumed.  So does an exception, Ctrl-C among them, which is raised again.  progress: shows epochs;
    by default in notebooks and terminals.

    >>> run = hstu.train(data=data, out=folder + "/run", epochs=1, validate=True, device="cpu", progress=False)
    >>> sorted(run.metrics)[:3], run.last["event"]
    (['coverage@10', 'diversity@10', 'hr@1'], 'done')
    >>> hstu.train(data=data, out=folder + "/other", patiense=3)
    Traceback (most recent call last):
    hstu.UsageError: unknown option 'patiense'; did you mean 'patience'?
    """
    options = dict(options, data=data, out=out, set=overrides, json=True)
    run, show = Run(os.fspath(out) if out is not None else ""), _Progress(is_shown(progress))
    with Process("train", [] if config is None else [config], options, show.is_on) as p:
        for event in p.events():
            run.log.append(event)
            show(event)
            if callback is not None and callback(dict(event)) is False:
                p.interrupt()
                break
    return run


class _Progress:
    """A line for each epoch in a terminal; in a notebook a table that grows."""

    def __init__(self, is_on: bool) -> None:
        self.is_on, self.head, self.rows, self.cell = is_on, "", [], None  # type: bool, str, List[List[str]], Any

    def __call__(self, event: Event) -> None:
        if not self.is_on:
            return
        if event["event"] == "start":
            self.head = f"{event.get('model')}, {event.get('parameters', 0):,} parameters; {event.get('users', 0):,} users, " \
                        f"{event.get('items', 0):,} items; {event.get('device')}"
        elif "loss" in event:
            name = f"epoch {event['epoch'] + 1}" if "epoch" in event else f"step {event['step']}"
            name = "done" if event["event"] == "done" else name
            speed = f"{event.get('tokens_per_s', 0) / 1000:.1f} k tokens/s"
            self.rows.append([name, f"{event['loss']:.4f}", _short(_metrics(event)), speed, "best" * bool(event.get("is_best"))])
        else:
            return
        self.show()

    def show(self) -> None:
        if not is_notebook():
            row = self.rows[-1] if self.rows else None
            print(self.head if row is None else f"{row[0]:>9}  loss {'  '.join(row[1:])}", file=sys.stderr, flush=True)
            return
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]
        cells = "".join(f"<tr>{''.join(f'<td>{x}</td>' for x in row)}</tr>" for row in self.rows)
        html = HTML(f"<p>{self.head}</p><table><tr><th><th>loss<th>held out<th>speed<th></tr>{cells}</table>")
        if self.cell is None:
            self.cell = display(html, display_id=True)
        else:
            self.cell.update(html)


@dataclass
class Evaluation:
    """What evaluate() found.  metrics: by name, also as evaluation["hr@10"]; intervals: 95 % by bootstrap over users;
    baselines: metrics of each with baselines=True; groups: with by=...; line: all that the command says."""
    metrics: Dict[str, float]
    intervals: Dict[str, Tuple[float, float]]
    baselines: Dict[str, Dict[str, float]]
    groups: List[Evaluation]
    users: int
    part: str
    name: str
    line: Event = field(repr=False)

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]

    def __repr__(self) -> str:
        return f"<hstu.Evaluation {self.name}: {self.part} part, {self.users:,} users, {_short(self.metrics)}>"


def _evaluation(line: Event, part: str) -> Evaluation:
    return Evaluation(_metrics(line), {k: (v[0], v[1]) for k, v in (line.get("intervals") or {}).items()},
                      {k: _metrics(v) for k, v in (line.get("baselines") or {}).items()},
                      [_evaluation(g, part) for g in line.get("groups") or []], line.get("users", 0), part,
                      str(line.get("name") or line.get("checkpoint") or ""), line)


def evaluate(run: Optional[Path] = None, *, progress: Optional[bool] = None, **options: Any) -> Evaluation:
    """Evaluates a run or checkpoint on held-out events as `hstu eval` does.

    Options are those of the command: data, part, metrics, baselines, by, recommendations (a frame, too), ...

    >>> e = hstu.evaluate(run, metrics=["HR@5", "NDCG@5"], baselines=True, device="cpu", progress=False)
    >>> sorted(e.metrics), sorted(e.baselines), e.part
    (['hr@5', 'ndcg@5'], ['item-knn', 'last-week', 'markov', 'popularity'], 'test')
    >>> low, high = e.intervals["hr@5"]
    >>> low <= e["hr@5"] <= high
    True
    """
    runs = [] if run is None else [run]
    with files(options) as options, Process("eval", runs, dict(options, json=True), is_shown(progress)) as p:
        line = list(p.events())[-1]
    return _evaluation(line, str(line.get("part", "test")))


@dataclass
class Difference:
    """Of a metric from that of the first run: low and high bound 95 % of it over users.  verdict: better, worse, higher, lower
    or unclear."""
    difference: float
    low: float
    high: float
    verdict: str


@dataclass
class RunSummary:
    """A run as compare() found it; differences: by metric, from the first run.  line: all that the command says."""
    path: str
    status: str
    step: int
    metrics: Dict[str, float]
    differences: Dict[str, Difference]
    line: Event = field(repr=False)

    def __repr__(self) -> str:
        words = [f"{k} {d.verdict} ({d.difference:+.4f})" for k, d in self.differences.items()]
        return f"<hstu.RunSummary {self.path}: {self.status}, {_short(self.metrics)}{'; ' * bool(words)}{', '.join(words)}>"


def compare(*runs: Path, **options: Any) -> List[RunSummary]:
    """Compares runs as `hstu compare` does: all after the first have differences from it.

    >>> a, b = hstu.compare(run, run)
    >>> b.differences["hr@10"].verdict
    'unclear'
    """
    with Process("compare", list(runs), dict(options, json=True), False) as p:
        return [RunSummary(str(line["run"]), line["status"], line["step"], _metrics(line["metrics"]),
                           {k: Difference(**d) for k, d in line.get("differences", {}).items()}, line) for line in p.events()]
