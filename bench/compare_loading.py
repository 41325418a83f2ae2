#!/usr/bin/env python3
"""Loads one safetensors file into host memory in three ways, in turn, and prints a table of medians.

  python3 -m venv v && v/bin/pip install numpy safetensors
  v/bin/python bench/compare_loading.py build/tools/packalloc [--gib 1] [--rounds 5] [--dir DIR]

The ways: `packalloc load` (its own figure, of copying alone), mmap and copy tensor by tensor, and safetensors.numpy's
load_file. Each is timed with the file out of the page cache and in it.
"""
import argparse
import json
import mmap
import os
import statistics
import struct
import subprocess
import tempfile
import time

import numpy
from safetensors.numpy import load_file


def write_model(path, total):
    """A model of F16 matrices of 1 KiB to 64 MiB, as many as fit."""
    sizes, left = [], total
    step = [1 << 10, 1 << 16, 1 << 20, 8 << 20, 32 << 20, 64 << 20]
    while left > step[0]:
        size = next(s for s in reversed(step[: len(sizes) % 6 + 1]) if s <= left)
        sizes.append(size)
        left -= size
    header, at = {}, 0
    for i, size in enumerate(sizes):
        header[f"layer.{i}.weight"] = {"dtype": "F16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in sizes:
            file.write(random.bytes(size))
        file.flush()
        os.fsync(file.fileno())
    return len(sizes), at


def by_packalloc(command, path):
    out = subprocess.run([command, "load", path, "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["seconds"]


def by_mmap(path):
    start = time.perf_counter()
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack("<Q", mapping[:8])
        header = json.loads(mapping[8 : 8 + length])
        kept = []
        for entry in header.values():
            begin, end = entry["data_offsets"]
            view = numpy.frombuffer(mapping, numpy.uint8, end - begin, 8 + length + begin)
            kept.append(view.copy())
    return time.perf_counter() - start


def by_safetensors(path):
    start = time.perf_counter()
    kept = load_file(path)
    return time.perf_counter() - start + 0 * len(kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", help="the packalloc command")
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", help="where the file is made; a real disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = os.path.join(folder, "model.safetensors")
        tensors, total = write_model(path, int(options.gib * (1 << 30)))
        ways = {
            "packalloc load": lambda: by_packalloc(options.command, path),
            "mmap and copy": lambda: by_mmap(path),
            "safetensors.numpy.load_file": lambda: by_safetensors(path),
        }
        times = {(name, state): [] for name in ways for state in ("cold", "warm")}
        for _ in range(options.rounds):
            for state in ("cold", "warm"):
                for name, way in ways.items():
                    with open(path, "rb") as file:
                        if state == "cold":
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                        else:
                            while file.read(1 << 20):
                                pass
                    times[name, state].append(way())
        print(f"{tensors} tensors, {total} bytes, {options.rounds} rounds, median GB/s")
        print(f"{'':30}{'cold':>8}{'warm':>8}")
        for name in ways:
            rates = [total / statistics.median(times[name, state]) / 1e9 for state in ("cold", "warm")]
            print(f"{name:30}{rates[0]:8.2f}{rates[1]:8.2f}")


if __name__ == "__main__":
    main()
