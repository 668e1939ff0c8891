#!/usr/bin/env python3
"""MLflow reads a run of ours from its file store: parameters, and metrics equal to log.jsonl.

usage: mlflow_runs.py RUN MLRUNS.  The last line printed is "ok"."""
import json
import os
import sys

os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
from mlflow.tracking import MlflowClient  # noqa: E402

run, folder = sys.argv[1:3]
client = MlflowClient("file://" + os.path.abspath(folder))
experiment = client.get_experiment_by_name("hstu")
runs = client.search_runs([experiment.experiment_id])
if len(runs) != 1 or runs[0].info.status != "FINISHED":
    sys.exit(f"not one finished run: {runs}")
lines = [json.loads(line) for line in open(f"{run}/log.jsonl")]
for name in ("loss", "hr@10", "ndcg@10"):
    got = [(m.step, m.value) for m in client.get_metric_history(runs[0].info.run_id, name.replace("@", "_at_"))]
    want = [(x["step"], x[name]) for x in lines if x["event"] in ("epoch", "eval") and name in x]
    if got != want or not got:
        sys.exit(f"{name}: MLflow has {got}, the log {want}")
if runs[0].data.params.get("train_fn.item_embedding_dim") != "8":
    sys.exit(f"parameters: {runs[0].data.params}")
print(f"{len(runs[0].data.metrics)} metrics, {len(runs[0].data.params)} parameters")
print("ok")
