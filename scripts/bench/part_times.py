#!/usr/bin/env python3
"""Prints the times of the parts of a layer with experts from a trace, as options of `mtrain schedule`.

  part_times.py TRACE SKIPPED

TRACE is of a run without pairs of passes (mtrain --trace). Times are milliseconds of a micro-batch, means over all
ranks and all steps but the first SKIPPED ones. Norms count towards the part that follows them, and other small
operations towards the part before them."""

import json
import sys
from collections import defaultdict

PARTS = {
    "attention": ("matmul_qkv", "rope", "attention", "matmul_proj", "embedding"),
    "route": ("matmul_router", "route_tokens", "router"),
    "experts": ("experts_up", "experts_down", "weighted_swiglu", "weighted_geglu"),
    "shared": ("matmul_fc1", "matmul_fc2", "swiglu", "geglu"),
    "head": ("matmul_output", "cross_entropy"),
}
NO_PART = ("adamw", "sum_squares", "clip_scale")
FORWARD, BACKWARD, WEIGHTS = range(3)


def part_of(name):
    return next((part for part, begins in PARTS.items() if name.startswith(begins)), None)


def pass_of(name, part, before):
    if part == "head":
        return FORWARD  # its forward also computes its gradients
    if name.endswith("_wgrad"):
        return WEIGHTS
    if name.endswith(("_dgrad", "_bwd", "_grad")):
        return BACKWARD
    return FORWARD if name.endswith("_fwd") or name == "route_tokens" else before


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    streams = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    launches = defaultdict(list)  # by rank, on the compute stream
    begins = defaultdict(list)  # by rank, of the steps
    for e in sorted((e for e in events if e["ph"] == "X" and e.get("cat") != "wait"), key=lambda e: e["ts"]):
        stream = streams[e["pid"], e["tid"]]
        if stream == "compute":
            launches[e["pid"]].append(e)
        elif stream == "steps":
            begins[e["pid"]].append(e["ts"])
    total = defaultdict(lambda: [0.0, 0.0, 0.0])
    layers = micro_batches = 0
    for rank, own in launches.items():
        begin = begins[rank][int(sys.argv[2])]
        own = [e for e in own if e["ts"] >= begin]
        layers += sum(e["name"] == "route_tokens" for e in own)
        micro_batches += sum(e["name"] == "cross_entropy" for e in own)
        part, which, waiting = "attention", FORWARD, 0.0
        for e in own:
            if e["name"] in NO_PART:
                continue
            named = part_of(e["name"])
            if e["name"] == "norm_fwd" or (named is None and waiting):
                waiting += e["dur"]
                continue
            if named:
                part, which = named, pass_of(e["name"], named, which)
            total[part][which] += e["dur"] + waiting
            waiting = 0.0
    for part, times in total.items():
        count = micro_batches if part == "head" else layers
        print(f"--part {part}=" + ",".join(f"{t / 1e3 / max(count, 1):.6g}" for t in times))


if __name__ == "__main__":
    main()
