#!/usr/bin/env python3
"""Runs the same training in many layouts, with real processes, and compares the losses with those of one rank.

  scripts/bench/layouts.py [--device cpu|cuda] [--steps 20] [--only WORD] [--build build/release] [--output FILE] [--share]
    [--each SECONDS] [--seconds SECONDS]

Each case is a layout of ranks: data, tensor, sequence, context and pipeline parallelism, and their overlap. Its losses
must be those of one rank, to 1e-5 in fp32 and 2e-2 in bf16, all steps. With --device cuda one rank on a GPU is also held
against one on the CPU (1e-4 in fp32: other orders of summation).

Ranks for which there are too few GPUs share them, up to 4 ranks and for the first 5 steps: NCCL refuses two ranks of a
host on one GPU, so each of them says that it is a host of its own, and they exchange data by sockets. The processes
take turns on the GPU, which is slow, and shows that the results are right, not how fast they come. --share starts the
ranks in that way in any case. Writes FILE.json and FILE.md after each case where --output is given. Exit code 1 where a
case fails.

A training that takes longer than --each fails; without it each takes as long as it takes, since a busy machine says
nothing about the losses. Cases for which the --seconds in all do not suffice are listed as not run, and fail nothing.
"""
import argparse
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from process_groups import GROUP, kill_group

ROOT = pathlib.Path(__file__).resolve().parents[2]
# At the quickstart's learning rate the first steps of Adam amplify rounding errors, in bf16 beyond any bound.
MODEL = ["model.num_layers=4", "model.hidden_size=128", "model.num_attention_heads=8", "model.num_query_groups=4",
         "dataset.seq_length=128", "train.micro_batch_size=1", "train.global_batch_size=8", "train.threads=1",
         "validation.every_steps=0", "checkpoint.every_steps=0", "lr_scheduler.warmup_steps=2",
         "dataset.validation=none", "lr_scheduler.decay_steps=100", "optimizer.lr=5e-4", "train.log_every=1000"]
PACKED = ["packed_sequence.packed_sequence_size=256"]
BOUND = {"fp32": 1e-5, "bf16_mixed": 2e-2}
ACROSS_DEVICES = {"fp32": 1e-4, "bf16_mixed": 2e-2}
SHARED_RANKS, SHARED_STEPS = 4, 5
# For ranks that share a GPU: sockets only, and few blocks that wait on the GPU for ranks that are not running.
SHARED_NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1",
               "NCCL_P2P_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2"}


def mesh(tp=1, cp=1, pp=1, sp=False):
    return [f"distributed.tp_size={tp}", f"distributed.cp_size={cp}", f"distributed.pp_size={pp}",
            f"distributed.sequence_parallel={str(sp).lower()}"]


def pipeline(schedule, pp, stages=1, **sizes):
    return mesh(pp=pp, **sizes) + [f"distributed.pipeline.pp_schedule={schedule}", f"distributed.vpp_size={stages}"]


def strategy(name, *more):
    return [f"distributed.strategy={name}", *more]


def cp_type(name, *more):
    return [f"distributed.cp_comm_type={name}", *more]


LEVELS = "distributed.hierarchical_context_parallel_sizes=[2,2]"
TP_OVERLAP = "comm_overlap.tp_comm_overlap=true"
FSDP2, MEGATRON = strategy("fsdp2"), strategy("megatron_ddp", "ddp.bucket_size=50000")

# Name, ranks, settings, and settings of the model that one rank trains too.
CASES = [
    ("ddp", 2, strategy("ddp"), []),
    ("megatron_ddp", 2, MEGATRON, []),
    ("fsdp2", 2, FSDP2, []),
    ("fsdp2 in replicas", 4, FSDP2 + ["distributed.dp_replicate_size=2"], []),
    ("ZeRO-3 by megatron_fsdp", 2, strategy("megatron_fsdp"), []),
    ("tp 2", 2, mesh(tp=2) + MEGATRON, []),
    ("tp 2, sequence parallel, overlapped", 2, mesh(tp=2, sp=True) + FSDP2 + [TP_OVERLAP], []),
    ("tp 4, sequence parallel, overlapped", 4, mesh(tp=4, sp=True) + MEGATRON + [TP_OVERLAP], []),
    ("cp 2, p2p", 2, mesh(cp=2) + cp_type("p2p") + FSDP2, []),
    ("cp 2, all_gather", 2, mesh(cp=2) + cp_type("all_gather") + MEGATRON, []),
    ("cp 2, a2a", 2, mesh(cp=2) + cp_type("a2a") + FSDP2, []),
    ("cp 4, a2a+p2p", 4, mesh(cp=4) + cp_type("a2a+p2p", LEVELS) + MEGATRON, []),
    ("cp 2, p2p, packed", 2, mesh(cp=2) + cp_type("p2p") + FSDP2, PACKED),
    ("tp 2 x cp 2, sequence parallel, packed", 4, mesh(tp=2, cp=2, sp=True) + FSDP2, PACKED),
    ("1f1b, pp 2", 2, pipeline("1f1b", 2) + MEGATRON, []),
    ("interleaved_1f1b, pp 2 x 2", 2, pipeline("interleaved_1f1b", 2, 2) + FSDP2, []),
    ("zero_bubble, pp 2", 2, pipeline("zero_bubble", 2) + FSDP2, []),
    ("v_schedule, pp 2", 2, pipeline("v_schedule", 2, 2) + MEGATRON, []),
    ("dualpipev, pp 2", 2, pipeline("dualpipev", 2, 2) + MEGATRON, []),
    ("tp 2 x pp 2, sequence parallel", 4, pipeline("1f1b", 2, tp=2, sp=True) + FSDP2, []),
    ("tp 2 x cp 2 x pp 2", 8, pipeline("interleaved_1f1b", 2, 2, tp=2, cp=2) + FSDP2, []),
]


class TimeSpent(Exception):
    pass


class Suite:
    def __init__(self, args, work):
        self.args, self.work, self.deadline = args, work, time.monotonic() + args.seconds
        build = (ROOT / args.build).resolve()
        self.mtrain = build / "bin/mtrain"
        self.launch = build / "bin/mtrain-launch"
        for program in (self.mtrain, self.launch):
            if not program.exists():
                sys.exit(f"{program} is not built")
        text = work / "text"
        # Documents of several lengths.
        text.write_text("\n\n".join(" ".join(str(n * k) for n in range(5 + k * 7 % 60)) for k in range(400)))
        subprocess.run([self.mtrain, "data", "build", "--input", text, "--output", work / "set", "--split", "blank-line"],
                       check=True, capture_output=True)
        self.references = {}

    def train(self, ranks, settings, device, precision, gpus=None):
        """Losses of all steps and the seconds that they took, or an error. gpus: those that the ranks share."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        began = time.monotonic()
        steps = self.args.steps if gpus is None else min(SHARED_STEPS, self.args.steps)
        settings = ["--recipe", ROOT / "recipes/quickstart.yaml", f"dataset.train={self.work}/set", f"train.run_dir={run}/run",
                    f"train.steps={steps}", f"train.device={device}", f"mixed_precision.name={precision}", *MODEL, *settings]
        if gpus is None:
            code, said = self.execute([([self.launch, f"--nproc_per_node={ranks}", *settings], {})])
        else:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            code, said = self.execute([([self.mtrain, *settings, "comm.timeout_s=20"], dict(
                SHARED_NCCL, RANK=str(r), WORLD_SIZE=str(ranks), LOCAL_RANK=str(r % gpus), LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"mtrain-{r}")) for r in range(ranks)])
        if code != 0:
            why = f"ended with {code}: " if isinstance(code, str) or not said.strip() else ""
            return None, why + " ".join(said[max(0, said.find("error:")):].split())[:300]
        lines = [json.loads(line) for line in (run / "run/metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line], time.monotonic() - began

    def execute(self, commands):
        """Runs all ranks at once; the first that fails ends the others. -> (its exit code or the limit, all output).

        Throws TimeSpent if the time of all cases is over.
        """
        if time.monotonic() >= self.deadline:
            raise TimeSpent("not run: the time is spent")
        files = [tempfile.TemporaryFile("w+") for _ in commands]
        self.running = [subprocess.Popen([str(c) for c in command], stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=ROOT,
                                         env={**os.environ, **env}, **GROUP)
                        for (command, env), file in zip(commands, files)]
        began, code = time.monotonic(), None
        while code is None:
            codes = [process.poll() for process in self.running]
            failed = [c for c in codes if c]
            code = failed[0] if failed else 0 if None not in codes else None
            if code is None and time.monotonic() - began > self.args.each:
                code = f"the limit of {self.args.each:g} s"
            if code is None and time.monotonic() > self.deadline:
                self.end()
                raise TimeSpent(f"not run to its end: the time was spent after {time.monotonic() - began:.0f} s")
            time.sleep(0.02)
        if code != 0:
            time.sleep(0.5)  # for the others to say why
        self.end()
        for file in files:
            file.seek(0)
        return code, "".join(file.read() for file in files)

    running = []

    def end(self):
        for process in self.running:
            if process.poll() is None:
                process.terminate()  # a launcher ends its ranks
        for process in self.running:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                kill_group(process)

    def reference(self, model, device, precision):
        key = (tuple(model), device, precision)
        if key not in self.references:
            losses, why = self.train(1, ["distributed.strategy=ddp", *model], device, precision)
            if losses is None:
                sys.exit(f"one rank on {device} in {precision}: {why}")
            self.references[key] = losses
        return self.references[key]

    def check(self, name, ranks, losses, reference, bound, precision, seconds, steps=None):
        steps = steps or self.args.steps
        differences = [abs(a - b) / abs(b) for a, b in zip(losses, reference)]
        # One by one, since max() ignores NaN.
        good = len(losses) == len(reference) == steps and all(d <= bound for d in differences)
        worst = max(differences, default=float("nan"))
        return {"case": name, "ranks": ranks, "precision": precision, "worst": worst, "bound": bound,
                "result": "passed" if good else "FAILED", "seconds": round(seconds, 1)}

    def run(self, gpus):
        device = self.args.device
        for precision in BOUND:
            if device == "cuda":
                yield self.across_devices(precision)
            for name, ranks, settings, model in CASES:
                if self.args.only and self.args.only not in name:
                    continue
                share = self.args.share or device == "cuda" and ranks > gpus
                shown = {"case": name + (", sharing" if share else ""), "ranks": ranks, "precision": precision}
                if share and device == "cuda" and ranks > SHARED_RANKS * gpus:
                    yield dict(shown, case=name, result=f"not run: {gpus} GPU{'s' if gpus != 1 else ''} for {ranks} ranks")
                    continue
                try:
                    reference = self.reference(model, device, precision)
                    losses, seconds = self.train(ranks, model + settings, device, precision, max(1, gpus) if share else None)
                except TimeSpent as e:
                    yield dict(shown, result=str(e))
                    continue
                steps = min(SHARED_STEPS, self.args.steps) if share else self.args.steps
                if losses is None:
                    yield dict(shown, result=f"FAILED: {seconds}")
                else:
                    yield self.check(shown["case"], ranks, losses, reference[:steps], BOUND[precision], precision, seconds, steps)

    def across_devices(self, precision):
        name = "one GPU against the CPU"
        try:
            on_cpu, on_gpu = (self.reference([], device, precision) for device in ("cpu", "cuda"))
        except TimeSpent as e:
            return {"case": name, "ranks": 1, "precision": precision, "result": str(e)}
        return self.check(name, 1, on_gpu, on_cpu, ACROSS_DEVICES[precision], precision, 0)


def gpu_count():
    try:
        lines = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines()
        return sum(line.startswith("GPU") for line in lines)  # not the parts (MIG) of one
    except FileNotFoundError:
        return 0


def table(rows):
    lines = ["| case | ranks | precision | largest relative difference | bound | result |", "|---|---|---|---|---|---|"]
    for r in rows:
        worst = f"{r['worst']:.1e}" if "worst" in r else ""
        lines.append(f"| {r['case']} | {r['ranks']} | {r['precision']} | {worst} | {r.get('bound', '')} | {r['result']} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", help="cases with this in their name")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--share", action="store_true", help="as ranks that share a GPU are started")
    parser.add_argument("--each", type=float, default=math.inf, metavar="SECONDS", help="for one training; default: no limit")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all cases; default: no limit")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        suite = Suite(args, pathlib.Path(work))
        signal.signal(signal.SIGTERM, lambda *_: (suite.end(), sys.exit(1)))
        for row in suite.run(gpu_count()):
            rows.append(row)
            print(f"{row['precision']:<11}{row['case']:<51}{row['result']}"
                  + (f", {row['worst']:.1e}, {row['seconds']} s" if "worst" in row else ""), flush=True)
            if args.output:
                args.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
                args.output.with_suffix(".md").write_text(table(rows))
    failed = sum(row["result"].startswith("FAILED") for row in rows)
    print(f"{len(rows)} cases, {failed} failed, {sum(row['result'].startswith('not run') for row in rows)} not run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
