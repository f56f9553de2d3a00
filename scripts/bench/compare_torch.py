#!/usr/bin/env python3
"""Compares training speed and memory of mtrain with PyTorch's: same model, same threads, same machine.

  MTRAIN_PEER=path/to/run.sh scripts/bench/compare_torch.py [--models a b c] [--dtypes fp32 bf16] [--rounds 3]
    [--modes single ddp fsdp] [--ranks 2]

MTRAIN_PEER names a program that trains model A, B or C (recipes/bench) in PyTorch with settings tuned for this
machine and prints one line per step:
  run.sh THREADS [RANKS] --preset A --dtype fp32|bf16|autocast --attn auto|manual --steps N --warmup N
    [--ddp | --fsdp]
  step   3 loss 5.412345     213.4 ms ...
MTRAIN_PEER_PYTHONS (colon-separated, default /usr/bin/python3) are the interpreters, with one PyTorch each, that it
may run in; it reads the chosen one from PYTHON.

Mode single is one process with all threads; ddp and fsdp (ours: fsdp2) spread the threads over --ranks processes,
each with the model's batch, and beside them stands our own single process on as many tokens a step.

For every model and precision the fastest of PyTorch's variants is found by short runs. Then both programs take turns;
a round's ratio is that of the median steps of its two neighbouring runs, and the result is the median of the rounds.
Memory is the largest resident set of the process. Both, and how busy others kept the cores meanwhile, are measured
from outside, in the same way for both. Writes scripts/bench/results/compare_torch.{json,md}.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "bench" / "results"
STEPS = {"a": 30, "b": 12, "c": 8}     # measured steps of a run
WARM_UP = 3                            # steps before them: first touch of memory, choice of kernels
TARGET_SPEED = {"fp32": {"a": 1.6, "b": 1.35, "c": 1.2}, "bf16": {"a": 1.6, "b": 1.6, "c": 1.6}}
TARGET_RANKS = 1.4                     # of a mode with several ranks
MICRO_BATCH = {"a": 8, "b": 4, "c": 2}  # of recipes/bench
MODES = {"single": [[]], "ddp": [["--ddp"]], "fsdp": [["--fsdp"]]}  # the peer's options
STRATEGY = {"ddp": "ddp", "fsdp": "fsdp2"}
TARGET_MEMORY = 0.7
TARGET_BF16 = 0.9                      # of our own fp32 speed
FAIR_OTHERS = 0.1                      # cores that others may keep busy in a run that counts
PRECISION = {"fp32": "fp32", "bf16": "bf16_mixed"}
STEP_LINE = re.compile(r"^step\s+\d+\s+loss\s+(\S+)\s+([\d.]+) ms\s+([\d.]+) tok/s", re.M)


def busy_seconds():
    """CPU seconds that the whole machine has spent on anything."""
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


def run(command, env, idle_wait):
    """-> (output, largest resident set in MiB, cores that others kept busy)."""
    wait_for_idle(idle_wait)
    before, began = busy_seconds(), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, stdout=output,
                                   stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        elapsed = time.monotonic() - began
        others = busy_seconds() - before - usage.ru_utime - usage.ru_stime
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{text[-2000:]}\nended with {process.returncode}")
    return text, usage.ru_maxrss / 1024, max(0.0, others / elapsed)


def measured(steps_ms, tokens, memory, others, **more):
    return dict(step_ms=[round(x, 2) for x in steps_ms], tokens=tokens, memory_mib=round(memory),
                tokens_per_s=tokens / statistics.median(steps_ms) * 1e3, others=round(others, 2), **more)


def run_mtrain(args, model, dtype, mode, steps, samples=0):
    """samples: of the global batch; 0: what the recipe says for one rank, times the ranks."""
    ranks = 1 if mode == "single" else args.ranks
    samples = samples or ranks * MICRO_BATCH[model]
    program = [args.mtrain]
    if ranks > 1:
        program = [str(pathlib.Path(args.mtrain).parents[1] / "mtrain-launch" / "mtrain-launch"), f"--nproc_per_node={ranks}"]
    with tempfile.TemporaryDirectory(prefix="mtrain-bench-") as folder:
        folder = pathlib.Path(folder, "run")
        _, memory, others = run(
            program + ["--recipe", f"recipes/bench/{model}.yaml", f"train.steps={steps + WARM_UP}",
             f"train.threads={args.threads // ranks}", f"train.run_dir={folder}", f"mixed_precision={PRECISION[dtype]}",
             f"train.global_batch_size={samples}", f"distributed.strategy={STRATEGY.get(mode, 'ddp')}"],
            {}, args.idle_wait)
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [r for r in records if "step_ms" in r][WARM_UP:]
    tokens = round(records[0]["tokens_per_s"] * records[0]["step_ms"] / 1e3)
    mfu = [r["mfu"] for r in records if r.get("mfu")]
    return measured([r["step_ms"] for r in records], tokens, memory, others,
                    mfu=round(statistics.median(mfu), 3) if mfu else None)


def run_peer(args, model, variant, mode, steps):
    python, core, dtype, attention, options = variant
    spread = [str(args.threads)] if mode == "single" else [str(args.threads // args.ranks), str(args.ranks)]
    text, memory, others = run(
        [args.peer, *spread, "--preset", model.upper(), "--dtype", dtype, "--attn", attention, *options,
         "--steps", str(steps), "--warmup", str(WARM_UP), "--max-seconds", "600"],
        dict(PYTHON=python, OPENBLAS_CORETYPE=core), args.idle_wait)
    rows = STEP_LINE.findall(text)[WARM_UP:]
    if not rows:
        sys.exit(f"{args.peer} printed no steps:\n{text[-2000:]}")
    tokens = round(float(rows[0][1]) * float(rows[0][2]) / 1e3)
    return measured([float(ms) for _, ms, _ in rows], tokens, memory, others)


def peer_variants(pythons, dtype, mode):
    """The settings among which PyTorch's fastest is looked for."""
    dtypes = ["fp32"] if dtype == "fp32" else ["bf16", "autocast"]
    for python, kind, attention, options in itertools.product(pythons, dtypes, ["auto", "manual"], MODES[mode]):
        version, has_sdpa, own_blas = describe(python)
        if attention == "auto" and not has_sdpa:
            continue          # this PyTorch has only the plain attention
        # Debian's PyTorch calls OpenBLAS and obeys its core type; PyPI's brings its own kernels.
        for core in ["Cooperlake"] if own_blas else ["Cooperlake", "SkylakeX"]:
            yield f"{version} {kind}{' sdpa' if attention == 'auto' else ''}{'' if own_blas else ' ' + core}" + \
                "".join(f" {o[2:]}" for o in options), (python, core, kind, attention, options)


def describe(python, known={}):
    if python not in known:
        code = ("import torch; print(torch.__version__.split('+')[0],"
                "int(hasattr(torch.nn.functional, 'scaled_dot_product_attention')), int(torch.backends.mkl.is_available()))")
        words = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        known[python] = f"torch {words[0]}", words[1] == "1", words[2] == "1"
    return known[python]


def fastest_peer(args, model, dtype, mode):
    tried = {}
    for name, variant in peer_variants(args.pythons, dtype, mode):
        tried[name] = variant, run_peer(args, model, variant, mode, max(3, STEPS[model] // 3))["tokens_per_s"]
        print(f"  {name:40} {tried[name][1]:9.1f} tokens/s", flush=True)
    name = max(tried, key=lambda n: tried[n][1])
    return name, tried[name][0], {n: round(speed, 1) for n, (_, speed) in tried.items()}


def compare(args, model, dtype, mode):
    print(f"model {model.upper()} {dtype} {mode}: PyTorch's variants", flush=True)
    name, variant, tried = fastest_peer(args, model, dtype, mode)
    steps, rounds = args.steps or STEPS[model], []
    for i in range(args.rounds):
        pair = {}
        # The order alternates, so that neither program always runs on the warmer machine.
        for side in ("mtrain", "peer") if i % 2 == 0 else ("peer", "mtrain"):
            pair[side] = run_mtrain(args, model, dtype, mode, steps) if side == "mtrain" else \
                run_peer(args, model, variant, mode, steps)
        if mode != "single":
            alone = run_mtrain(args, model, dtype, "single", steps, args.ranks * MICRO_BATCH[model])
            pair["of_single"] = pair["mtrain"]["tokens_per_s"] / alone["tokens_per_s"]
        # The peer's count comes from rounded figures.
        if abs(pair["mtrain"]["tokens"] - pair["peer"]["tokens"]) > 0.005 * pair["peer"]["tokens"]:
            sys.exit(f"model {model}: {pair['mtrain']['tokens']} tokens a step against the peer's {pair['peer']['tokens']}")
        pair["ratio"] = pair["mtrain"]["tokens_per_s"] / pair["peer"]["tokens_per_s"]
        rounds.append(pair)
        print("  round {}: mtrain {:.1f} tokens/s, {} MiB (others {:.2f} cores); PyTorch {:.1f}, {} MiB ({:.2f}): {:.2f} x".format(
            i + 1, *(pair[s][k] for s in ("mtrain", "peer") for k in ("tokens_per_s", "memory_mib", "others")), pair["ratio"])
            + (f"; {pair['of_single']:.2f} of our single process" if "of_single" in pair else ""), flush=True)
    middle = lambda side, key: statistics.median(r[side][key] for r in rounds)
    mfus = [r["mtrain"]["mfu"] for r in rounds if r["mtrain"]["mfu"] is not None]
    return dict(
        model=model, dtype=dtype, mode=mode, peer=name, variants=tried, rounds=rounds, mfu=statistics.median(mfus) if mfus else None,
        of_single=statistics.median(r["of_single"] for r in rounds) if mode != "single" else None,
        ratio=statistics.median(r["ratio"] for r in rounds), ratios=[round(r["ratio"], 3) for r in rounds],
        mtrain_tokens_per_s=middle("mtrain", "tokens_per_s"), peer_tokens_per_s=middle("peer", "tokens_per_s"),
        mtrain_mib=middle("mtrain", "memory_mib"), peer_mib=middle("peer", "memory_mib"),
        memory_ratio=middle("mtrain", "memory_mib") / middle("peer", "memory_mib"),
        others=max(r[s]["others"] for r in rounds for s in ("mtrain", "peer")))


def cpu_name():
    lines = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return lines[0].split(":")[1].strip() if lines else "unknown CPU"


def markdown(results, args):
    lines = [f"Measured on {args.threads} threads of {cpu_name()}; {args.rounds} rounds.", "",
             "| model | precision | ranks | mtrain tokens/s | PyTorch tokens/s | PyTorch's fastest variant | ratio (rounds) | target "
             "| memory MiB | ratio | target | MFU | of our single process | others' cores at most |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    fp32 = {r["model"]: r["mtrain_tokens_per_s"] for r in results if r["dtype"] == "fp32" and r["mode"] == "single"}
    own = []
    for r in results:
        single = r["mode"] == "single"
        lines.append("| {} | {} | {} | {:.0f} | {:.0f} | {} | **{:.2f}** ({}) | {} | {:.0f} / {:.0f} | {:.2f} | {} | {} | {} | {:.2f} |".format(
            r["model"].upper(), r["dtype"], 1 if single else f"{args.ranks} {r['mode']}", r["mtrain_tokens_per_s"],
            r["peer_tokens_per_s"], r["peer"], r["ratio"], " ".join(f"{x:.2f}" for x in r["ratios"]),
            TARGET_SPEED[r["dtype"]][r["model"]] if single else TARGET_RANKS, r["mtrain_mib"], r["peer_mib"],
            r["memory_ratio"], TARGET_MEMORY if single else "", "" if r["mfu"] is None else f"{100 * r['mfu']:.0f} %",
            "" if single else f"{r['of_single']:.2f}", r["others"]))
        if single and r["dtype"] == "bf16" and r["model"] in fp32:
            share = r["mtrain_tokens_per_s"] / fp32[r["model"]]
            own.append(f"{r['model'].upper()} {share:.2f}")
    if own:
        lines += ["", f"bf16 against our own fp32 (target {TARGET_BF16}): {', '.join(own)}."]
    if max(r["others"] for r in results) > FAIR_OTHERS:
        lines += ["", f"Other programs kept more than {FAIR_OTHERS} cores busy in some runs: those rows are no fair measure "
                      "(two threads that wait for each other slow down far more than their share)."]
    return "\n".join(lines) + "\n"


def prepare_data(args):
    if not (ROOT / "data" / "quickstart_train.bin").exists():
        subprocess.run(["scripts/corpus.sh"], cwd=ROOT, check=True)
        subprocess.run([args.mtrain, "data", "build", "--input", "data/quickstart.txt", "--output", "data/quickstart",
                        "--split", "blank-line", "--validation-fraction", "0.05"], cwd=ROOT, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--dtypes", nargs="+", choices=list(PRECISION), default=list(PRECISION))
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["single"])
    parser.add_argument("--ranks", type=int, default=2, help="processes of the modes other than single")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="measured steps of a run; 0: " + str(STEPS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--idle-wait", type=float, default=60, help="seconds to wait for an idle machine before a run")
    parser.add_argument("--mtrain", default=str(ROOT / "build/release/bin/mtrain"))
    parser.add_argument("--output", default=str(RESULTS / "compare_torch"), help="without its suffix")
    args = parser.parse_args()
    peer = os.environ.get("MTRAIN_PEER")
    if not peer or not os.access(peer, os.X_OK):
        sys.exit("set MTRAIN_PEER to the program that trains the models in PyTorch; --help says what it must do")
    if not shutil.which(args.mtrain):
        sys.exit(f"{args.mtrain} is missing: build the preset release first")
    args.peer = os.path.abspath(peer)
    args.pythons = os.environ.get("MTRAIN_PEER_PYTHONS", "/usr/bin/python3").split(":")
    prepare_data(args)
    output, results = pathlib.Path(args.output), []
    output.parent.mkdir(parents=True, exist_ok=True)
    for dtype, model, mode in itertools.product(args.dtypes, args.models, args.modes):
        results.append(compare(args, model, dtype, mode))
        output.with_suffix(".json").write_text(json.dumps(dict(cpu=cpu_name(), threads=args.threads, results=results), indent=1) + "\n")
        output.with_suffix(".md").write_text(markdown(results, args))
    print(markdown(results, args), end="")


if __name__ == "__main__":
    main()
