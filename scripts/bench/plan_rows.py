#!/usr/bin/env python3
"""Sorts published training speeds into distinct configurations that a planner can be fitted to and judged by.

  plan_rows.py ROWS.json MODELS.json [--table] [--stack NAME]

ROWS is a list of rows as benchmarks publish them (source, model, gpu, gpus, precision, seq, gbs, mbs, tp, pp, vp, cp, ep,
strategy, recompute, tokens_per_s_per_gpu, tflops_per_gpu, flops_convention, ...); MODELS has the shapes of the models by
name. Prints for each stack (the source, GPU and precision) how many rows there are, how many are left out for which reason,
and the distinct configurations; --table lists these. Of several releases of one configuration the newest counts.

For each stack of dense models with at least three configurations it also prints the errors of the plainest predictor: one
MFU for the whole stack, fitted to the other configurations (leave one out, median of the ratios). Whatever predicts more
than that has to be better."""
import argparse
import collections
import json
import pathlib
import statistics
import sys

# A layout's sizes; a row without one of them cannot be predicted.
SIZES = ("gpus", "seq", "gbs", "mbs", "tp", "pp", "cp", "ep")
PRECISIONS = ("bf16", "fp8", "mxfp8", "fp8_rowwise")


def flops_per_token(model, seq):
    """Of forward and backward, causal attention counted as half; the same convention for all rows."""
    hidden, heads, groups, head = (model[k] for k in ("hidden_size", "num_attention_heads", "num_query_groups", "head_dim"))
    attention = hidden * (heads + 2 * groups) * head + heads * head * hidden
    mlp = (3 if model["activation"] == "swiglu" else 2) * hidden * model["ffn_hidden_size"]
    weights = model["num_layers"] * (attention + mlp) + hidden * model["vocab_size"]
    return 6 * weights + 6 * model["num_layers"] * heads * head * seq


def is_dense(model):
    return "moe" not in model


def reason_against(row, models):
    """Why a row is left out; empty if it can be used. The first reason counts."""
    if row["model"] not in models:
        return "the model's shapes are unknown"
    for size in SIZES:
        if row.get(size) is None:
            return f"{size} is not published"
    if row["precision"] not in PRECISIONS:
        return f"mtrain has no {row['precision']}"
    if row.get("task") in ("lora", "sft"):
        return "fine-tuning"
    if not row.get("tokens_per_s_per_gpu") and not (row.get("tflops_per_gpu") and row.get("flops_convention")):
        return "neither tokens/s nor TFLOP/s by a known convention"
    if not row.get("tokens_per_s_per_gpu") and (not is_dense(models[row["model"]])):
        return "experts without tokens/s"
    if row["gpus"] % (row["tp"] * row["pp"] * row["cp"]):
        return "the sizes do not divide the GPUs"
    dp = row["gpus"] // (row["tp"] * row["pp"] * row["cp"])
    if row["gbs"] % (dp * row["mbs"]):
        return "the batch is not a whole number of micro-batches"
    return ""


def tokens_per_second(row, models):
    """Of one GPU; from TFLOP/s by the row's own convention if it has no tokens."""
    if row.get("tokens_per_s_per_gpu"):
        return row["tokens_per_s_per_gpu"]
    model = models[row["model"]]
    attention = 6 * model["num_layers"] * model["num_attention_heads"] * model["head_dim"] * row["seq"]
    flops = flops_per_token(model, row["seq"]) + (attention if row["flops_convention"] == "full" else 0)
    return row["tflops_per_gpu"] * 1e12 / flops


def configuration(row):
    """Rows with the same key differ in their release alone."""
    keys = (*SIZES, "vp", "etp", "model", "source", "gpu", "precision", "strategy", "recompute", "tp_overlap", "compile", "gpu_variant",
            "recipe_cuda_graph", "recipe_dispatcher", "recipe_ep_overlap", "recipe_offload_layers", "recipe_pp_layout")
    return tuple(json.dumps(row.get(key)) for key in keys)


def newest(rows):
    return max(rows, key=lambda row: row.get("release") or "")


def single_mfu_errors(rows, models):
    """Relative errors of the step time by the median rate of the other rows."""
    rates = [tokens_per_second(row, models) * flops_per_token(models[row["model"]], row["seq"]) for row in rows]
    return [abs(rates[i] / statistics.median(rates[:i] + rates[i + 1:]) - 1) for i in range(len(rates))]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def stack_of(row):
    return f"{row['source']}, {row['gpu']}, {row['precision']}"


def sort_rows(rows, models):
    """Returns the distinct configurations of each stack, and the reasons for which rows are left out."""
    groups, reasons = collections.defaultdict(lambda: collections.defaultdict(list)), collections.defaultdict(collections.Counter)
    for row in rows:
        reason = reason_against(row, models)
        if reason:
            reasons[stack_of(row)][reason] += 1
        else:
            groups[stack_of(row)][configuration(row)].append(row)
    return {stack: [newest(same) for same in of.values()] for stack, of in groups.items()}, reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--table", action="store_true", help="list the configurations")
    parser.add_argument("--stack", default="", help="only stacks whose name contains this")
    args = parser.parse_args()
    rows, models = json.loads(args.rows.read_text()), json.loads(args.models.read_text())
    stacks, reasons = sort_rows(rows, models)
    counts = collections.Counter(map(stack_of, rows))
    print("| stack | rows | dense | experts | left out | one MFU: 80th percentile of the error |\n|---|---|---|---|---|---|")
    for stack in sorted(counts, key=lambda s: (-counts[s], s)):
        if args.stack not in stack:
            continue
        chosen = stacks.get(stack, [])
        dense = [row for row in chosen if is_dense(models[row["model"]])]
        error = f"{100 * percentile(single_mfu_errors(dense, models), 0.8):.0f} %" if len(dense) >= 3 else ""
        why = "; ".join(f"{n} {reason}" for reason, n in reasons[stack].most_common())
        print(f"| {stack} | {counts[stack]} | {len(dense)} | {len(chosen) - len(dense)} | {why} | {error} |")
    everything = [row for of in stacks.values() for row in of]
    dense = sum(is_dense(models[row["model"]]) for row in everything)
    print(f"\n{len(rows)} rows: {len(everything)} distinct configurations, {dense} of dense models and {len(everything) - dense} with experts")
    if args.table:
        print("\n| stack | model | GPUs | seq | batch | micro | tp pp vp cp ep | recompute | tokens/s/GPU |\n|---|---|---|---|---|---|---|---|---|")
        for stack in sorted(stacks):
            for row in stacks[stack] if args.stack in stack else []:
                layout = " ".join(str(row.get(k) or 1) for k in ("tp", "pp", "vp", "cp", "ep"))
                print(f"| {stack} | {row['model']} | {row['gpus']} | {row['seq']} | {row['gbs']} | {row['mbs']} | {layout} | "
                      f"{row.get('recompute') or ''} | {tokens_per_second(row, models):.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
