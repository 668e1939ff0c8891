#!/usr/bin/env python3
"""hstu export --format onnx, in ONNX Runtime: user embeddings and lists are those of `hstu export` and `hstu recommend`,
for every kind of layer, in batches of mixed lengths; and the examples of docs/interop.md run.

usage: check_onnx.py PROGRAM FOLDER      needs onnx, onnxruntime, numpy; the last line printed is "ok"."""
import json
import os
import re
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime

PROGRAM, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
N_USERS, N_ITEMS, MOST = 1100, 300, 24
LANDS = ["", "DE", "a, b", "é"]
META = {"train_fn.dataset_name": "own", "train_fn.max_sequence_length": MOST, "train_fn.local_batch_size": 64,
        "train_fn.item_embedding_dim": 16, "train_fn.num_negatives": 16, "train_fn.sampling_strategy": "local",
        "train_fn.item_l2_norm": True, "train_fn.learning_rate": 1e-2, "train_fn.num_epochs": 1}
HSTU = {**META, "train_fn.main_module": "HSTU", "hstu_encoder.num_blocks": 2, "hstu_encoder.num_heads": 2,
        "hstu_encoder.dqk": 8, "hstu_encoder.dv": 4}
NVIDIA = {"TrainerArgs.train_batch_size": 64, "TrainerArgs.max_train_iters": 15, "TrainerArgs.eval_interval": 1000,
          "DatasetArgs.dataset_name": "own", "DatasetArgs.max_history_seqlen": MOST, "NetworkArgs.num_layers": 2,
          "NetworkArgs.num_attention_heads": 2, "NetworkArgs.hidden_size": 16, "NetworkArgs.kv_channels": 8,
          "NetworkArgs.num_position_buckets": 20, "OptimizerArgs.learning_rate": 1e-2, "RetrievalArgs.num_negatives": 16}
CONFIGS = {  # name: data, config, more of train's options
    "hstu": ("numbers", HSTU),
    "hstu-plain": ("numbers", {**HSTU, "train_fn.user_embedding_norm": "layer_norm", "train_fn.item_l2_norm": False,
                               "hstu_encoder.enable_relative_attention_bias": False}),
    "hstu-actions": ("texts", {**HSTU, "train_fn.action_input": True}),
    "hstu-own": ("texts", {**HSTU, "train_fn.action_input": True, "train_fn.user_features": True, "train_fn.item_features": True,
                           "train_fn.first_item_loss": True}),
    "fuxi": ("texts", {**META, "train_fn.main_module": "FuXi", "fuxi_encoder.num_heads": 2, "fuxi_encoder.dqk": 8,
                       "fuxi_encoder.dv": 4}),
    "sasrec": ("numbers", {**META, "train_fn.main_module": "SASRec", "sasrec_encoder.num_heads": 2,
                           "sasrec_encoder.ffn_activation_fn": "gelu"}),
    "esasrec": ("numbers", {**META, "train_fn.main_module": "eSASRec", "esasrec_encoder.num_heads": 2}),
    "nvidia": ("numbers", NVIDIA),
    "nvidia-features": ("texts", {**NVIDIA, "DatasetArgs.dataset_name": "own", "NetworkArgs.contextual_embedding_dim": 8}),
}


def hstu(*words, want=0):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, cwd=FOLDER)
    if done.returncode != want:
        sys.exit(f"check_onnx.py: hstu {' '.join(words)}: code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + (done.stderr if want else "")


def make_data(draw):
    """Histories of 1 event, of MOST and of more; items ids from -7 on; times from a second to decades apart.  Texts come with
    features of items and of users, of whom some are not known."""
    users = []
    with open(f"{FOLDER}/users.csv", "w", encoding="utf-8") as f:
        f.write("user,land,plan\n")
        f.writelines(f'{u + 1},"{LANDS[u % 4]}",{u % 3}\n' for u in range(N_USERS))
    with open(f"{FOLDER}/items.csv", "w", encoding="utf-8") as f:
        f.write("item,kind\n")
        f.writelines(f'"item {i * 7 - 7}, é",kind {i % 5}\n' for i in range(N_ITEMS))
    for u in range(N_USERS):
        n = (1, MOST, MOST + 20)[u] if u < 3 else int(draw.integers(1, MOST + 10))
        apart = np.floor(10 ** draw.uniform(0, 9, n)).astype(np.int64) // n + 1
        users.append((draw.permutation(N_ITEMS)[:n] * 7 - 7, draw.integers(1, 6, n), 10**8 + np.cumsum(apart)))
    for kind, name in (("numbers", "{}"), ("texts", "item {}, é")):
        with open(f"{FOLDER}/{kind}.csv", "w", encoding="utf-8") as f:
            f.write("user,item,rating,time\n")
            for u, columns in enumerate(users):
                for item, rating, time in zip(*columns):
                    f.write(f'{u + 1},"{name.format(item)}",{rating},{time}\n')
        side = ["--users", "users.csv", "--items", "items.csv"] if kind == "texts" else []
        hstu("prep", "csv", "--input", f"{kind}.csv", "--out", kind, *side)
    return users


def feed(session, users, is_text, numbers=()):
    """Inputs of a batch of users with these numbers, padded with what must not matter."""
    longest = max(len(items) for items, _, _ in users)
    pads = {"item_ids": 0, "actions": 3, "timestamps": 77}
    out = {"lengths": np.array([len(items) for items, _, _ in users])}
    for name, column in (("item_ids", 0), ("actions", 1), ("timestamps", 2)):
        rows = np.array([np.concatenate([u[column], np.full(longest - len(u[column]), pads[name])]) for u in users])
        out[name] = rows.astype(np.int64) - (name == "actions")
    if is_text:
        out["item_ids"] = np.array([[f"item {i}, é" for i in row] for row in out["item_ids"]], object)
    out["feature_land"] = np.array([[LANDS[u % 4]] for u in numbers], object)
    out["feature_plan"] = np.array([[str(u % 3)] for u in numbers], object)
    wanted = {i.name for i in session.get_inputs()}
    return {name: value for name, value in out.items() if name in wanted}


def check(name, data, config, users, draw):
    with open(f"{FOLDER}/{name}.gin", "w") as f:
        f.writelines(f"{key} = {value!r}\n" for key, value in config.items())
    hstu("train", f"{name}.gin", "--data", data, "--out", name, "--device", "cpu",
         *(["--task", "retrieval"] if config is NVIDIA else []))
    hstu("export", name, "--format", "onnx", "--out", f"{name}.onnx")
    model = onnx.load(f"{FOLDER}/{name}.onnx")
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(f"{FOLDER}/{name}.onnx")
    hstu("export", name, "--what", "users", "--format", "npz", "--out", "users.npz", "--device", "cpu")
    wanted = np.load(f"{FOLDER}/users.npz")
    order = {int(u): i for i, u in enumerate(wanted["id"])}
    lists = [json.loads(line) for line in hstu("recommend", name, "--all-users", "--json", "--device", "cpu").splitlines()]
    lists = {int(answer["user"]): answer["items"] for answer in lists}
    worst, other, at = 0.0, 0, 0
    while at < len(users):
        batch = users[at:at + int(draw.integers(1, 120))]
        inputs = {**feed(session, batch, data == "texts", range(at, at + len(batch))), "k": np.array([10]), "keep_seen": np.array([False])}
        vectors, ids, scores = session.run(["user_embedding", "top_ids", "top_scores"], inputs)
        for i in range(len(batch)):
            user = at + i + 1
            worst = max(worst, np.abs(vectors[i] - wanted["embedding"][order[user]]).max())
            for k, item in enumerate(lists[user]):
                same = str(ids[i, k]) == str(item["id"])
                other += not same
                assert abs(scores[i, k] - item["score"]) < 1e-4, (name, user, k, scores[i, k], item)
        at += len(batch)
    assert worst < 1e-4 and other == 0, (name, worst, other)
    # Alone or in a batch, with the list's own items, and with ids that the model does not know.
    inputs = {**feed(session, users[:1], data == "texts", [0]), "k": np.array([N_ITEMS + 5]), "keep_seen": np.array([True])}
    vector, ids, scores = session.run(["user_embedding", "top_ids", "top_scores"], inputs)
    assert ids.shape == (1, N_ITEMS) and len(set(ids[0])) == N_ITEMS and np.isfinite(scores).all()
    assert np.abs(vector[0] - wanted["embedding"][order[1]]).max() < 1e-4
    items, actions, times = users[4]
    strange = (np.insert(items, 1, 10**9 + 1), np.insert(actions, 1, 2), np.insert(times, 1, times[0]))
    inputs = {**feed(session, [strange], data == "texts", [4]), "k": np.array([3]), "keep_seen": np.array([False])}
    vector = session.run(["user_embedding"], inputs)[0]
    assert np.abs(vector[0] - wanted["embedding"][order[5]]).max() < 1e-4, name
    inputs["lengths"][:] = 0
    if config.get("train_fn.first_item_loss"):  # of whom only features are known, or nothing
        for land, plan in (("DE", "2"), ("é", "unknown")):
            inputs["feature_land"][:], inputs["feature_plan"][:] = land, plan
            ids, scores = session.run(["top_ids", "top_scores"], inputs)
            answer = json.loads(hstu("recommend", name, "--context", f"land={land}", "--context", f"plan={plan}", "-k", "3", "--json",
                                     "--device", "cpu"))
            assert [item["id"] for item in answer["items"]] == list(ids[0]) and answer["source"] == "model", (answer, ids)
            assert all(abs(item["score"] - score) < 1e-4 for item, score in zip(answer["items"], scores[0])), (answer, scores)
        inputs["feature_land"][:] = "unknown"
    assert not session.run(["user_embedding"], inputs)[0].any()
    print(f"{name}: {len(model.graph.node)} nodes, {len(users)} users, embeddings within {worst:.1e}, the same lists")


def check_external(users):
    hstu("export", "hstu", "--format", "onnx", "--external-data", "--out", "far.onnx")
    onnx.checker.check_model(f"{FOLDER}/far.onnx", full_check=True)
    assert os.path.getsize(f"{FOLDER}/far.onnx.data") > os.path.getsize(f"{FOLDER}/far.onnx") - 60000
    answers = []
    for path in ("hstu.onnx", "far.onnx"):
        session = onnxruntime.InferenceSession(f"{FOLDER}/{path}")
        inputs = {**feed(session, users[:9], False), "k": np.array([10]), "keep_seen": np.array([False])}
        answers.append(session.run(None, inputs))
    assert all((a == b).all() for a, b in zip(*answers))
    assert "already exists" in hstu("export", "hstu", "--format", "onnx", "--external-data", "--out", "far.onnx", want=2)


def check_examples():
    """The Python of docs/interop.md that reads exported files."""
    os.chdir(FOLDER)
    hstu("export", "hstu", "--what", "items", "--format", "npz", "--out", "items.npz")
    hstu("export", "hstu", "--what", "users", "--format", "npz", "--out", "users.npz")
    os.replace("hstu.onnx", "model.onnx")
    items, users = np.load("items.npz"), np.load("users.npz")
    best = items["id"][np.argsort(-users["embedding"] @ items["embedding"].T, kind="stable")[:, :10]]
    with open(f"{ROOT}/docs/interop.md", encoding="utf-8") as f:
        examples = re.findall(r"```python\n(import (?:numpy, onnxruntime|faiss|hnswlib).*?)```", f.read(), re.S)
    assert len(examples) == 3
    for code in examples:
        package = re.search("onnxruntime|faiss|hnswlib", code)[0]
        names = {}
        try:
            exec(code, names)
        except ModuleNotFoundError as e:
            if e.name != package:
                raise
            print(f"skipped: the example with {package}, which cannot be had here")
            continue
        if package == "onnxruntime":
            assert names["ids"].shape == (2, 10) and names["embedding"].shape[0] == 2
        else:
            hits = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(names["ids"], best)])
            assert hits > (0.99 if package == "faiss" else 0.9), (package, hits)
        print(f"the example with {package}: {len(code.splitlines())} lines")


def main():
    draw = np.random.default_rng(1)
    os.makedirs(FOLDER, exist_ok=True)
    users = make_data(draw)
    for name in sys.argv[3:] or CONFIGS:
        check(name, *CONFIGS[name], users, draw)
    if len(sys.argv) == 3:
        check_external(users)
        check_examples()
    print("ok")


main()
