#!/usr/bin/env python3
"""Compares what `mtrain plan` predicts with trainings on two CPU cores: step times, exposed communication and memory.

  scripts/bench/plan_cpu.py [--build build/release] [--calibration FOLDER] [--seconds 60] [--rounds 3] [--steps 8] [--only WORD]
    [--numa-binding MODE] [--memory-only] [--output FILE]

First measures the machine by `mtrain calibrate`, with one rank and with two, whose models have other shapes than those here. --calibration
keeps the files in FOLDER, and uses those that it has. Then each case is predicted, and trained in --rounds rounds over all cases. A
figure is the median over the steps of all rounds, without the first two steps of each training. --nice starts the processes with
another priority, such as -15 on a machine that is not idle. --numa-binding exclusive gives each of two ranks a core of its own, in the
calibration and in the trainings. The calibration of two ranks has the binding in its name, two_exclusive.yaml.

A second table has the largest memory of each category: planned by formula, recorded by `mtrain plan --memory`, and measured by the
allocators of a training. --memory-only compares only that, in one round of three steps, without a calibration.
"""
import argparse
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from process_groups import GROUP, kill_group

AXES = ("tp", "cp", "ep", "dp", "pp")
COMMON = """
mixed_precision: fp32
train: {steps: %d, log_every: 1, run_dir: runs, threads: 1, global_batch_size: %d, micro_batch_size: 1}
validation: {every_steps: 0}
checkpoint: {every_steps: 0}
dataset: {train: {mock: 4096, vocab_size: %d}, seq_length: %d}
"""
MODELS = {
    "3M": ("{num_layers: 4, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4, ffn_hidden_size: 704, vocab_size: 512, "
           "share_embeddings_and_output_weights: true}", 8, 512, 256),
    "28M": ("{num_layers: 8, hidden_size: 512, num_attention_heads: 8, num_query_groups: 4, ffn_hidden_size: 1408, vocab_size: 8192, "
            "share_embeddings_and_output_weights: true}", 4, 8192, 128),
    "Mixtral": ("{num_layers: 4, hidden_size: 256, num_attention_heads: 8, num_query_groups: 4, ffn_hidden_size: 352, vocab_size: 512, "
                "share_embeddings_and_output_weights: true, moe: {num_experts: 4, router_topk: 2, ffn_hidden_size: 352, "
                "load_balancing_type: none}}", 8, 512, 128),
}
PIPELINE = "distributed.pipeline.pp_schedule="
LAYOUTS = {
    "1 rank": (1, []),
    "ddp": (2, ["distributed.strategy=ddp"]),
    "ZeRO 1": (2, ["distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"]),
    "fsdp2": (2, ["distributed.strategy=fsdp2"]),
    "tp": (2, ["distributed.tp_size=2"]),
    "tp + sp": (2, ["distributed.tp_size=2", "distributed.sequence_parallel=true"]),
    "cp": (2, ["distributed.cp_size=2"]),
    "1f1b": (2, ["distributed.pp_size=2", PIPELINE + "1f1b"]),
    "interleaved": (2, ["distributed.pp_size=2", "distributed.vpp_size=2", PIPELINE + "interleaved_1f1b"]),
    "zero_bubble": (2, ["distributed.pp_size=2", PIPELINE + "zero_bubble"]),
}
LINKS = {"none": [], "slow": ["comm.link.gbps=1", "comm.link.latency_us=200"]}
CLUSTER = """gpu: {kind: cpu, memory_gib: 6, peak_tflops: {fp32: 0.08, bf16: 0.08}}
domain: {gpus: 2, gbps: 32, latency_us: 5}
%s"""
CATEGORIES = ("params", "grads", "optimizer", "activations", "buffers", "total")


def cases():
    all_cases = []
    for model in ("3M", "28M"):
        for layout in LAYOUTS:
            for link in LINKS:
                if layout != "1 rank" or link == "none":
                    all_cases.append((model, layout, link))
    return all_cases + [("Mixtral", "1 rank", "none"), ("Mixtral", "ep", "none"), ("Mixtral", "ep", "slow")]


def settings_of(layout, link):
    if layout == "ep":
        return 2, ["distributed.ep_size=2", "distributed.strategy=megatron_ddp", *LINKS[link]]
    ranks, settings = LAYOUTS[layout]
    return ranks, settings + LINKS[link]


class Programs:
    def __init__(self, build, niceness, binding):
        build = pathlib.Path(build).resolve()
        self.binding = [f"--numa-binding={binding}"] if binding else []
        self.mtrain, self.launch = str(build / "bin/mtrain"), str(build / "bin/mtrain-launch")
        self.nice = ["nice", "-n", str(niceness)] if niceness else []

    def run(self, command, folder, ranks=1, timeout=600):
        start = [self.launch, f"--nproc_per_node={ranks}", *self.binding] if ranks > 1 else []
        process = subprocess.Popen([*self.nice, *start, self.mtrain, *command], cwd=folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **GROUP)
        try:
            text, messages = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            sys.exit(f"{' '.join(command)} takes longer than {timeout} s")
        if process.returncode:
            sys.exit(f"{' '.join(command)} fails:\n{text}{messages}")
        return text


def calibration_file(folder, ranks, binding):
    """-> a file for each binding, as ranks that are not bound have other costs; a rank alone is never bound"""
    return folder / ("one.yaml" if ranks == 1 else f"two_{binding}.yaml" if binding else "two.yaml")


def calibrate(programs, folder, seconds, binding):
    for ranks in (1, 2):
        file = calibration_file(folder, ranks, binding)
        if not file.exists():
            print(programs.run(["calibrate", "--output", str(file), "--seconds", str(seconds), "--threads", "1"], folder, ranks,
                               timeout=600 + 3 * seconds), flush=True)
        (folder / f"cluster_{ranks}.yaml").write_text(CLUSTER % f"calibration: {file.name}\n")


def predict(programs, folder, recipe, ranks, settings):
    return json.loads(programs.run(["plan", "--recipe", str(recipe), "--cluster", str(folder / f"cluster_{ranks}.yaml"), "--world-size",
                                    str(ranks), "--json", "--memory", *settings], folder))


def train(programs, folder, recipe, ranks, settings):
    """-> a record for each step after the first two: its seconds and the exposed seconds by parallelism; the peaks of memory"""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    programs.run(["--recipe", str(recipe), f"train.run_dir={run}", *settings], folder, ranks)
    steps, peaks = [], {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "step_ms" not in record or record["step"] <= 2:
            continue
        exposed = dict.fromkeys(AXES, 0.0)
        for key, value in record.items():
            parts = key.split(".")
            if len(parts) == 3 and parts[0] == "comm" and parts[2] == "exposed_ms" and parts[1].split("_")[0] in exposed:
                exposed[parts[1].split("_")[0]] += value / 1e3
        steps.append((record["step_ms"] / 1e3, exposed))
        peaks = {k: v for k, v in record.items() if k.startswith("memory_peak")}
    return steps, peaks


def memory_rows(case, predicted, peaks):
    """-> rows of rank 0, and for a pipeline of the largest figures of all ranks: bytes of each category"""
    ranks = predicted["memory_by_category"]
    rows = []
    for name, suffix, of_plan in [("rank 0", "", ranks[:1]), ("most of a rank", ".max", ranks)][:1 if len(ranks) == 1 else 2]:
        for category in CATEGORIES:
            key = "memory_peak" + suffix if category == "total" else f"memory_peak.{category}{suffix}"
            planned, recorded = (max(r[kind][category] for r in of_plan) for kind in ("planned", "recorded"))
            rows.append({"case": case, "rank": name, "category": category, "planned": planned, "recorded": recorded,
                         "measured": peaks[key]})
    return rows


def row_of(case, predicted, steps):
    seconds = statistics.median(s for s, _ in steps)
    exposed = {a: statistics.median(e[a] for _, e in steps) / seconds for a in AXES}
    of_plan = {a: predicted["communication"].get(a, {}).get("exposed_s", 0) / predicted["step_s"] for a in AXES}
    sides = sorted(s for s, _ in steps)
    return {"case": case, "predicted_ms": predicted["step_s"] * 1e3, "measured_ms": seconds * 1e3,
            "quartiles_ms": [sides[len(sides) // 4] * 1e3, sides[len(sides) * 3 // 4] * 1e3],
            "error": predicted["step_s"] / seconds - 1, "exposed": exposed, "predicted_exposed": of_plan,
            "band": predicted["band"]["share"]}


def shares(exposed):
    return ", ".join(f"{a} {100 * v:.1f}" for a, v in exposed.items() if v >= 0.0005) or "-"


def table(rows):
    text = ("| model | layout | link | predicted ms | measured ms | middle half | error | exposed, predicted % | measured % |\n"
            "|---|---|---|---:|---:|---|---:|---|---|\n")
    for r in rows:
        text += (f"| {' | '.join(r['case'])} | {r['predicted_ms']:.1f} | {r['measured_ms']:.1f} | {r['quartiles_ms'][0]:.1f} to "
                 f"{r['quartiles_ms'][1]:.1f} | {100 * r['error']:+.1f} % | {shares(r['predicted_exposed'])} | {shares(r['exposed'])} |\n")
    errors = sorted(abs(r["error"]) for r in rows)
    points = [abs(r["exposed"][a] - r["predicted_exposed"][a]) for r in rows for a in AXES
              if r["exposed"][a] > 0 or r["predicted_exposed"][a] > 0]
    text += (f"\n{len(rows)} cases: median error {100 * statistics.median(errors):.1f} %, within 10 %: {sum(e <= 0.1 for e in errors)} "
             f"({100 * sum(e <= 0.1 for e in errors) / len(errors):.0f} %), largest {100 * errors[-1]:.1f} %\n")
    if points:
        text += (f"exposed shares: {sum(p <= 0.05 for p in points)} of {len(points)} within 5 points of the step, largest difference "
                 f"{100 * max(points):.1f}\n")
    return text


def error_text(row, kind):
    """How far the figure is off the measured one; two figures of zero do not differ."""
    if row[kind] == row["measured"]:
        return "0.0 %"
    return f"{100 * (row[kind] / row['measured'] - 1):+.1f} %" if row["measured"] else "nothing measured"


def near(row, kind):
    return abs(row[kind] - row["measured"]) <= 0.05 * row["measured"]


def memory_table(rows):
    text = ("| model | layout | link | rank | category | planned KiB | recorded KiB | measured KiB | planned | recorded |\n"
            "|---|---|---|---|---|---:|---:|---:|---:|---:|\n")
    for r in rows:
        text += (f"| {' | '.join(r['case'])} | {r['rank']} | {r['category']} | "
                 f"{' | '.join(f'{r[kind] / 1024:.1f}' for kind in ('planned', 'recorded', 'measured'))} | {error_text(r, 'planned')} | "
                 f"{error_text(r, 'recorded')} |\n")
    text += "\nwithin 5 % of the measured memory:\n"
    for category in CATEGORIES:
        of_category = [r for r in rows if r["category"] == category]
        text += (f"- {category}: {sum(near(r, 'planned') for r in of_category)} of {len(of_category)} planned, "
                 f"{sum(near(r, 'recorded') for r in of_category)} recorded\n")
    return text + (f"- all: {sum(near(r, 'planned') for r in rows)} of {len(rows)} planned, "
                   f"{sum(near(r, 'recorded') for r in rows)} recorded\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--calibration")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--numa-binding")
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--output")
    o = parser.parse_args()
    chosen = [c for c in cases() if o.only in " / ".join(c)]
    if not chosen:
        parser.error(f"no case has {o.only} in its name")
    if o.steps < 3:
        parser.error("--steps must be 3 or more, as the first two do not count")
    if o.memory_only:
        o.rounds, o.steps = 1, 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(o.calibration or made).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        programs = Programs(o.build, o.nice, o.numa_binding)
        if o.memory_only:
            for ranks in (1, 2):
                (folder / f"cluster_{ranks}.yaml").write_text(CLUSTER % "")
        else:
            calibrate(programs, folder, o.seconds, o.numa_binding)
        recipes = {}
        for name, (model, batch, vocabulary, length) in MODELS.items():
            recipes[name] = folder / f"{name}.yaml"
            recipes[name].write_text(f"model: {model}" + COMMON % (o.steps, batch, vocabulary, length))
        predictions = {c: predict(programs, folder, recipes[c[0]], *settings_of(c[1], c[2])) for c in chosen}
        steps, memory = {c: [] for c in chosen}, {}
        for round_number in range(o.rounds):
            for c in chosen:
                of_run, peaks = train(programs, folder, recipes[c[0]], *settings_of(c[1], c[2]))
                steps[c] += of_run
                memory[c] = memory_rows(c, predictions[c], peaks)
                print(f"round {round_number + 1}: {' / '.join(c)}: {1e3 * predictions[c]['step_s']:.1f} ms predicted, "
                      f"{1e3 * statistics.median(s for s, _ in steps[c]):.1f} measured", flush=True)
        rows = [] if o.memory_only else [row_of(c, predictions[c], steps[c]) for c in chosen]
        of_memory = [row for c in chosen for row in memory[c]]
        print("\n" + (table(rows) + "\n" if rows else "") + memory_table(of_memory))
        if o.output:
            pathlib.Path(o.output).write_text(json.dumps({"times": rows, "memory": of_memory}, indent=1))


if __name__ == "__main__":
    main()
