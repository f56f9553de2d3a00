#!/usr/bin/env python3
"""Trains one step of layers with DeepSeek-V3's widths on 8 CPU ranks, and compares planned memory with resident sets.

  scripts/bench/deepseek_v3_shapes.py [--build build/release] [--limit GIB] [--dry-run] CASE

adapters: three dense layers, one with 8 experts and one of multi-token prediction; only adapters of attention are trained
dense, mtp: three dense layers; or a layer with 8 experts and one of multi-token prediction. All parameters are trained
--dry-run prints the plan alone. The training is ended if the machine uses more than --limit GiB, by default 90 % of its memory.
"""
import argparse
import json
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from process_groups import GROUP, kill_group

VOCABULARY, RANKS, UNITS = 2048, 8, {"B": 1 / 2**20, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}
WIDTHS = ["model.vocab_size=2048", "tokenizer.type=NullTokenizer", "~tokenizer.path", "dataset.seq_length=128",
          "dataset.train={mock: 64, vocab_size: 2048}", "~dataset.validation", "validation.every_steps=0", "checkpoint.enabled=false",
          "train.device=cpu", "train.threads=1", "train.steps=1", "train.micro_batch_size=1", "train.global_batch_size=4",
          "lr_scheduler.warmup_steps=0", "distributed.tp_size=2", "distributed.pp_size=4"]
EXPERTS = ["model.moe={num_experts: 8, router_topk: 2, num_groups: 1, group_topk: 1}", "model.mtp_num_layers=1", "distributed.ep_size=2"]
TRAINED = ["optimizer.master_weights=false", "optimizer.moments=bf16"]
# A family without experts. The rest of DeepSeek-V3's settings are those of its recipe.
DENSE = ["model.architecture=llama", "model.multi_latent_attention=true", "~model.moe", "model.mtp_num_layers=0", "distributed.ep_size=1"]
CASES = {
    "adapters": [*EXPERTS, "model.num_layers=4", "distributed.pipeline.layout=Et|t|t|tmL", "peft.dim=16",
                 "peft.target_modules=[q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj]"],
    "dense": [*DENSE, *TRAINED, "model.num_layers=3", "distributed.pipeline.layout=Et|t|t|L"],
    "mtp": [*EXPERTS, *TRAINED, "model.num_layers=1", "model.moe.first_dense_layers=0", "distributed.pipeline.layout=E|t|m|L"],
}


def planned_mib(text):
    """-> the planned MiB of a rank of each stage, of the table of a dry run"""
    totals = re.findall(r"^\d.* ([\d.]+) (B|[KMG]iB)$", text[text.index("memory of one rank, estimated"):], re.M)
    return [float(size) * UNITS[unit] for size, unit in totals]


def used_gib():
    sizes = dict(re.findall(r"(\w+): +(\d+) kB", pathlib.Path("/proc/meminfo").read_text()))
    return (int(sizes["MemTotal"]) - int(sizes["MemAvailable"])) / 2**20, int(sizes["MemTotal"]) / 2**20


def resident_mib(run, peaks):
    """Fills `peaks`: rank -> its largest resident set so far. -> the processes of the ranks, whose command line has that folder"""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            rank = re.search(rb"\0RANK=(\d+)\0", b"\0" + (folder / "environ").read_bytes())
            ours = run.encode() in (folder / "cmdline").read_bytes()
            peak = re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
            if rank and ours and peak:
                found.append(folder.name)
                peaks[int(rank[1])] = int(peak[1]) / 1024
        except OSError:  # a process that has ended
            continue
    return found


def train(command, run, limit):
    peaks, most, ranks, begin = {}, 0, [], time.monotonic()
    process = subprocess.Popen(command, **GROUP)
    try:
        while process.poll() is None:
            ranks = resident_mib(run, peaks)
            most = max(most, used_gib()[0])
            if most > limit:
                sys.exit(f"the machine uses {most:.1f} GiB: the training was ended")
            time.sleep(0.3)
    finally:
        if process.poll() is None:
            kill_group(process)
            subprocess.run(["kill", "-KILL", *ranks], check=False)  # they have groups of their own
    return peaks, most, time.monotonic() - begin, process.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--limit", type=float, default=0.9 * used_gib()[1])
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    root = pathlib.Path(__file__).resolve().parents[2]
    mtrain = str(pathlib.Path(args.build).resolve() / "bin/mtrain")
    recipe = ["--recipe", str(root / "recipes/deepseek_v3.yaml"), *WIDTHS, *CASES[args.case]]
    plan = subprocess.run([mtrain, *recipe, "--dry-run", "--world-size", str(RANKS)], check=True, capture_output=True, text=True)
    planned = planned_mib(plan.stdout)
    print(plan.stdout[:plan.stdout.index("\noverlap")], f"\nplanned for all ranks: {sum(planned) * RANKS / len(planned) / 1024:.2f} GiB, "
          f"{used_gib()[0]:.2f} GiB are used before", flush=True)
    if args.dry_run:
        return
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        command = [mtrain + "-launch", f"--nproc_per_node={RANKS}", *recipe, f"train.run_dir={run}"]
        peaks, most, seconds, code = train(command, str(run), args.limit)
        if code:
            sys.exit(f"the training fails with {code}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    record = next(r for r in lines if "loss" in r)
    print(f"\n{seconds:.0f} s; the machine used {most:.2f} GiB at most\n",
          {k: v for k, v in record.items() if k.startswith(("loss", "mtp_loss", "grad_norm", "step_ms", "memory_"))})
    print("\n| stage | planned, MiB | largest resident set of its ranks, MiB | ratio |\n|---|---|---|---|")
    ranks = RANKS // len(planned)
    for stage, mib in enumerate(planned):
        own = [peaks.get(r, math.nan) for r in range(stage * ranks, (stage + 1) * ranks)]
        print(f"| {stage} | {mib:.0f} | {', '.join(f'{p:.0f}' for p in own)} | {max(own) / mib:.2f} |")
    losses = [record["loss"]] + [v for k, v in record.items() if k.startswith("mtp_loss")]
    if not all(abs(loss - math.log(VOCABULARY)) < 1 for loss in losses):
        sys.exit(f"losses of a model that knows nothing are about ln {VOCABULARY} = {math.log(VOCABULARY):.2f}, not {losses}")


if __name__ == "__main__":
    main()
