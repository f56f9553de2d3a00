#!/usr/bin/env python3
"""Measures what saves in the background cost a training: stall, speed while a checkpoint is written, and memory.

  scripts/bench/checkpoint_stall.py [--build build/release] [--pairs 10] [--threads 1 2] [--steps 24] [--io-threads 1]
    [--output FILE.md] [--folder FOLDER]

One rank trains model B (recipes/bench/llama_28m.yaml) with one sequence of 512 tokens a step. Each pair trains once without
saves and once with one every 6 steps, alternating; --folder is where the checkpoints go, by default a temporary folder. Printed beside the
bounds that hold:

- stall: the largest checkpoint.stall_ms, below the time of a memcpy of the copy, and 20 ms. A save that is due while one
  is being written waits for it, and exceeds the bound: 6 steps must take longer than a write;
- step after a save: how much longer it takes than the median without saves, in which the optimizer may wait for the copy;
- speed: tokens/s of the steps during which a checkpoint is written, over the same steps without saves, median of the pairs;
- losses: the same bits;
- host memory: the largest resident memory above that without saves, at most the copy and 64 MiB;
- device memory: the same peak.

Exit code 1 if a bound does not hold. Figures of a machine that does other work at the same time are worth little.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes/bench/llama_28m.yaml"
SETTINGS = ["tokenizer=byte", "dataset.train=set", "train.global_batch_size=1", "train.micro_batch_size=1", "train.log_every=1000",
            "train.device=cpu", "checkpoint.at_end=false", "checkpoint.keep=1", "checkpoint.async=true"]
EVERY = 6           # steps between two saves
SPARE = 64 << 20    # bytes of host memory beyond the copy
STALL_MS = 20       # beyond a memcpy of the copy
LEAST_SPEED = 0.9


def memcpy_rate(bytes_=256 << 20):
    """-> bytes/s of one thread between buffers that are in memory"""
    source, target = ctypes.create_string_buffer(bytes_), ctypes.create_string_buffer(bytes_)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        ctypes.memmove(target, source, bytes_)
        best = min(best, time.perf_counter() - began)
    return bytes_ / best


class Run:
    def __init__(self, args, work, name, threads, every):
        command = [str(args.build / "bin/mtrain"), "--recipe", str(RECIPE), *SETTINGS, f"train.run_dir={name}", f"train.threads={threads}",
                   f"train.steps={args.steps}", f"checkpoint.every_steps={every}", f"checkpoint.io_threads={args.io_threads}",
                   f"checkpoint.dir={args.folder / (name + '.checkpoints')}"]
        with open(work / f"{name}.log", "w") as log:
            process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log)
            _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            raise SystemExit(f"{' '.join(command)}:\n{(work / f'{name}.log').read_text()}")
        self.resident = usage.ru_maxrss * 1024
        records = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
        self.steps = {r["step"]: r for r in records if "loss" in r}
        self.losses = [r["loss"] for r in self.steps.values()]
        self.device_peak = max(r["memory_peak"] for r in self.steps.values())

    def between(self, step):
        """-> seconds from the record of the step before this one to its own"""
        return self.steps[step]["time"] - self.steps[step - 1]["time"]


def written_steps(run):
    """-> the steps during which a checkpoint was written, at least in part: from the save on for write_s"""
    steps = []
    for saved in range(EVERY, max(run.steps), EVERY):
        after = [s for s in range(saved + 1, min(saved + EVERY, max(run.steps)) + 1)]
        wrote = next((run.steps[s]["checkpoint.write_s"] for s in after if "checkpoint.write_s" in run.steps[s]), None)
        passed = 0.0
        for step in after:
            if wrote is not None and passed >= wrote:
                break
            steps.append(step)
            passed += run.between(step)
    return steps


def measure(args, work, threads, rate):
    """-> (row of the table, whether all bounds hold)"""
    speeds, after, stalls, plain_memory, memory, staged = [], [], [], [], [], 0
    same_losses = same_peak = True
    for pair in range(args.pairs):
        plain = Run(args, work, f"plain{threads}.{pair}", threads, 0)
        saves = Run(args, work, f"saves{threads}.{pair}", threads, EVERY)
        during = written_steps(saves)
        speeds.append(sum(plain.between(s) for s in during) / sum(saves.between(s) for s in during))
        middle = statistics.median(plain.between(s) for s in range(3, args.steps + 1))
        after += [1e3 * (saves.between(s + 1) - middle) for s in range(EVERY, args.steps, EVERY)]
        stalls += [r["checkpoint.stall_ms"] for r in saves.steps.values() if "checkpoint.stall_ms" in r]
        staged = max(r.get("checkpoint.staged_bytes", 0) for r in saves.steps.values())
        plain_memory.append(plain.resident), memory.append(saves.resident)
        same_losses = same_losses and saves.losses == plain.losses
        same_peak = same_peak and saves.device_peak == plain.device_peak
    more = max(memory) - min(plain_memory)
    bound = 1e3 * staged / rate + STALL_MS
    speed = statistics.median(speeds)
    well = same_losses and same_peak and max(stalls) <= bound and more <= staged + SPARE and (speed >= LEAST_SPEED or threads > 1)
    return (f"| {threads} | {statistics.median(stalls):.1f}, {max(stalls):.1f} | {bound:.1f} | "
            f"{statistics.median(after):.1f}, {max(after):.1f} | {speed:.3f} ({min(speeds):.3f} to {max(speeds):.3f}) | "
            f"{'equal' if same_losses else 'differ'} | {more / 2**20:.0f} | "
            f"{(staged + SPARE) / 2**20:.0f} | {'equal' if same_peak else 'differs'} |"), well


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    args.build = args.build.resolve()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=args.folder) as on_disk:
        work, args.folder = pathlib.Path(folder), pathlib.Path(on_disk)
        (work / "text").write_text("\n".join(map(str, range(20000))))
        subprocess.run([args.build / "bin/mtrain", "data", "build", "--input", "text", "--output", "set"], cwd=work, check=True,
                       stdout=subprocess.DEVNULL)
        rate = memcpy_rate()
        lines = [f"memcpy: {rate * 1e-9:.1f} GB/s, one thread; {args.pairs} pairs; bounds: {LEAST_SPEED} of the speed for one "
                 "thread", "",
                 "| threads | stall, ms: median, largest | bound, ms | step after a save, ms more: median, largest | speed while "
                 "writing: median (range) | losses | more host memory, MiB | bound, MiB | device peak |", "|---|---|---|---|---|---|---|---|---|"]
        print("\n".join(lines), flush=True)
        well = True
        for threads in args.threads:
            row, holds = measure(args, work, threads, rate)
            well = well and holds
            lines.append(row)
            print(row, flush=True)
        if args.output:
            args.output.write_text("\n".join(lines) + "\n")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
