#!/usr/bin/env python3
"""The same training in many layouts, as real processes: losses against one rank's.

  scripts/bench/layouts.py [--device cpu|cuda] [--steps 20] [--only WORD] [--build build/release] [--output FILE]

Each case is a layout of ranks: data, tensor, sequence, context and pipeline parallelism, and their overlap. Its losses
must be those of one rank, to 1e-5 in fp32 and 2e-2 in bf16, all steps. With --device cuda every rank has a GPU of its
own, and one rank on a GPU is held against one on the CPU (1e-4 in fp32: other orders of summation); cases for which
there are too few GPUs are listed as not run. Writes FILE.json and FILE.md where --output is given. Exit code 1 where a
case fails.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# At the quickstart's learning rate the first steps of Adam blow rounding up, in bf16 beyond any bound.
MODEL = ["model.num_layers=4", "model.hidden_size=128", "model.num_attention_heads=8", "model.num_query_groups=4",
         "dataset.seq_length=128", "train.micro_batch_size=1", "train.global_batch_size=8", "train.threads=1",
         "validation.every_steps=0", "checkpoint.every_steps=0", "lr_scheduler.warmup_steps=2",
         "dataset.validation=none", "lr_scheduler.decay_steps=100", "optimizer.lr=5e-4", "train.log_every=1000"]
PACKED = ["packed_sequence.packed_sequence_size=256"]
BOUND = {"fp32": 1e-5, "bf16_mixed": 2e-2}
ACROSS_DEVICES = {"fp32": 1e-4, "bf16_mixed": 2e-2}


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


class Suite:
    def __init__(self, args, work):
        self.args, self.work = args, work
        build = (ROOT / args.build).resolve()
        self.mtrain = build / "apps/mtrain/mtrain"
        self.launch = build / "apps/mtrain-launch/mtrain-launch"
        for program in (self.mtrain, self.launch):
            if not program.exists():
                sys.exit(f"{program} is not built")
        text = work / "text"
        # Documents of several lengths.
        text.write_text("\n\n".join(" ".join(str(n * k) for n in range(5 + k * 7 % 60)) for k in range(400)))
        subprocess.run([self.mtrain, "data", "build", "--input", text, "--output", work / "set", "--split", "blank-line"],
                       check=True, capture_output=True)
        self.references = {}

    def train(self, ranks, settings, device, precision):
        """Losses of all steps and the seconds that they took, or what went wrong."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        began = time.monotonic()
        done = subprocess.run(
            [self.launch, f"--nproc_per_node={ranks}", "--recipe", ROOT / "recipes/quickstart.yaml",
             f"dataset.train={self.work}/set", f"train.run_dir={run}/run", f"train.steps={self.args.steps}",
             f"train.device={device}", f"mixed_precision.name={precision}", *MODEL, *settings],
            capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            said = done.stderr + done.stdout
            return None, " ".join(said[max(0, said.find("error:")):].split())[:300]
        lines = [json.loads(line) for line in (run / "run/metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line], time.monotonic() - began

    def reference(self, model, device, precision):
        key = (tuple(model), device, precision)
        if key not in self.references:
            losses, why = self.train(1, ["distributed.strategy=ddp", *model], device, precision)
            if losses is None:
                sys.exit(f"one rank on {device} in {precision}: {why}")
            self.references[key] = losses
        return self.references[key]

    def check(self, name, ranks, losses, reference, bound, precision, seconds):
        differences = [abs(a - b) / abs(b) for a, b in zip(losses, reference)]
        # Each for itself: max() passes over what is not a number.
        good = len(losses) == len(reference) == self.args.steps and all(d <= bound for d in differences)
        worst = max(differences, default=float("nan"))
        return {"case": name, "ranks": ranks, "precision": precision, "worst": worst, "bound": bound,
                "result": "passed" if good else "FAILED", "seconds": round(seconds, 1)}

    def run(self, gpus):
        device = self.args.device
        for precision in BOUND:
            if device == "cuda":
                on_cpu = self.reference([], "cpu", precision)
                on_gpu = self.reference([], "cuda", precision)
                yield self.check("one GPU against the CPU", 1, on_gpu, on_cpu, ACROSS_DEVICES[precision], precision, 0)
            for name, ranks, settings, model in CASES:
                if self.args.only and self.args.only not in name:
                    continue
                if device == "cuda" and ranks > gpus:
                    yield {"case": name, "ranks": ranks, "precision": precision,
                           "result": f"not run: {gpus} GPU{'s' if gpus != 1 else ''} for {ranks} ranks"}
                    continue
                reference = self.reference(model, device, precision)
                losses, seconds = self.train(ranks, model + settings, device, precision)
                if losses is None:
                    yield {"case": name, "ranks": ranks, "precision": precision, "result": f"FAILED: {seconds}"}
                else:
                    yield self.check(name, ranks, losses, reference, BOUND[precision], precision, seconds)


def gpu_count():
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
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
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for row in Suite(args, pathlib.Path(work)).run(gpu_count()):
            rows.append(row)
            print(f"{row['precision']:<11}{row['case']:<42}{row['result']}"
                  + (f", {row['worst']:.1e}" if "worst" in row else ""), flush=True)
    if args.output:
        args.output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        args.output.with_suffix(".md").write_text(table(rows))
    failed = sum(row["result"].startswith("FAILED") for row in rows)
    print(f"{len(rows)} cases, {failed} failed, {sum(row['result'].startswith('not run') for row in rows)} not run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
