#!/usr/bin/env python3
"""Golden file of Muon: test/golden/optim/muon.safetensors, from torch.optim.Muon (PyTorch 2.15).

  scripts/golden/muon.py           writes the file
  scripts/golden/muon.py --check   compares it with what this PyTorch computes, number by number

Each case has a matrix, three gradients and the matrix after each of three updates. PyTorch iterates in bf16. The cases
in fp32 run the same code of PyTorch, where torch.bfloat16 stands for torch.float32 meanwhile.
"""
import argparse
import json
import pathlib
import struct

import torch

FILE = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "optim" / "muon.safetensors"
STEPS = 3
CASES = {
    "wide": dict(shape=[6, 10]),
    "tall": dict(shape=[12, 5], lr=0.05, weight_decay=0.3),
    "square": dict(shape=[8, 8], nesterov=False, adjust_lr_fn="match_rms_adamw"),
    "unclamped": dict(shape=[5, 9], adjust_lr_fn="spectral_unclamped"),
    "tall_rms": dict(shape=[9, 4], adjust_lr_fn="match_rms_adamw"),
    "settings": dict(shape=[7, 11], momentum=0.8, ns_coefficients=[2.0, -1.5, 0.5], ns_steps=3, eps=0.5,
                     weight_decay=0.0),
}
DEFAULTS = dict(lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, ns_coefficients=[3.4445, -4.775, 2.0315],
                eps=1e-7, ns_steps=5, adjust_lr_fn="original")


def train(settings, start, gradients, precision):
    options = {k: v for k, v in settings.items() if k != "shape"}
    options["ns_coefficients"] = tuple(options["ns_coefficients"])
    weight = torch.nn.Parameter(start.clone())
    muon = torch.optim.Muon([weight], **options)
    bf16 = torch.bfloat16
    if precision == "fp32":
        torch.bfloat16 = torch.float32
    try:
        weights = []
        for gradient in gradients:
            weight.grad = gradient.clone()
            muon.step()
            weights.append(weight.detach().clone())
    finally:
        torch.bfloat16 = bf16
    return weights


def golden():
    tensors, cases = {}, []
    for i, (name, changes) in enumerate(CASES.items()):
        settings = {**DEFAULTS, **changes}
        noise = torch.Generator().manual_seed(i)
        start = torch.randn(settings["shape"], generator=noise)
        gradients = [torch.randn(settings["shape"], generator=noise) for _ in range(STEPS)]
        tensors[f"{name}.start"] = start
        for k, gradient in enumerate(gradients):
            tensors[f"{name}.grad.{k}"] = gradient
        for precision in ("fp32", "bf16"):
            for k, weight in enumerate(train(settings, start, gradients, precision)):
                tensors[f"{name}.{precision}.{k}"] = weight
        cases.append({"name": name, **settings})
    return tensors, cases


def write(tensors, cases):
    header, at = {"__metadata__": {"torch": torch.__version__, "cases": json.dumps(cases)}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + 4 * tensor.numel()]}
        at += 4 * tensor.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    values = b"".join(struct.pack(f"<{t.numel()}f", *t.flatten().tolist()) for t in tensors.values())
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(struct.pack("<Q", len(text)) + text + values)


def check(tensors):
    data = FILE.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    worst = 0.0
    for name, tensor in tensors.items():
        begin, end = header[name]["data_offsets"]
        stored = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
        difference = (torch.tensor(stored).view_as(tensor) - tensor).abs().max().item()
        worst = max(worst, difference)
        # Another PyTorch may sum in another order; in bf16 a sum that rounds the other way changes 2^-8 of an update.
        if difference > (1e-2 if ".bf16." in name else 1e-5):
            raise SystemExit(f"{name}: {difference} away from what this PyTorch computes")
    print(f"{len(tensors)} tensors, at most {worst:.2g} away")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    tensors, cases = golden()
    check(tensors) if parser.parse_args().check else write(tensors, cases)
