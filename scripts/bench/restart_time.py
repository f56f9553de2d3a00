#!/usr/bin/env python3
"""Measures the time from a rank's death to the next step of the restarted job.

  scripts/bench/restart_time.py MTRAIN LAUNCH [runs] [ranks]

Prints, as medians: seconds until the launcher begins to restart, and until the next step.
"""
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RECIPE = """model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 4}}
tokenizer: byte
dataset: {{train: {work}/set, seq_length: 64}}
train: {{steps: 1000000, global_batch_size: {ranks}, micro_batch_size: 1, threads: 1, log_every: 1}}
distributed: {{strategy: ddp}}
lr_scheduler: {{style: constant}}
checkpoint: {{every_steps: 20, keep: 1}}
mixed_precision: fp32
"""


def ranks_of(run):
    """The process numbers of the job's ranks, by rank."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/mtrain") and any(run.encode() in word for word in words):
            for variable in variables:
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(process.name)
    return found


def measure(mtrain, launch, ranks):
    with tempfile.TemporaryDirectory() as work:
        recipe = pathlib.Path(work, "r.yaml")
        recipe.write_text(RECIPE.format(work=work, ranks=ranks))
        text = pathlib.Path(work, "text")
        text.write_text("\n".join(map(str, range(40000))))
        subprocess.run([mtrain, "data", "build", "--input", text, "--output", f"{work}/set"], check=True,
                       stdout=subprocess.DEVNULL)
        run = f"train.run_dir={work}/run"
        job = subprocess.Popen([launch, f"--nproc_per_node={ranks}", "--max_restarts=1", "--recipe", recipe, run],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            killed = restarts = 0
            for line in job.stdout:
                step = re.match(r"step +(\d+)/", line)
                if not killed and step and int(step[1]) >= 30:
                    killed = time.monotonic()
                    os.kill(ranks_of(run)[ranks - 1], signal.SIGKILL)
                elif killed and "restarting all ranks" in line:
                    restarts = time.monotonic()
                elif restarts and step:
                    return restarts - killed, time.monotonic() - killed
            sys.exit("the job has ended before it was restarted")
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    mtrain, launch = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    ranks = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    times = [measure(mtrain, launch, ranks) for _ in range(runs)]
    restart, step = (statistics.median(column) for column in zip(*times))
    print(f"{ranks} ranks, median of {runs}: {restart:.2f} s to the restart, {step:.2f} s to the next step "
          f"(from {min(t[1] for t in times):.2f} to {max(t[1] for t in times):.2f})")


main()
