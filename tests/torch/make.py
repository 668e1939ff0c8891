#!/usr/bin/env python3
"""Writes the .pt files beside it, which tests/format/test_torch_file.c reads: needs torch.

Run it again only where torch.save has changed; the files are checked in."""
import collections
import os
import sys

import torch

folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
types = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
content = {
    "epoch": 3, "lr": 1e-3, "name": "x", "none": None, "flag": True, "big": 2**40, "negative": -5,
    "model_state_dict": collections.OrderedDict(
        [("module.a", base), ("module.b", base.t()), ("module.c", base[1:3, 2:5]),
         ("p", torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0])))]),
    "types": {k: torch.tensor([[1, 0, 1], [1, 1, 0]]).to(getattr(torch, k)) for k in types},
    "scalar": torch.tensor(5.0), "empty": torch.zeros(0, 3),
    "list": [torch.zeros(1), (torch.zeros(2), {7: torch.zeros(3)})],
    "size": torch.Size([1, 2]), "device": torch.device("cpu"), "dtype": torch.float32,
    "expand": torch.full((1,), 7.0).expand(5),
}
for protocol in (2, 4, 5):
    torch.save(content, f"{folder}/protocol{protocol}.pt", pickle_protocol=protocol)
model = torch.nn.Linear(3, 2)
with torch.no_grad():
    model.weight.copy_(torch.arange(6).reshape(2, 3))
    model.bias.copy_(torch.tensor([0.25, -0.5]))
adam = torch.optim.Adam(model.parameters())
model(torch.ones(1, 3)).sum().backward()
adam.step()
torch.save({"epoch": 1, "model_state_dict": model.state_dict(), "optimizer_state_dict": adam.state_dict()},
           f"{folder}/adam.pt")
torch.save(content, f"{folder}/legacy.pt", _use_new_zipfile_serialization=False)
torch.save(model, f"{folder}/class.pt")
torch.jit.save(torch.jit.script(model), f"{folder}/script.pt")
torch.serialization.set_crc32_options(False)
torch.save(content["model_state_dict"], f"{folder}/no_crc.pt")
