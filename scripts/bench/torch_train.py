#!/usr/bin/env python3
"""The PyTorch side of compare_gpu.py and compare_torch.py: trains a Llama-, Qwen2-, Mixtral- or DeepSeek-style model, and prints its
speed.

  torch_train.py --shape JSON --data PREFIX --steps 8 --warmup 4 --profile 2 [--device cuda|cpu] [--compile 0|1]
    [--threads N] [--weights fp32|bf16] [--strategy none|ddp|fsdp] [--experts loop|sorted|grouped]
    [--values as_is|padded]

Tuned as users tune it: torch.compile of each block and of the loss, fused AdamW, SDPA by the fastest of its backends on
this shape, gradients that are accumulated over micro-batches and zeroed by dropping them. Precision is mtrain's rule:
GEMMs in bf16 (autocast), with fp32 weights, gradients and moments: 16 bytes a parameter, and the bf16 copies of the
weights that autocast makes. With --weights bf16 the weights themselves, gradients and moments are bf16: 8 bytes a
parameter, and a rounding of every update that mtrain does not make. --strategy spreads the global batch over the
processes that torchrun starts. --experts chooses how a layer with experts computes: a loop over experts that gathers
each one's tokens and adds what it returns (transformers' form), or tokens sorted by expert, then a loop over their
slices or PyTorch's grouped GEMM (torchtitan's forms). --values
chooses what SDPA gets of latent attention, whose values have fewer elements than its keys: the values as they are, for
which a CPU has no fused kernel, or padded with zeros to the size of keys. The last line of rank 0's output is one JSON object.
"""
import argparse
import contextlib
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BACKENDS = ("cudnn", "flash", "mem_efficient")
MATMUL = ("gemm", "nvjet", "cutlass", "xmma", "matmul", "addmm", "mm")
ATTENTION = ("flash", "fmha", "attention", "sdpa", "cudnn_generated")


def attention(q, k, v, grouped):
    """grouped: SDPA accepts fewer key heads than query heads."""
    if q.shape[1] == k.shape[1]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if grouped:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def use_backend(backend):
    """For the whole process: a context around each call could break the compiled graphs."""
    for name in (*BACKENDS, "math"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name == backend)


def fastest_attention(s, device, dtype):
    """Chooses the backend by a short measurement. -> (its name, whether grouped), milliseconds of those that take the shape."""
    if device != "cuda":
        return ("default", False), {}
    shape = lambda heads: (s["micro_batch"], heads, s["seq"], s["head_dim"])
    q, k, v = (torch.randn(shape(h), device=device, dtype=dtype, requires_grad=True) for h in (s["heads"], s["kv_heads"], s["kv_heads"]))
    tried = {}
    for backend in BACKENDS:
        use_backend(backend)
        for grouped in ([True, False] if s["heads"] != s["kv_heads"] else [False]):
            try:
                times = []
                for _ in range(6):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    attention(q, k, v, grouped).sum().backward()
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - began)
                tried[backend, grouped] = min(times)
            except (RuntimeError, TypeError, AttributeError):
                pass  # this backend refuses the shape
    del q, k, v
    torch.cuda.empty_cache()
    best = min(tried, key=tried.get) if tried else ("math", False)
    use_backend(best[0])
    return best, {f"{b}{' grouped' if g else ''}": round(1e3 * t, 3) for (b, g), t in tried.items()}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight.to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Experts(nn.Module):
    """Gated MLPs of which each token takes the best few, under the softmax of their logits."""

    def __init__(self, s, how):
        super().__init__()
        self.count, self.k, self.how = s["experts"], s["per_token"], how
        width, h = s["expert_ffn"], s["hidden"]
        self.router = nn.Linear(h, self.count, bias=False)
        self.up = nn.Parameter(torch.empty(self.count, 2 * width, h).normal_(0, 0.02))
        self.down = nn.Parameter(torch.empty(self.count, h, width).normal_(0, 0.02 / math.sqrt(2 * s["layers"])))

    def weights(self, dtype):
        return self.up.to(dtype), self.down.to(dtype)

    def one(self, x, up, down):
        gate, up = F.linear(x, up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, down)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        top, chosen = torch.topk(self.router(tokens).float(), self.k, -1)
        weight = F.softmax(top, -1).to(tokens.dtype)
        up, down = self.weights(tokens.dtype)
        out = torch.zeros_like(tokens)
        if self.how == "loop":
            taken = F.one_hot(chosen, self.count).permute(2, 1, 0)
            for e in range(self.count):
                k, token = torch.where(taken[e])
                out.index_add_(0, token, self.one(tokens[token], up[e], down[e]) * weight[token, k, None])
            return out.view_as(x)
        order = torch.argsort(chosen.view(-1), stable=True)
        token, counts = order // self.k, torch.bincount(chosen.view(-1), minlength=self.count)
        rows = tokens[token]
        if self.how == "sorted":
            parts = torch.split(rows, counts.tolist())
            rows = torch.cat([self.one(part, up[e], down[e]) for e, part in enumerate(parts)])
        else:
            ends = counts.cumsum(0).to(torch.int32)
            gate, wide = F.grouped_mm(rows, up.transpose(-2, -1), offs=ends).chunk(2, -1)
            rows = F.grouped_mm(F.silu(gate) * wide, down.transpose(-2, -1), offs=ends)
        return out.index_add(0, token, rows * weight.view(-1)[order, None]).view_as(x)


class Attention(nn.Module):
    def __init__(self, s, grouped):
        super().__init__()
        h, self.d, self.a, self.g, self.grouped = s["hidden"], s["head_dim"], s["heads"], s["kv_heads"], grouped
        self.qkv = nn.Linear(h, (self.a + 2 * self.g) * self.d, bias=s["qkv_bias"])
        self.out = nn.Linear(self.a * self.d, h, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        q, k, v = self.qkv(x).view(batch, seq, -1, self.d).split((self.a, self.g, self.g), 2)
        q, k, v = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        return self.out(attention(q, k, v, self.grouped).transpose(1, 2).reshape(batch, seq, -1))


class LatentAttention(nn.Module):
    """As DeepSeek-V2 and V3 have it. It rotates halves instead of neighbours: the same function of permuted weights, and
    fewer copies."""

    def __init__(self, s, padded):
        super().__init__()
        h, self.a, self.padded = s["hidden"], s["heads"], padded
        self.c, self.n, self.r, self.v = s["kv_rank"], s["nope_dim"], s["head_dim"] - s["nope_dim"], s["value_dim"]
        self.q_down, self.q_norm = None, None
        if s["q_rank"]:
            self.q_down, self.q_norm = nn.Linear(h, s["q_rank"], bias=False), Norm(s["q_rank"])
        self.q_up = nn.Linear(s["q_rank"] or h, self.a * (self.n + self.r), bias=False)
        self.kv_down, self.kv_norm = nn.Linear(h, self.c + self.r, bias=False), Norm(self.c)
        self.kv_up = nn.Linear(self.c, self.a * (self.n + self.v), bias=False)
        self.out = nn.Linear(self.a * self.v, h, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x)) if self.q_down else x).view(batch, seq, self.a, -1)
        q, q_rotated = q.split((self.n, self.r), -1)
        latent, shared = self.kv_down(x).split((self.c, self.r), -1)
        k, v = self.kv_up(self.kv_norm(latent)).view(batch, seq, self.a, -1).split((self.n, self.v), -1)
        q = torch.cat((q, rotate(q_rotated, cos, sin)), -1)
        k = torch.cat((k, rotate(shared[:, :, None], cos, sin).expand(-1, -1, self.a, -1)), -1)
        if self.padded:
            v = F.pad(v, (0, self.n + self.r - self.v))
        y = attention(*(t.transpose(1, 2) for t in (q, k, v)), False)[..., :self.v]
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class Block(nn.Module):
    def __init__(self, s, grouped, experts, padded):
        super().__init__()
        h = s["hidden"]
        self.norm1, self.norm2 = Norm(h), Norm(h)
        self.attention = LatentAttention(s, padded) if s.get("kv_rank") else Attention(s, grouped)
        self.experts = Experts(s, experts) if s["experts"] else None
        if not s["experts"]:
            self.up = nn.Linear(h, 2 * s["ffn"], bias=False)
            self.down = nn.Linear(s["ffn"], h, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        if self.experts:
            return x + self.experts(self.norm2(x))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, s, grouped, compiled, experts, padded):
        super().__init__()
        self.table = nn.Embedding(s["vocab"], s["hidden"])
        self.blocks = nn.ModuleList(Block(s, grouped, experts, padded) for _ in range(s["layers"]))
        self.norm, self.head = Norm(s["hidden"]), nn.Linear(s["hidden"], s["vocab"], bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * s["layers"]) if ".out." in name or ".down." in name else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        if s["tied"]:
            self.head.weight = self.table.weight
        if compiled:  # one graph for all blocks, and one for the loss
            for block in self.blocks:
                block.compile()
            self.loss = torch.compile(self.loss)

    def loss(self, x, label):
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), label.reshape(-1))

    def forward(self, ids, label, cos, sin):
        x = self.table(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # the residual stream is bf16, as mtrain's
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.loss(x, label)


class Training:
    def __init__(self, s, args):
        self.s, self.device, self.bf16 = s, args.device, s["precision"] != "fp32"
        torch.manual_seed(1)
        torch.set_float32_matmul_precision("high")
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        choice, self.attention_ms = fastest_attention(s, args.device, dtype)
        self.attention = choice[0] + (" grouped" if choice[1] else "")
        with torch.device(args.device):
            self.model = Model(s, choice[1], args.compile, args.experts, args.values == "padded")
            rotated = s["head_dim"] - s.get("nope_dim", 0)
            angles = torch.outer(torch.arange(s["seq"]).float(),
                                 s["rotary_base"] ** (-torch.arange(0, rotated, 2).float() / rotated))
        if args.weights == "bf16":
            self.model.to(torch.bfloat16)
        self.autocast = self.bf16 and args.weights == "fp32"
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if args.strategy != "none":
            self.spread(args.strategy)
        self.cos, self.sin = (f(angles)[:, None].to(dtype) for f in (torch.cos, torch.sin))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
        self.ids = np.memmap(args.data + ".bin", dtype=np.int32, mode="r")
        self.at = 0

    def spread(self, strategy):
        import torch.distributed as dist
        dist.init_process_group("nccl" if self.device == "cuda" else "gloo")
        if strategy == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True, static_graph=True)
            return
        from torch.distributed.fsdp import fully_shard
        mesh = dist.device_mesh.init_device_mesh(self.device, (self.ranks,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def batch(self):
        n = self.s["micro_batch"] * self.s["seq"]
        if self.at + n + 1 > len(self.ids):
            self.at = 0
        window = torch.from_numpy(self.ids[self.at:self.at + n + 1].astype(np.int64))
        self.at += n
        window = window.pin_memory().to(self.device, non_blocking=True) if self.device == "cuda" else window
        return [t.view(self.s["micro_batch"], self.s["seq"]) for t in (window[:-1], window[1:])]

    def step(self):
        micros, total = self.s["global_batch"] // (self.s["micro_batch"] * self.ranks), 0.0
        for _ in range(micros):
            ids, label = self.batch()
            with torch.autocast(self.device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
                loss = self.model(ids, label, self.cos, self.sin) / micros
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(total)  # waits for the device, as mtrain's report of the loss does


def kind_of(kernel):
    if kernel.startswith("triton_") and not kernel.startswith("triton_tem"):
        return "other"  # a fused kernel; its name lists the operations
    return "attention" if any(w in kernel for w in ATTENTION) else "matmul" if any(w in kernel for w in MATMUL) else "other"


def operations(training, steps):
    """[name, ms per step, what it is] of the device's kernels, the longest first."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if training.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(steps):
            training.step()
    on_gpu = training.device == "cuda"
    rows = []
    for event in profile.key_averages():
        if on_gpu and event.device_type != torch.autograd.DeviceType.CUDA:
            continue  # the operation that launched a kernel, which has a row of its own
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0 and not event.key.startswith(("ProfilerStep", "## Call")):
            rows.append([event.key[:70], us / 1e3 / steps, kind_of(event.key.lower())])
    return sorted(rows, key=lambda r: -r[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--profile", type=int, default=0, help="steps; 0: none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as PyTorch likes")
    parser.add_argument("--weights", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--experts", choices=["loop", "sorted", "grouped"], default="sorted")
    parser.add_argument("--values", choices=["as_is", "padded"], default="padded")
    parser.add_argument("--strategy", choices=["none", "ddp", "fsdp"], default="none")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    training = Training(args.shape, args)
    times, losses, cpu_times = [], [], []
    for _ in range(args.warmup + args.steps):
        began, cpu_began = time.perf_counter(), time.process_time()
        losses.append(training.step())
        times.append(1e3 * (time.perf_counter() - began))
        cpu_times.append(1e3 * (time.process_time() - cpu_began))
        print(f"step {len(times)} loss {losses[-1]:.4f} {times[-1]:.1f} ms", file=sys.stderr, flush=True)
    memory = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    ops = []
    if args.profile:
        try:
            ops = operations(training, args.profile)
        except Exception as e:  # keep the measured times
            print(f"no profile: {type(e).__name__}: {e}", file=sys.stderr)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    print(json.dumps(dict(
        torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability(), attention=training.attention, attention_ms=training.attention_ms,
        parameters=sum(p.numel() for p in training.parameters), step_ms=times[args.warmup:],
        cpu_ms=cpu_times[args.warmup:], losses=losses,
        memory_allocated=memory, operations=ops[:25], operations_ms=sum(ms for _, ms, _ in ops))))


if __name__ == "__main__":
    main()
