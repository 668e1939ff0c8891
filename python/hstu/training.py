"""Training."""
import json

from . import _library as _l


def train(config, data, out, epochs=0, overrides=(), callback=None, device="auto", resume=False, validate=False):
    """Trains as `hstu train` does, into the folder `out`; returns the last line of its log as a dict.

    config: a gin file; None with resume=True.  overrides: bindings, such as "train_fn.learning_rate = 1e-3".
    callback: called with a dict after the start, every epoch and evaluation, and the end; returning False stops the
    run, which is then saved and can be resumed."""
    last, raised, stopped = {}, [], []

    def tell(_, line):
        try:
            last.clear()
            last.update(json.loads(line))
            if callback is not None and callback(dict(last)) is False:
                stopped.append(True)
            return len(stopped)
        except BaseException as e:  # it must not cross C
            raised.append(e)
            return 1

    texts = [str(o).encode() for o in overrides]
    args = _l.TrainArgs(config=_l.path_bytes(config), overrides=_l.numbers(_l.c_char_p, texts), n_overrides=len(texts),
                        data=_l.path_bytes(data), run=_l.path_bytes(out), device=device.encode(), epochs=epochs,
                        is_resume=int(resume), has_validation=int(validate), callback=_l.TrainCallback(tell))
    try:
        _l.call("hstu_train", _l.reference(args))
    except BaseException:
        if raised:
            raise raised[0]
        if not stopped:
            raise
    return dict(last)
