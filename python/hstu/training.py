"""Training."""
import json
import os
import queue
import threading
from ctypes import c_int32, c_int64, pointer

from . import _library as _l


def train(config, data, out, epochs=0, overrides=(), callback=None, device="auto", resume=False, validate=False):
    """Trains as `hstu train` does, into the folder `out`; returns the last line of its log as a dict.

    config: a gin file; None with resume=True.  overrides: bindings, such as "train_fn.learning_rate = 1e-3".
    callback: called with a dict after the start, every epoch and evaluation, and the end; returning False stops the
    run, which is then saved and can be resumed.  So does an exception, Ctrl-C among them, which is raised again."""
    job = _Job(callback)
    texts = [_l.text_bytes(o, "override") for o in overrides]
    kept = (_l.c_char_p * len(texts))(*texts)
    args = _l.TrainArgs(config=_l.path_bytes(config), overrides=kept, n_overrides=len(texts), data=_l.path_bytes(data),
                        run=_l.path_bytes(out), device=_l.text_bytes(device, "device"),
                        epochs=_l.integer(c_int64, epochs, "epochs"), is_resume=int(bool(resume)),
                        has_validation=int(bool(validate)), callback=_l.TrainCallback(job.tell), stop=pointer(job.stop))
    job.run(args)
    return job.last


class _Job:
    """A run on a thread of its own.  Python delivers signals to the main thread between two steps of Python code, so that must
    not be in C for long: it waits here, and the callback of the caller runs on the caller's thread."""

    def __init__(self, callback):
        self.callback, self.last, self.stop, self.is_stopped_by_callback = callback, {}, c_int32(0), False
        self.lines, self.answers, self.failure, self.process = queue.SimpleQueue(), queue.SimpleQueue(), None, os.getpid()

    def tell(self, _, line):
        """On the thread of the run: hands a line over and waits for what the callback says."""
        self.lines.put(line)
        return self.answers.get()

    def work(self, args):
        try:
            _l.call("hstu_train", _l.reference(args))
        except BaseException as e:
            self.failure = e
        self.lines.put(None)

    def run(self, args):
        thread = threading.Thread(target=self.work, args=(args,), daemon=True)
        try:
            thread.start()
            self.serve(thread)
        except BaseException:  # of the callback, or of a signal; once more, and the run is left to itself
            self.stop.value = 1
            self.answers.put(1)
            while os.getpid() == self.process and self.next_line(thread) is not None:
                self.answers.put(1)
            raise
        is_expected = self.is_stopped_by_callback and isinstance(self.failure, KeyboardInterrupt)
        if self.failure is not None and not is_expected:
            raise self.failure

    def serve(self, thread):
        for line in iter(lambda: self.next_line(thread), None):
            self.last = json.loads(line)
            if self.callback is not None and self.callback(dict(self.last)) is False:
                self.is_stopped_by_callback = True
            self.answers.put(int(self.is_stopped_by_callback))

    def next_line(self, thread):
        """The next line, or None at the end.  A signal may reach another thread, which does not wake this one: it looks."""
        while True:
            if os.getpid() != self.process:  # the thread of the run exists in the parent only
                raise _l.UsageError("this process was forked by a callback of train(): the run goes on in its parent alone; end "
                                    "the child with os._exit()")
            try:
                return self.lines.get(timeout=0.1)
            except queue.Empty:
                if not thread.is_alive() and self.lines.empty():
                    return None
