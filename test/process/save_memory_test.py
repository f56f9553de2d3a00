#!/usr/bin/env python3
"""Measures the host memory of runs that save and load checkpoints. A save may take what the plan says, its copy and the memory of
a Hugging Face form, and a load the memory of its blocks; in both cases 64 MiB more. The peak of the device does not grow.

  test/process/save_memory_test.py <mtrain>
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MTRAIN = str(pathlib.Path(sys.argv[1]).resolve())
WORK = pathlib.Path(tempfile.mkdtemp())
MIB = 1 << 20
SPARE, BLOCKS, FORM = 64 * MIB, 100 * MIB, 128 * MIB  # docs/checkpoints.md names those of a load and of a form
RECIPE = f"""
model: {{num_layers: 4, hidden_size: 512, ffn_hidden_size: 4096, num_attention_heads: 8}}
tokenizer: byte
dataset: {{train: {WORK}/set, seq_length: 16}}
train: {{steps: 3, global_batch_size: 1, micro_batch_size: 1, threads: 1, log_every: 1, device: cpu}}
checkpoint: {{every_steps: 1, keep: 1, at_end: false, async: true}}
lr_scheduler: {{style: constant}}
mixed_precision: fp32
"""


class Run:
    """A run in a folder of its own: its peak of resident memory, its records, and what it printed."""

    def __init__(self, name, *settings):
        command = [MTRAIN, "--recipe", f"{WORK}/r.yaml", f"train.run_dir={WORK}/{name}", *settings]
        with open(WORK / f"{name}.log", "w") as log:
            process = subprocess.Popen(command, env={**os.environ, "XDG_CACHE_HOME": str(WORK)}, stdout=log, stderr=log)
            _, status, usage = os.wait4(process.pid, 0)
        self.text = (WORK / f"{name}.log").read_text()
        if status != 0:
            raise SystemExit(f"{name}: it ends with status {status}\n{self.text}")
        self.peak = usage.ru_maxrss * 1024
        records = list(map(json.loads, (WORK / name / "metrics.jsonl").read_text().splitlines()))
        self.steps = [r for r in records if "loss" in r]

    def most(self, key):
        return max(r.get(key, 0) for r in self.steps)


def expect_within(what, run, plain, allowed):
    more = run.peak - plain.peak
    print(f"{what}: {more / MIB:.0f} MiB more than without; allowed are {allowed / MIB:.0f}")
    if more > allowed:
        raise SystemExit(f"{what}: too much host memory\n{run.text}")
    if run.most("memory_peak") > plain.most("memory_peak"):
        raise SystemExit(f"{what}: the peak of the device is {run.most('memory_peak')}, without saves {plain.most('memory_peak')}")


def main():
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(2000))))
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True,
                   stdout=subprocess.DEVNULL)
    plain = Run("plain", "checkpoint.every_steps=0")
    saves = Run("saves")
    copy = saves.most("checkpoint.staged_bytes")
    if copy < 3 * BLOCKS:  # else a copy too many would stay within the bounds
        raise SystemExit(f"a checkpoint of {copy} bytes is too small for this test")
    expect_within("saves in the background", saves, plain, copy + SPARE)
    expect_within("saves for which training waits", Run("waits", "checkpoint.async=false"), plain, SPARE)
    expect_within("a load", Run("load", "checkpoint.every_steps=0", f"checkpoint.load={WORK}/saves", "train.steps=4"), plain,
                  BLOCKS + SPARE)
    form = Run("form", "checkpoint.save_consolidated=every", "train.steps=2")
    expect_within("saves with a Hugging Face form", form, plain, copy + FORM + SPARE)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(WORK)
