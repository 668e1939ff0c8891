#!/usr/bin/env python3
"""What `hstu profile --tensorboard` writes, read by TensorBoard's own plugin (the package torch-tb-profiler).

  tensorboard.py PROGRAM

A training on the CPU, and records of another program with a GPU, which are made here: two cycles of two steps each.
"""
import glob
import os
import struct
import subprocess
import sys
import tempfile

from torch_tb_profiler import consts, io
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.loader import RunLoader

GPU_KERNEL, GPU_CALL, HOST_RANGE, HOST_STEP = 0, 9, 11, 12  # src/profile/cupti.h
PROCESS, NAME, RECORD, GPU, END = 1, 2, 3, 5, 6  # src/profile/record_file.h
STORED = "@i2QPQ4IQ6i4I4di2?2fPi0P"
NAMES = ["step", "aten::mm", "cudaLaunchKernel", "_Z11gemm_kernelPf"]


def item(kind, data):
    return struct.pack("=II", kind, len(data)) + data


def record(kind, start, end, name=-1, mark=0, correlation=0, stream=0):
    """A stored_record as it lies in memory (cupti.h): one thread, one GPU, 264 blocks of 256 threads."""
    return item(RECORD, struct.pack(STORED, kind, start, end, 0, 0, correlation, 0, stream, 1, mark, 264, 1, 1, 256, 1, 1,
                                    32, 0, 0, 0, 0, 0, 0, 0, 0, False, False, 0, 0, 0, name))


def write_records(path):
    """Each step calls one op, which launches one kernel."""
    gpu = struct.pack("=64s7IxxxxQ", b"H200", 0, 90, 132, 64, 32, 65536, 233472, 141 << 30)
    header = f"hstu records 3, {struct.calcsize(STORED)} bytes\n".encode()
    out = header.ljust(32, b"\0") + item(PROCESS, struct.pack("=q", 77) + b"program")
    out += b"".join(item(NAME, n.encode()) for n in NAMES) + item(GPU, gpu)
    for number in range(8):
        at, kept = 10_000_000 + number * 1_000_000, number % 4 >= 2
        if kept:
            out += record(GPU_CALL, at + 200_000, at + 210_000, 2, correlation=number + 1)
            out += record(GPU_KERNEL, at + 300_000, at + 700_000, 3, correlation=number + 1, stream=7)
            out += record(HOST_RANGE, at + 100_000, at + 250_000, 1) + record(HOST_RANGE, at, at + 900_000, 0)
        out += record(HOST_STEP, at, at + 900_000, mark=number, stream=int(kept))
    with open(path, "wb") as f:
        f.write(out + item(END, struct.pack("=Q", 0)))


def profile(program, out, *command):
    schedule = "--wait 1 --warmup 1 --active 2 --repeat 2".split()
    done = subprocess.run([program, "profile", "--tensorboard", "--out", out, *schedule, *command],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 steps kept of" in done.stderr, done.stderr
    files = sorted(glob.glob(out + "/*.pt.trace.json"))
    assert len(files) == 2, files
    assert not glob.glob(out + "/trace*.json")
    return files


def parse(path, steps):
    worker, span = consts.WORKER_PATTERN.match(os.path.basename(path)).groups()
    assert consts.NODE_PROCESS_PATTERN.match(worker) and span, path
    data = RunProfileData.parse(worker, span, path, os.path.dirname(path))
    assert data.steps_names == [str(s) for s in steps], data.steps_names
    return data


def check_training(program, place):
    subprocess.run([program, "synth", "--out", "data", "--users", "200", "--items", "80", "--mean-len", "10"],
                   cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(place + "/m.gin", "w") as f:
        f.write("train_fn.local_batch_size = 20\ntrain_fn.num_epochs = 1\ntrain_fn.item_embedding_dim = 16\n"
                "sasrec_encoder.num_blocks = 1\n")
    files = profile(program, place + "/train", "--", "train", "--gin-config-file", place + "/m.gin", "--data",
                    place + "/data", "--out", place + "/run", "--device", "cpu")
    for path, first in zip(files, (2, 6)):
        data = parse(path, [first, first + 1])
        names = {op.name for op in data.op_list_groupby_name}
        assert {"linear_fwd", "linear_bwd", "update"} <= names, names
        assert not data.has_kernel


def check_program(program, place):
    write_records(place + "/1.records")
    files = profile(program, place + "/other", "--step", "step", "--", "sh", "-c",
                    f"cp {place}/1.records $HSTU_PROFILE_RECORDS")
    for path, first in zip(files, (2, 6)):
        data = parse(path, [first, first + 1])
        assert data.has_kernel and data.has_runtime
        kernel = data.kernel_stat.loc["gemm_kernel"]
        assert (kernel["count"], kernel["sum"], kernel["blocks_per_sm"]) == (2, 800, 2), kernel
        assert data.device_props[0]["name"] == "H200" and data.device_props[0]["computeMajor"] == 9
        op = {op.name: op for op in data.op_list_groupby_name}["aten::mm"]  # its kernels were found by its call
        assert (op.calls, op.device_duration) == (2, 800), (op.calls, op.device_duration)
        assert 0.4 < data.gpu_metrics_parser.gpu_utilization[0] < 0.45
    run = RunLoader("other", place + "/other", io.Cache()).load()
    assert len(run.get_spans()) == 2 and len(run.workers) == 1, (run.get_spans(), run.workers)
    for one in run.get_profiles():
        views = {view.display_name for view in one.views}
        assert {"Overview", "Operator", "Kernel", "Trace"} <= views, views


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check_training(os.path.abspath(sys.argv[1]), folder)
        check_program(os.path.abspath(sys.argv[1]), folder)
    print("TensorBoard's plugin reads traces of a training and of another program")
