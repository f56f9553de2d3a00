#!/usr/bin/env python3
"""Compares training speed and memory of mtrain with PyTorch's on this CPU: same model, same threads, same machine.

  scripts/bench/compare_torch.py --python path/to/venv/bin/python [--models a b c m l n] [--dtypes fp32 bf16] [--isa host|avx2]
    [--modes single ddp fsdp] [--ranks 2] [--rounds 3]

PyTorch is torch_train.py beside this file, in an interpreter that has it (python -m venv; pip install torch numpy).
Both programs use the widest instructions of the CPU, or with --isa avx2 what a CPU without AVX-512 has: MTRAIN_CPU_ISA,
and for PyTorch ATEN_CPU_CAPABILITY, MKL_ENABLE_INSTRUCTIONS and ONEDNN_MAX_CPU_ISA.

Mode single is one process with all threads; ddp and fsdp (ours: fsdp2) spread the threads over --ranks processes, each
with the model's batch, and beside them stands our own single process on as many tokens a step.

For every model and precision the fastest of PyTorch's variants is found by short runs: eager or torch.compile, and for
bf16 autocast (fp32 weights, as ours) or weights and moments of bf16; for model m, whose layers have experts, also the
forms of torch_train.py's --experts, and for models l and n, whose attention is latent, those of its --values. Model n has
next to no MLP: its steps are those of the attention module. Then both programs take turns; a round's ratio is that of the median steps of its
two neighbouring runs, and the result is the median of the rounds. Memory is the largest resident set of a process; its
ratio is to the least of PyTorch's variants that keep fp32 weights. Both, and how busy others kept the cores meanwhile,
are measured from outside, in the same way for both. Writes OUTPUT.json and OUTPUT.md.

--cpu-time is for a machine that others use: it compares processor time instead, in which waiting for a core does not
count. Both programs then have one thread, since threads that wait for each other also use processor time. A step of mtrain
takes the difference of two runs of different length, divided by the difference of their steps.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from compare_gpu import settings_of, shape_of, write_data

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = {"a": "llama_3m", "b": "llama_28m", "c": "llama_124m", "m": "mixtral_42m", "l": "latent_34m", "n": "latent_module"}
STEPS = {"a": 30, "b": 12, "c": 8, "m": 12, "l": 8, "n": 12}  # measured steps of a run
TARGET_SPEED = {"fp32": {"a": 1.8, "b": 1.6, "c": 1.45, "m": 1.5, "l": 1.5, "n": 1.5},
                "bf16": {"a": 1.6, "b": 1.45, "c": 1.45, "m": 1.5, "l": 1.5, "n": 1.5}}
TARGET_MEMORY = 0.7
STRATEGY = {"ddp": "ddp", "fsdp": "fsdp2"}
FAIR_OTHERS = 0.1                   # cores that others may keep busy in a run that counts
PRECISION = {"fp32": "fp32", "bf16": "bf16_mixed"}
ISA = {"host": {}, "avx2": {"MTRAIN_CPU_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                            "ONEDNN_MAX_CPU_ISA": "AVX2"}}


def busy_seconds():
    """CPU seconds that the machine has spent, in all processes."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_idle(limit):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before, began = busy_seconds(), time.monotonic()
        time.sleep(0.5)
        if (busy_seconds() - before) / (time.monotonic() - began) < 0.06:
            return
    if limit > 0:
        print("  (others keep the machine busy)", flush=True)


def run(args, command):
    """-> (output, largest resident set in MiB, cores that others kept busy, seconds of processor time)."""
    wait_for_idle(args.idle_wait)
    before, began = busy_seconds(), time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen([str(c) for c in command], cwd=ROOT, env={**os.environ, **ISA[args.isa]}, stdout=output,
                                   stderr=complaints)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        elapsed = time.monotonic() - began
        others = busy_seconds() - before - usage.ru_utime - usage.ru_stime
        output.seek(0), complaints.seek(0)
        text, said = output.read(), complaints.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{(text + said)[-2000:]}\nended with {process.returncode}")
    return text, usage.ru_maxrss / 1024, max(0.0, others / elapsed), usage.ru_utime + usage.ru_stime


def measured(steps_ms, tokens, memory, others, **more):
    return dict(step_ms=[round(x, 2) for x in steps_ms], tokens=tokens, memory_mib=round(memory),
                tokens_per_s=tokens / statistics.median(steps_ms) * 1e3, others=round(others, 2), **more)


class Comparison:
    """One model in one precision and mode."""

    def __init__(self, args, model, dtype, mode):
        self.args, self.model, self.dtype, self.mode = args, model, dtype, mode
        self.ranks = 1 if mode == "single" else args.ranks
        self.settings = [f"mixed_precision={PRECISION[dtype]}", f"dataset.train={args.work}/{model}"]
        self.recipe = f"recipes/bench/{RECIPE[model]}.yaml"
        printed = subprocess.run([args.mtrain, "--recipe", self.recipe, *self.settings, "--print-recipe"], cwd=ROOT, check=True,
                                 capture_output=True, text=True).stdout
        self.shape = shape_of(settings_of(printed))
        self.micro_batch = self.shape["micro_batch"]
        self.shape["global_batch"] = self.micro_batch * self.ranks
        self.tokens = self.shape["global_batch"] * self.shape["seq"]
        if not pathlib.Path(f"{args.work}/{model}.bin").exists():
            write_data(f"{args.work}/{model}", self.shape["vocab"], 400_000)

    def run_mtrain(self, steps, ranks):
        program = [self.args.mtrain]
        if ranks > 1:
            launch = pathlib.Path(self.args.mtrain).with_name("mtrain-launch")
            program = [launch, f"--nproc_per_node={ranks}"]
        with tempfile.TemporaryDirectory(prefix="mtrain-bench-") as folder:
            folder = pathlib.Path(folder, "run")
            _, memory, others, cpu = run(self.args, program + [
                "--recipe", self.recipe, *self.settings, f"train.steps={steps + self.args.warm_up}", f"train.run_dir={folder}",
                f"train.threads={self.args.threads // ranks}", f"train.global_batch_size={self.shape['global_batch']}",
                "checkpoint.at_end=false", f"distributed.strategy={STRATEGY.get(self.mode, 'ddp')}"])
            records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if steps == 0:
            return cpu
        records = [r for r in records if "step_ms" in r][self.args.warm_up:]
        mfu = [r["mfu"] for r in records if r.get("mfu")]
        times = [r["step_ms"] for r in records]
        if self.args.cpu_time:
            times = [1e3 * (cpu - self.run_mtrain(0, ranks)) / steps]
        return measured(times, self.tokens, memory, others,
                        mfu=round(statistics.median(mfu), 3) if mfu else None)

    def run_peer(self, variant, steps):
        program = [self.args.python]
        if self.ranks > 1:
            program += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        text, memory, others, _ = run(self.args, program + [
            ROOT / "scripts/bench/torch_train.py", "--device", "cpu", "--shape", json.dumps(self.shape), "--data",
            f"{self.args.work}/{self.model}", "--steps", steps, "--warmup", self.args.warm_up, "--threads",
            self.args.threads // self.ranks, "--strategy", "none" if self.mode == "single" else self.mode, *variant])
        said = json.loads(text.splitlines()[-1])
        return measured(said["cpu_ms" if self.args.cpu_time else "step_ms"], self.tokens, memory, others, torch=said["torch"], capability=said["capability"])

    def variants(self):
        """The settings to search for PyTorch's fastest."""
        weights = ["fp32"] if self.dtype == "fp32" else ["fp32", "bf16"]
        forms = ["loop", "sorted", "grouped"] if self.shape["experts"] else [""]
        option = "--experts"
        if self.shape.get("kv_rank"):
            forms, option = ["as_is", "padded"], "--values"
        for compiled, kind, form in itertools.product([0, 1], weights, forms):
            how = "compile" if compiled else "eager"
            if how not in self.args.variants:
                continue
            kept = "" if self.dtype == "fp32" else " autocast" if kind == "fp32" else " bf16 weights"
            name = how + kept + (f" {form}" if form else "")
            yield name, ["--compile", compiled, "--weights", kind] + ([option, form] if form else [])

    def compare(self):
        print(f"model {self.model.upper()} {self.dtype} {self.mode}: PyTorch's variants", flush=True)
        tried, steps, rounds = {}, self.args.steps or STEPS[self.model], []
        for name, variant in self.variants():
            tried[name] = variant, self.run_peer(variant, min(steps, max(3, STEPS[self.model] // 3)))
            print("  {:24} {tokens_per_s:9.1f} tokens/s, {memory_mib} MiB".format(name, **tried[name][1]), flush=True)
        peer = max(tried, key=lambda n: tried[n][1]["tokens_per_s"])
        for i in range(self.args.rounds):
            pair = {}
            # The order alternates, so that neither program always runs on the warmer machine.
            for side in ("mtrain", "peer") if i % 2 == 0 else ("peer", "mtrain"):
                pair[side] = self.run_mtrain(steps, self.ranks) if side == "mtrain" else self.run_peer(tried[peer][0], steps)
            if self.ranks > 1:
                pair["of_single"] = pair["mtrain"]["tokens_per_s"] / self.run_mtrain(steps, 1)["tokens_per_s"]
            pair["ratio"] = pair["mtrain"]["tokens_per_s"] / pair["peer"]["tokens_per_s"]
            rounds.append(pair)
            print("  round {}: mtrain {:.1f} tokens/s, {} MiB (others {:.2f} cores); PyTorch {:.1f}, {} MiB ({:.2f}): {:.2f} x".format(
                i + 1, *(pair[s][k] for s in ("mtrain", "peer") for k in ("tokens_per_s", "memory_mib", "others")), pair["ratio"])
                + (f"; {pair['of_single']:.2f} of our single process" if self.ranks > 1 else ""), flush=True)
        middle = lambda side, key: statistics.median(r[side][key] for r in rounds)
        mfus = [r["mtrain"]["mfu"] for r in rounds if r["mtrain"]["mfu"] is not None]
        peer_mib = min(t["memory_mib"] for name, (_, t) in tried.items() if "bf16 weights" not in name)
        return dict(
            model=self.model, dtype=self.dtype, mode=self.mode, ranks=self.ranks, peer=peer, rounds=rounds,
            torch=rounds[0]["peer"]["torch"], capability=rounds[0]["peer"]["capability"],
            variants={n: [round(t["tokens_per_s"], 1), t["memory_mib"]] for n, (_, t) in tried.items()},
            mfu=statistics.median(mfus) if mfus else None,
            of_single=statistics.median(r["of_single"] for r in rounds) if self.ranks > 1 else None,
            ratio=statistics.median(r["ratio"] for r in rounds), ratios=[round(r["ratio"], 3) for r in rounds],
            mtrain_tokens_per_s=middle("mtrain", "tokens_per_s"), peer_tokens_per_s=middle("peer", "tokens_per_s"),
            mtrain_mib=middle("mtrain", "memory_mib"), peer_mib=peer_mib, memory_ratio=middle("mtrain", "memory_mib") / peer_mib,
            others=max(r[s]["others"] for r in rounds for s in ("mtrain", "peer")))


def cpu_name():
    lines = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return lines[0].split(":")[1].strip() if lines else "unknown CPU"


def commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"


def markdown(results, args):
    basis = " Tokens per second of processor time." if args.cpu_time else ""
    lines = [f"{time.strftime('%Y-%m-%d')}, commit {commit()}, {args.threads} threads of {cpu_name()}, instructions: {args.isa} "
             f"(PyTorch says {results[0]['capability']}); PyTorch {results[0]['torch']}; {args.rounds} rounds.{basis}", "",
             "| model | precision | ranks | mtrain tokens/s | PyTorch tokens/s | PyTorch's fastest variant | ratio (rounds) | target "
             "| memory MiB | ratio | target | MFU | of our single process | others' cores at most |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    fp32 = {r["model"]: r["mtrain_tokens_per_s"] for r in results if r["dtype"] == "fp32" and r["mode"] == "single"}
    own = []
    for r in results:
        single = r["mode"] == "single"
        lines.append("| {} | {} | {} | {:.0f} | {:.0f} | {} | **{:.2f}** ({}) | {} | {:.0f} / {:.0f} | {:.2f} | {} | {} | {} | {:.2f} |".format(
            r["model"].upper(), r["dtype"], 1 if single else f"{r['ranks']} {r['mode']}", r["mtrain_tokens_per_s"],
            r["peer_tokens_per_s"], r["peer"], r["ratio"], " ".join(f"{x:.2f}" for x in r["ratios"]),
            TARGET_SPEED[r["dtype"]][r["model"]] if single else "", r["mtrain_mib"], r["peer_mib"],
            r["memory_ratio"], TARGET_MEMORY if single else "", "" if r["mfu"] is None else f"{100 * r['mfu']:.0f} %",
            "" if single else f"{r['of_single']:.2f}", r["others"]))
        if single and r["dtype"] == "bf16" and r["model"] in fp32:
            own.append(f"{r['model'].upper()} {r['mtrain_tokens_per_s'] / fp32[r['model']]:.2f}")
    if own:
        lines += ["", f"bf16 against our own fp32: {', '.join(own)}."]
    if max(r["others"] for r in results) > FAIR_OTHERS and not args.cpu_time:
        lines += ["", f"Other programs kept more than {FAIR_OTHERS} cores busy in some runs: those rows are no fair measure "
                      "(two threads that wait for each other slow down far more than their share)."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=["a", "b", "c"])
    parser.add_argument("--dtypes", nargs="+", choices=list(PRECISION), default=list(PRECISION))
    parser.add_argument("--modes", nargs="+", choices=["single", *STRATEGY], default=["single"])
    parser.add_argument("--isa", choices=list(ISA), default="host")
    parser.add_argument("--ranks", type=int, default=2, help="processes of the modes other than single")
    parser.add_argument("--variants", nargs="+", choices=["eager", "compile"], default=["eager", "compile"], help="of PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="measured steps of a run; 0: " + str(STEPS))
    parser.add_argument("--warm-up", type=int, default=3, help="steps before them: first touch of memory, compilation")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true", help="compare processor time, with one thread")
    parser.add_argument("--idle-wait", type=float, default=60, help="seconds to wait for an idle machine before a run")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch and numpy")
    parser.add_argument("--mtrain", default=str(ROOT / "build/release/bin/mtrain"))
    parser.add_argument("--output", default=str(ROOT / "build/compare_torch"), help="without its suffix")
    args = parser.parse_args()
    if args.cpu_time:
        args.threads, args.idle_wait = 1, 0
    if subprocess.run([args.python, "-c", "import torch, numpy"], capture_output=True).returncode != 0:
        sys.exit(f"{args.python} has no PyTorch or no numpy: make a venv, pip install torch numpy, and name its python by --python")
    if not pathlib.Path(args.mtrain).exists():
        sys.exit(f"{args.mtrain} is missing: build the preset release first")
    output, results = pathlib.Path(args.output), []
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mtrain-bench-data-") as args.work:
        for dtype, model, mode in itertools.product(args.dtypes, args.models, args.modes):
            results.append(Comparison(args, model, dtype, mode).compare())
            output.with_suffix(".json").write_text(json.dumps(dict(cpu=cpu_name(), threads=args.threads, results=results), indent=1) + "\n")
            output.with_suffix(".md").write_text(markdown(results, args))
    print(markdown(results, args), end="")


if __name__ == "__main__":
    main()
