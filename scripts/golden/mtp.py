#!/usr/bin/env python3
"""Golden files of multi-token prediction: test/golden/mtp/<case>.safetensors.

  scripts/golden/mtp.py [CASE..] writes the files (needs PyTorch: apt-get install python3-torch)

Each file holds a small model: its parameters, two sequences of tokens with labels (-1: masked), and
what a training step must find: the loss of each depth, from 0, and the gradient of every parameter.
Depth k follows section 2.2 of DeepSeek-AI 2024, "DeepSeek-V3": of token i it reads what depth k - 1
has computed for i and the embedding of token i + k, and predicts token i + k + 1. Depth 0 hands on
the result of the model's final norm. The gradients are those of

  loss of depth 0 + factor / depths * sum of the losses of the other depths + the routers' losses

where the loss of a depth is the mean over its unmasked labels. All is computed in float64 by plain
tensor operations and autograd, beside the models of model.py.
"""
import argparse
import json
import math

import torch

import model as base

FOLDER = base.FOLDER.parent / "mtp"
LATENT = dict(base.LLAMA, num_query_groups=4, kv_channels=None, multi_latent_attention=True,
              q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
CASES = {
    "dense": dict(base.LLAMA, mtp_num_layers=2, mtp_loss_scaling_factor=0.3),
    "tied_repeated": dict(base.LLAMA, num_layers=1, mtp_num_layers=3, mtp_loss_scaling_factor=0.6,
                          mtp_use_repeated_layer=True, share_embeddings_and_output_weights=True),
    "latent_experts": dict(
        LATENT, mtp_num_layers=1, mtp_loss_scaling_factor=0.2,
        moe=dict(base.EXPERTS, router_score="sigmoid", router_topk=3, first_dense_layers=1,
                 aux_loss_coeff=[0.05], shared_expert_ffn_hidden_size=40)),
}
LATENT_EPSILON = 1e-6


def layers_of(c):
    return 1 if c.get("mtp_use_repeated_layer") else c["mtp_num_layers"]


def latent_shapes(c, prefix):
    H, A = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    q, kv = c["q_lora_rank"], c["kv_lora_rank"]
    shapes = {"norm": (H,), "q_down": (q, H), "q_latent_norm": (q,), "q_up": (A * (nope + rope), q),
              "kv_down": (kv + rope, H), "kv_latent_norm": (kv,), "kv_up": (A * (nope + v), kv),
              "proj": (H, A * v)}
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def parameter_shapes(c):
    latent = c.get("multi_latent_attention")
    plain = dict(c, num_layers=c["num_layers"] + layers_of(c), kv_channels=c["kv_channels"] or 1)
    H, shapes = c["hidden_size"], {}
    for name, shape in base.parameter_shapes(plain).items():
        if not latent or ".attention." not in name:
            shapes[name] = shape
        elif name.endswith("qkv.weight"):
            shapes.update(latent_shapes(c, name.removesuffix(".qkv.weight")))
    for i in range(c["num_layers"], plain["num_layers"]):
        for name, shape in dict(embedding_norm=(H,), hidden_norm=(H,), proj=(H, 2 * H),
                                final_norm=(H,)).items():
            shapes[f"layers.{i}.mtp.{name}.weight"] = shape
    return shapes


class Gpt(base.Gpt):
    def attention(self, name, x, layer):
        c = self.c
        if not c.get("multi_latent_attention"):
            return super().attention(name, x, layer)
        A, nope, rope, v = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                            c["v_head_dim"])
        b, s, _ = x.shape
        h = self.input(name, x)

        def latent(y, norm):
            return base.rms_norm(y, self.p[f"{name}.{norm}.weight"], LATENT_EPSILON)

        q = self.linear(f"{name}.q_up", latent(self.linear(f"{name}.q_down", h), "q_latent_norm"))
        q = q.reshape(b, s, A, nope + rope)
        down = self.linear(f"{name}.kv_down", h)
        kv = self.linear(f"{name}.kv_up", latent(down[..., :c["kv_lora_rank"]], "kv_latent_norm"))
        kv = kv.reshape(b, s, A, nope + v)
        frequencies = torch.tensor([c["rotary_base"] ** (-2 * i / rope) for i in range(rope // 2)],
                                   dtype=torch.float64)
        angles = torch.arange(s, dtype=torch.float64)[:, None] * frequencies

        def rotate(y):  # neighbouring elements are a pair
            even, odd = y[..., 0::2], y[..., 1::2]
            cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
            return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)

        shared = rotate(down[..., c["kv_lora_rank"]:].reshape(b, s, 1, rope)).expand(b, s, A, rope)
        q = torch.cat((q[..., :nope], rotate(q[..., nope:])), -1)
        k = torch.cat((kv[..., :nope], shared), -1)
        scores = torch.einsum("bqad,bkad->baqk", q, k) / math.sqrt(nope + rope)
        hidden = torch.ones(s, s, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        out = torch.einsum("baqk,bkad->bqad", weights, kv[..., nope:]).flatten(-2)
        return self.linear(f"{name}.proj", out)

    def layer(self, i, x, kind):
        x = x + self.attention(f"layers.{i}.attention", x, kind)
        moe, mlp = base.experts_of(self.c, kind), f"layers.{i}.mlp"
        return x + (self.experts(moe, mlp, x) if moe else self.mlp(mlp, x))

    def loss_of(self, y, labels):
        return base.masked_loss(y @ self.p.get("output.weight", self.p["embedding.weight"]).t(), labels)

    def losses_of_depths(self, ids, labels):
        c, embedding = self.c, self.p["embedding.weight"]
        x = embedding[ids]
        for i in range(c["num_layers"]):
            x = self.layer(i, x, i)
        y = self.norm("final_norm", x)
        losses = [self.loss_of(y, labels)]
        for k in range(1, c["mtp_num_layers"] + 1):
            i = c["num_layers"] + (0 if c.get("mtp_use_repeated_layer") else k - 1)
            later, targets = torch.zeros_like(ids), torch.full_like(labels, -1)
            later[:, :-k], targets[:, :-k] = ids[:, k:], labels[:, k:]
            both = torch.cat((self.norm(f"layers.{i}.mtp.embedding_norm", embedding[later]),
                              self.norm(f"layers.{i}.mtp.hidden_norm", y)), -1)
            x = self.layer(i, self.linear(f"layers.{i}.mtp.proj", both), c["num_layers"] - 1)
            y = self.norm(f"layers.{i}.mtp.final_norm", x)
            losses.append(self.loss_of(y, targets))
        return losses


def write(name, seed):
    c = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for p, shape in parameter_shapes(c).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float32)
        params[p] = (1 + 0.2 * values if p.endswith("norm.weight")
                     else values * (0.5 if p.startswith("embedding") else 0.15))
    ids = torch.randint(c["vocab_size"], (base.B, base.S + 1), generator=generator, dtype=torch.int32)
    labels = ids[:, 1:].clone()
    labels[torch.rand(base.B, base.S, generator=generator) < 0.2] = -1
    leaves = {p: value.double().requires_grad_() for p, value in params.items()}
    gpt = Gpt(c, leaves)
    losses = gpt.losses_of_depths(ids[:, :-1].long(), labels.long())
    factor = c["mtp_loss_scaling_factor"] / c["mtp_num_layers"]
    (losses[0] + factor * sum(losses[1:]) + gpt.router_losses).backward()
    if gpt.margin < base.LEAST_MARGIN:
        raise base.NarrowChoice(f"a choice was made by {gpt.margin:.1e}")
    tensors = {"input_ids": ids[:, :-1].contiguous(), "labels": labels}
    tensors.update(params)
    tensors.update({f"grad.{p}": leaf.grad.float() for p, leaf in leaves.items()})
    path = FOLDER / f"{name}.safetensors"
    config = {key: value for key, value in c.items() if value is not None}
    base.save(path, tensors, {"config": json.dumps(config),
                              "losses": json.dumps([loss.item() for loss in losses])})
    print(f"{name:16} losses {' '.join(f'{loss.item():.6f}' for loss in losses)}  "
          f"smallest gradient norm {min(float(p.grad.norm()) for p in leaves.values()):.1e}  "
          f"{path.stat().st_size // 1024} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(CASES):
        for attempt in range(1000 if not args.cases or name in args.cases else 0):
            try:
                write(name, seed + 1 + 1000 * attempt)
                break
            except base.NarrowChoice:
                continue
        else:
            if not args.cases or name in args.cases:
                raise SystemExit(f"{name}: no seed keeps all choices apart")


if __name__ == "__main__":
    main()
