#!/usr/bin/env python3
"""Kills a training with SIGKILL at each system call of its second save, and requires that the next start continues from the newest complete checkpoint with the losses of an uninterrupted run. Needs strace; takes two minutes.

  test/process/killed_save_test.py <mtrain>
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MTRAIN = str(pathlib.Path(sys.argv[1]).resolve())
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: ../set, seq_length: 32}
train: {steps: 2, global_batch_size: 2, micro_batch_size: 2, threads: 1, log_every: 1, device: cpu}
checkpoint: {every_steps: 1, keep: 3}
lr_scheduler: {style: constant}
mixed_precision: fp32
"""
# All system calls that open, write, name or remove a file.
CALLS = ["openat", "write", "pwrite64", "pwritev", "writev", "fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink",
         "unlinkat", "mkdir", "mkdirat", "ftruncate", "symlink", "symlinkat", "link", "linkat", "rmdir", "fallocate"]


def start(run, *more, under=()):
    folder = WORK / run
    folder.mkdir(exist_ok=True)
    command = [*under, MTRAIN, "--recipe", "../r.yaml", "train.run_dir=run", *more]
    return subprocess.run(command, cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(WORK)}, capture_output=True, text=True)


def losses(run):
    records = map(json.loads, (WORK / run / "run/metrics.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in records if "step" in r and "loss" in r}


def points_of_second_save():
    """-> (name of a system call, how many of that name the run has made with it), from the save's first to the run's last."""
    trace = WORK / "trace"
    start("whole", under=["strace", "-f", "-o", str(trace), "-e", "trace=" + ",".join(CALLS)])
    calls = [(m[1], line) for line in trace.read_text().splitlines() if (m := re.match(r"\d+ +(\w+)\(", line))]
    first = next(i for i, (_, line) in enumerate(calls) if "step-00000002" in line)
    count, points = {}, []
    for i, (name, _) in enumerate(calls):
        count[name] = count.get(name, 0) + 1
        if i >= first:
            points.append((name, count[name]))
    return points


def check(number, name, count, expected):
    """-> the step from which the run continues"""
    run = f"killed{number}"
    start(run, under=["strace", "-f", "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={count}"])
    newest = 2 if (WORK / run / "run/checkpoints/step-00000002").is_dir() else 1
    again = start(run, "checkpoint.load=latest", "train.steps=4")
    text = again.stdout + again.stderr
    continued = re.search(r"continuing after step (\d+)", text)
    if again.returncode != 0 or not continued or int(continued[1]) != newest or losses(run) != expected:
        raise SystemExit(f"killed at {name} number {count}, with step {newest} whole: exit code {again.returncode}, losses "
                         f"{losses(run)}\n{text}")
    shutil.rmtree(WORK / run)
    return newest


def main():
    if not shutil.which("strace"):
        raise SystemExit("strace is missing")
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(20000))))
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True,
                   stdout=subprocess.DEVNULL)
    start("expected", "train.steps=4")
    expected, points = losses("expected"), points_of_second_save()
    if len(points) < 35 or sorted(expected) != [1, 2, 3, 4]:
        raise SystemExit(f"{len(points)} system calls, losses {expected}")
    from_steps = [check(i, name, count, expected) for i, (name, count) in enumerate(points)]
    print(f"killed at {len(points)} system calls; continued {from_steps.count(1)} times after step 1, "
          f"{from_steps.count(2)} times after step 2")
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
