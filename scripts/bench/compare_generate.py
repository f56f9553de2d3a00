#!/usr/bin/env python3
"""Compares the cost of a token of generation in mtrain and transformers on this CPU: a GPT-2 of 124M parameters, same threads.

  scripts/bench/compare_generate.py --python path/to/venv/bin/python [--bench build/release/scripts/bench/bench_generate]
    [--dtypes fp32 bf16] [--threads 2] [--rounds 3] [--positions 10 100 500 1000]

The interpreter has torch and transformers. The programs take turns; a round's ratio is that of two neighbouring runs, and
medians are printed as a table. A token of transformers is (seconds of generate() for 17 new tokens - those for 1) / 16,
greedy and with its cache. Both have random weights.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEW = 16  # tokens that are timed


def transformers_times(dtype, threads, positions):
    """Prints the milliseconds of a token at each position, as JSON. Runs in the other interpreter."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()

    def seconds(prompt, tokens):
        began = time.perf_counter()
        with torch.inference_mode():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=tokens, max_new_tokens=tokens,
                           do_sample=False, pad_token_id=0)
        return time.perf_counter() - began

    result = {}
    for position in positions:
        prompt = (torch.arange(min(position, 1024 - NEW - 1)) * 7919 % 50257)[None]
        seconds(prompt, 2)  # warms up
        rounds = [(seconds(prompt, NEW + 1) - seconds(prompt, 1)) / NEW * 1000 for _ in range(3)]
        result[position] = statistics.median(rounds)
    print(json.dumps(result))


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def own_times(bench, dtype, threads, positions):
    lines = run([bench, str(threads), dtype, "3", *map(str, positions)]).splitlines()
    return {int(line.split()[0]): float(line.split()[1]) for line in lines[2:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--bench", default=str(ROOT / "build/release/scripts/bench/bench_generate"))
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--positions", nargs="+", type=int, default=[10, 100, 500, 1000])
    args = parser.parse_args()
    for dtype in args.dtypes:
        own, other = [], []
        for _ in range(args.rounds):
            own.append(own_times(args.bench, dtype, args.threads, args.positions))
            other.append({int(k): v for k, v in json.loads(run(
                [args.python, __file__, "--inside", dtype, str(args.threads), *map(str, args.positions)])).items()})
        print(f"\n{dtype}, {args.threads} threads\n\n| position | mtrain ms | transformers ms | ratio (rounds) |\n|---|---|---|---|")
        for p in args.positions:
            ratios = [b[p] / a[p] for a, b in zip(own, other)]
            rounds = " ".join(f"{r:.2f}" for r in ratios)
            print(f"| {p} | {statistics.median(a[p] for a in own):.1f} | {statistics.median(b[p] for b in other):.1f} "
                  f"| {statistics.median(ratios):.2f} ({rounds}) |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--inside":
        transformers_times(sys.argv[2], int(sys.argv[3]), [int(p) for p in sys.argv[4:]])
    else:
        main()
