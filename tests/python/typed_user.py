"""A user's file as `mypy --strict` must accept it: everything public has types.  It is also run: typed_user.py DATA FOLDER."""
from __future__ import annotations

import sys
from typing import Dict, List, Optional, Tuple, Union

import hstu


def is_late(event: Dict[str, object]) -> Optional[bool]:
    return False if event["event"] == "epoch" and event["epoch"] == 30 else None


def best_of(model: hstu.Model, users: List[Union[str, int]]) -> Dict[Union[str, int], float]:
    lists = model.recommend(users, k=3, deny=[1], filter=None)
    first: List[Tuple[Union[str, int], float]] = model.recommend(users[0])
    ours: List[Tuple[Union[str, int], float]] = model.recommend(history=[1, 2, 3], times=None, k=2)
    return dict(pair for pairs in [*lists, first, ours] for pair in pairs)


def main(data_path: str, folder: str) -> float:
    data: hstu.Dataset = hstu.Dataset(data_path)
    run: hstu.Run = hstu.train(None, data, f"{folder}/typed", epochs=9, patience=2, validate=True, callback=is_late, device="cpu")
    evaluation = hstu.evaluate(run, metrics=["HR@5"], baselines=True, device="cpu")
    low, high = evaluation.intervals["hr@5"]
    differences: Dict[str, hstu.Difference] = hstu.compare(run, run)[1].differences
    with hstu.Model(run, data=data, device="cpu") as model:
        best_of(model, data.user_ids[:4])
        rows = model.embeddings()
        size: Tuple[int, ...] = rows.shape
        print(model.dim + size[0], model.score(data.user_ids[:2], data.item_ids[:2]).sum(), len(data), data.history(1)[0][2])
    with hstu.Table(4, device="cpu") as table:
        table.update([1, 2], table.lookup([1, 2]), lr=1e-2)
        found: List[bool] = table.find([1])[1]
    try:
        with hstu.serve(run, data=data, device="cpu") as server:
            print(server.url, server.request("v2"))
    except hstu.Error as e:
        print(f"no server: {e}")
    return low + high + evaluation["hr@5"] + differences["mrr"].difference + sum(found)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
