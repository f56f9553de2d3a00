#!/usr/bin/env python3
"""Computes the step of training recipes on Hopper GPUs from sizes and rates, with the ten largest losses. Measures nothing.

  gpu_step.py --mtrain PROGRAM [--gpu h200] [--only WORDS]

Prints a Markdown table per case: time per kind of kernel by the engines of mtrain at first ("before") and by today's
("after"). A loss is the time above that of the same FLOPs at the peak of the data sheet. The model flops of MFU count
causal attention and the output layer, and no recomputation.

GEMMs: tiles of 128 x 256 in full waves of 132 multiprocessors, at 750 TFLOP/s x K / (K + 160): what 8192^3 reaches on an
H200, and what a short sum loses. Memory-bound kernels: the bytes that they must read and write, at 85 % of a copy.
Attention by cuDNN: NVIDIA's benchmark of cuDNN 9.19 on an H200, which is in the frontend's sources
(sdpa_benchmark_training), forward and backward of causal masks with 128 dimensions. Links: 370 GB/s between the GPUs of a
host for collectives of large messages, 45 GB/s for each GPU between hosts."""
import argparse
import dataclasses
import math
import pathlib
import subprocess
import sys

from compare_gpu import PEAK as PEAKS, ROOT, flops_per_token, settings_of, shape_of

MULTIPROCESSORS, PEAK, GEMM_PEAK = 132, PEAKS["H200"], 750e12
COPY = {"h200": 4.3e12, "h100": 3.0e12}  # bytes read and written per second
IN_HOST, BETWEEN_HOSTS, LAUNCH = 370e9, 45e9, 2e-6


@dataclasses.dataclass
class Engines:
    """What computes attention and experts, in FLOP/s, and what communication costs the GEMMs beside it."""
    name: str
    cp_attention: str  # cudnn or own
    capped_attention: str
    grouped: tuple  # forward, dgrad, wgrad
    contention: float  # time of GEMMs beside NCCL, relative to GEMMs alone
    search: float  # time of GEMMs, relative to that of the best of 8 algorithms
    clears_dq: bool  # attention's backward clears its sums first
    experts_swiglu: float  # share of a copy's rate
    copies_qkv: bool  # norms of queries and keys first copy all of qkv, and not v alone
    host: float  # seconds between steps in which the device waits


# The last seven are estimates, but for copies_qkv. Contention: NCCL with all its blocks, and with blocks bounded by
# traffic at a higher priority.
# Neither counts what is off by default: copy engines (ddp.nccl_ub), early starts of kernels, and a margin for GEMMs.
BEFORE = Engines("before", "own", "plain", (300e12, 220e12, 220e12), 1.18, 1.0, True, 0.45, True, 2e-3)
AFTER = Engines("after", "cudnn", "cudnn", (600e12, 600e12, 550e12), 1.12, 0.98, False, 0.8, False, 0.2e-3)

# (sequence, forward, backward) in TFLOP/s; the row of 1024 is an extrapolation.
CUDNN = [(1024, 370, 280), (2048, 484, 370), (4096, 591, 474), (32768, 688, 581)]
OWN = (275e12, 165e12)  # our kernels of tensor cores, an estimate from their registers and instructions
PLAIN = (10e12, 10e12)  # our fp32 kernels


def gemm(m, n, k, search=1.0):
    """Seconds of [m, k] x [k, n]."""
    def waves(tile_m, tile_n):
        tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
        return m * n / (math.ceil(tiles / MULTIPROCESSORS) * MULTIPROCESSORS * tile_m * tile_n)
    return search * 2 * m * n * k / (GEMM_PEAK * k / (k + 160) * max(waves(128, 256), waves(256, 128), 0.5))


def cudnn_rates(sequence):
    for (s0, f0, b0), (s1, f1, b1) in zip(CUDNN, CUDNN[1:]):
        if sequence <= s1:
            t = max(0.0, math.log(sequence / s0) / math.log(s1 / s0))
            return (f0 + t * (f1 - f0)) * 1e12, (b0 + t * (b1 - b0)) * 1e12
    return CUDNN[-1][1] * 1e12, CUDNN[-1][2] * 1e12


class Step:
    """Seconds by kind of kernel of one rank's step, and FLOPs of the kinds that compute them."""

    def __init__(self, copy, search):
        self.seconds, self.flops, self.copy, self.search = {}, {}, 0.85 * copy, search

    def add(self, kind, seconds, flops=0.0):
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.flops[kind] = self.flops.get(kind, 0.0) + flops

    def gemm(self, kind, m, n, k, times, slower=1.0):
        self.add(kind, times * gemm(m, n, k, self.search) * slower, times * 2 * m * n * k)

    def memory(self, kind, bytes_, times=1.0, share=1.0):
        self.add(kind, times * bytes_ / (self.copy * share))

    def total(self):
        return sum(self.seconds.values())


@dataclasses.dataclass
class Case:
    title: str
    recipe: str
    overrides: tuple = ()
    ranks: int = 1
    again: bool = False  # norms and SwiGLU are computed again in the backward, to save memory


CASES = [
    Case("124M", "bench/gpu_124m"),
    Case("1.5B", "bench/gpu_1b"),
    Case("1.5B, micro-batch 16", "bench/gpu_1b", ("train.micro_batch_size=16",)),
    Case("7B", "bench/gpu_7b", again=True),
    Case("2.6B with experts", "bench/gpu_moe"),
    Case("Llama 8B, 32,768 tokens, cp 4, fsdp2 over 8 GPUs", "llama3_1_8b",
         ("dataset.seq_length=32768", "distributed.cp_size=4", "train.global_batch_size=16"), 8),
    Case("Gemma 2 2B, 8,192 tokens, fsdp2 over 16 GPUs", "gemma2_2b", ("dataset.seq_length=8192", "train.global_batch_size=64"), 16),
    Case("Qwen3-30B-A3B, ep 8 over 64 GPUs", "qwen3_30b_a3b", (), 64),
    Case("Qwen3-30B-A3B, ep 8 over 64 GPUs, micro-batches of 2", "qwen3_30b_a3b", ("train.micro_batch_size=2",), 64),
]


def add_attention(step, s, settings, cp, engines, times, recomputed=False):
    """The forward and backward of a layer, or the forward alone that a backward computes again."""
    capped = settings.get("model.attn_logit_softcapping", "none") != "none"
    length, queries = s["seq"], s["micro_batch"] * s["seq"] // cp
    work = 4 * queries * length / 2 * s["heads"] * s["head_dim"]  # causal; zigzag halves make cp ranks alike
    forward, backward = cudnn_rates(length)
    if s["head_dim"] > 128:  # plans exist for 256 dimensions; their rate is taken as 0.8 of that of 128
        forward, backward = 0.8 * forward, 0.8 * backward
    if cp > 1 and engines.cp_attention == "own":
        forward, backward = OWN
    if capped:
        if engines.capped_attention == "plain" and s["head_dim"] > 128:
            forward, backward = PLAIN
        elif engines.capped_attention == "plain":
            forward, backward = OWN
        else:  # tanh on the special function units beside exp
            forward, backward = 0.6 * forward, 0.6 * backward
    if engines.clears_dq and not recomputed:
        step.memory("attention", queries * s["heads"] * s["head_dim"] * 4, times)
    if recomputed:
        step.add("attention, computed again", times * work / forward)
    else:
        step.add("attention", times * (work / forward + 2.5 * work / backward), times * 3.5 * work)


def add_layer(step, s, settings, cp, ep, again, engines, times, slower):
    t, h = s["micro_batch"] * s["seq"] // cp, s["hidden"]
    qkv, out = (s["heads"] + 2 * s["kv_heads"]) * s["head_dim"], s["heads"] * s["head_dim"]
    gemms = [(qkv, h), (h, out)]
    if not s["experts"]:
        gemms += [(2 * s["ffn"], h), (h, s["ffn"])]
    for n, k in gemms:
        step.gemm("GEMMs of layers", t, n, k, times, slower)
        step.gemm("GEMMs of layers", t, k, n, times, slower)
        step.gemm("GEMMs of layers", n, k, t, times, slower)
    add_attention(step, s, settings, cp, engines, times)
    if settings.get("recompute.granularity") == "selective":
        add_attention(step, s, settings, cp, engines, times, recomputed=True)
    launches = 28
    step.memory("norms", 2 * t * h * 8, (1.5 if again else 1) * times)  # with the residual: reads 2, writes 2
    step.memory("norms", 2 * t * h * 8, times)
    if s["qk_norm"]:
        kv = s["kv_heads"] * s["head_dim"]
        copied = qkv if engines.copies_qkv else kv
        step.memory("norms", 2 * t * (5 * (qkv - kv) + 2 * copied), times)  # forward reads and writes; backward reads 2
        launches += 5
    step.memory("rope", 2 * 2 * t * (qkv - s["kv_heads"] * s["head_dim"]) * 2, times)
    if s["experts"]:
        add_experts(step, s, t, ep, engines, times, slower)
        launches += 24
    else:
        step.memory("SwiGLU", 2 * t * 3 * s["ffn"], (2 if again else 1) * times)
        step.memory("SwiGLU", 2 * t * 5 * s["ffn"], times)
    step.add("between launches", times * launches * LAUNCH)


def add_experts(step, s, t, ep, engines, times, slower):
    h, f, rows = s["hidden"], s["expert_ffn"], t * s["per_token"]  # balanced: each rank computes as many rows as it sends
    for n, k in ((2 * f, h), (h, f)):
        for rate in engines.grouped:
            step.add("GEMMs of experts", times * 2 * rows * n * k / rate * slower, times * 2 * rows * n * k)
    for m, n, k in ((t, s["experts"], h), (t, h, s["experts"]), (s["experts"], h, t)):
        step.gemm("router", m, n, k, times)
    step.memory("router", t * s["experts"] * 4 * 6, times)
    step.memory("permutation of tokens", 2 * h * (t + rows) * 2, 2 * times)  # into and out of experts, forward and backward
    step.memory("SwiGLU", 2 * rows * 3 * f, times, engines.experts_swiglu)
    step.memory("SwiGLU", 2 * rows * 5 * f, times, engines.experts_swiglu)
    if ep > 1:
        # A token travels once to each rank that has one of its experts: at most ep - 1 other ranks.
        others = (ep - 1) * (1 - (1 - 1 / ep) ** s["per_token"])
        wire = 4 * 2 * t * h * others / IN_HOST  # dispatch and combine, forward and backward
        # Pairs of passes hide it behind the other micro-batch; an eighth stays, at the ends and where counts are awaited.
        step.add("exchange of experts, exposed", times * wire / 8)
        step.add("host waits for counts", times * 2 * 15e-6)


def step_of(case, settings, gpu, engines):
    s = dict(shape_of(settings), qk_norm=settings["model.qk_layernorm"] == "true")
    cp = int(settings.get("distributed.cp_size", "1"))
    ep = int(settings.get("distributed.ep_size", "1"))
    step, dp = Step(COPY[gpu], engines.search), case.ranks // cp
    micro_batches = s["global_batch"] // (dp * s["micro_batch"])
    layers, h, t = s["layers"], s["hidden"], s["micro_batch"] * s["seq"] // cp
    slower = engines.contention if case.ranks > 1 else 1.0
    add_layer(step, s, settings, cp, ep, case.again, engines, layers * micro_batches, slower)
    for m, n, k in ((t, s["vocab"], h), (t, h, s["vocab"]), (s["vocab"], h, t)):
        step.gemm("GEMMs of the head", m, n, k, micro_batches)
    step.memory("loss and embedding", t * s["vocab"] * 2 * 2 + t * h * 8 * 2, micro_batches)
    expert = layers * 3 * h * s["expert_ffn"] * s["experts"]
    dense = layers * (h * ((s["heads"] + 2 * s["kv_heads"]) * s["head_dim"] + s["heads"] * s["head_dim"])
                      + (0 if s["experts"] else 3 * h * s["ffn"])) + s["vocab"] * h * (1 if s["tied"] else 2)
    owned = (dense + expert) / case.ranks if case.ranks > 1 else dense + expert
    step.memory("optimizer", owned * (30 + 4))  # AdamW and the sum of squares
    if case.ranks > 1:
        add_gathers(step, settings, case.ranks, ep, dense, expert, layers, micro_batches)
    step.add("host between steps", engines.host)
    tokens = s["global_batch"] * s["seq"]
    mfu = flops_per_token(s) * tokens / case.ranks / step.total() / PEAK
    return step, tokens / step.total(), mfu


def add_gathers(step, settings, ranks, ep, dense, expert, layers, micro_batches):
    """What data parallelism moves in bf16; only what the layers cannot cover is exposed. fsdp2 gathers twice in each
    micro-batch, and reduces once (defer_fsdp_grad_sync). A sharded optimizer gathers and reduces once."""
    sharded = settings["distributed.strategy"] == "fsdp2"
    # All GPUs of a host carry a dense gather between hosts. The copies of an expert are on as many hosts, so each GPU
    # moves its own.
    seconds = 2 * dense * (ranks - 1) / ranks / (IN_HOST if ranks <= 8 else min(IN_HOST, 8 * BETWEEN_HOSTS))
    seconds += 2 * expert / ep * (1 - ep / ranks) / (IN_HOST if ranks <= 8 else BETWEEN_HOSTS)
    wire = seconds * ((2 * micro_batches if sharded else 1) + 1)
    covered = 0.9 * step.total() * (1 if sharded else 1 / micro_batches)
    step.add("gathers and reductions, exposed", max(wire / layers / micro_batches, wire - covered))


def settings_for(mtrain, case):
    command = [mtrain, "--recipe", ROOT / f"recipes/{case.recipe}.yaml", "train.device=cuda", *case.overrides, "--print-recipe"]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if printed.returncode != 0:
        sys.exit(f"{case.title}: {printed.stderr.strip()}")
    return settings_of(printed.stdout)


def losses(step):
    """The ten largest: [(kind, seconds)]."""
    found = [(kind, seconds - step.flops[kind] / PEAK) for kind, seconds in step.seconds.items()]
    return sorted(found, key=lambda row: -row[1])[:10]


def print_case(case, settings, gpu):
    rows = [step_of(case, settings, gpu, engines) for engines in (BEFORE, AFTER)]
    (before, *_), (after, *_) = rows
    print(f"\n## {case.title}\n")
    print("| | before, ms | after, ms | lost after, ms |\n|---|---|---|---|")
    lost = dict(losses(after))
    for kind in sorted(after.seconds, key=lambda kind: -lost.get(kind, 0.0)):
        shown = f"{1e3 * lost[kind]:.1f}" if kind in lost else ""
        print(f"| {kind} | {1e3 * before.seconds[kind]:.1f} | {1e3 * after.seconds[kind]:.1f} | {shown} |")
    print(f"| **a step** | **{1e3 * before.total():.0f}** | **{1e3 * after.total():.0f}** | |")
    print("| tokens/s of all ranks | " + " | ".join(f"{tokens:,.0f}" for _, tokens, _ in rows) + " | |")
    print("| MFU | " + " | ".join(f"{100 * mfu:.1f} %" for *_, mfu in rows) + " | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtrain", type=pathlib.Path, required=True)
    parser.add_argument("--gpu", choices=COPY, default="h200")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    mtrain = args.mtrain.resolve()
    for case in CASES:
        if args.only in case.title:
            print_case(case, settings_for(mtrain, case), args.gpu)


if __name__ == "__main__":
    main()
