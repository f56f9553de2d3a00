#!/usr/bin/env python3
"""Compares the golden files of models with experts with transformers, an independent implementation.

  scripts/golden/peers.py     needs PyTorch and transformers (pip install transformers)

Each family's parameters are loaded into the model of transformers that it is named after, in float64. Its logits, loss
and gradients must be those of the file to 1e-5, relative to their lengths. DeepSeek-V3's router (sigmoids, groups,
biases) is compared with Glm4Moe's, which has the attention of llama. Losses of routers are transformers' own function,
layer by layer: applied to all layers at once, it multiplies means over layers, and it counts each of a token's choices.
"""
import sys

import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import model as golden

BOUND = 1e-5


def shared_settings(c):
    return dict(
        vocab_size=c["vocab_size"], hidden_size=c["hidden_size"], num_hidden_layers=c["num_layers"],
        num_attention_heads=c["num_attention_heads"], num_key_value_heads=c["num_query_groups"],
        head_dim=c["kv_channels"], intermediate_size=c["ffn_hidden_size"],
        max_position_embeddings=c["max_position_embeddings"], rms_norm_eps=c["norm_epsilon"],
        rope_theta=c["rotary_base"],
        rope_parameters=dict(rope_type="default", rope_theta=c["rotary_base"]),
        num_experts_per_tok=c["moe"]["router_topk"], tie_word_embeddings=False,
        attn_implementation="eager", experts_implementation="eager", output_router_logits=False)


def mixtral(c):
    settings = shared_settings(c)
    settings["intermediate_size"] = c["moe"]["ffn_hidden_size"]
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        num_local_experts=c["moe"]["num_experts"], sliding_window=None, **settings))


def qwen3_moe(c):
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        num_experts=c["moe"]["num_experts"], moe_intermediate_size=c["moe"]["ffn_hidden_size"],
        norm_topk_prob=c["moe"]["norm_topk_prob"], decoder_sparse_step=1, mlp_only_layers=[],
        **shared_settings(c)))


def qwen2_moe(c):
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        num_experts=c["moe"]["num_experts"], moe_intermediate_size=c["moe"]["ffn_hidden_size"],
        shared_expert_intermediate_size=c["moe"]["shared_expert_ffn_hidden_size"],
        norm_topk_prob=c["moe"]["norm_topk_prob"], decoder_sparse_step=1, mlp_only_layers=[],
        use_sliding_window=False, qkv_bias=True, **shared_settings(c)))


def glm4_moe(c):
    moe = c["moe"]
    shared, rest = divmod(moe["shared_expert_ffn_hidden_size"], moe["ffn_hidden_size"])
    assert rest == 0, "Glm4Moe's shared expert is as wide as several experts"
    settings = shared_settings(c)
    del settings["output_router_logits"]
    settings["rope_parameters"]["partial_rotary_factor"] = 1.0
    return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
        n_routed_experts=moe["num_experts"], moe_intermediate_size=moe["ffn_hidden_size"],
        n_shared_experts=shared, first_k_dense_replace=moe["first_dense_layers"],
        n_group=moe["num_groups"], topk_group=moe["group_topk"], norm_topk_prob=True,
        routed_scaling_factor=moe["router_topk_scaling_factor"], use_qk_norm=False,
        attention_bias=False, partial_rotary_factor=1.0, **settings))


MODELS = {"mixtral": mixtral, "qwen3_moe": qwen3_moe, "qwen2_moe": qwen2_moe,
          "deepseek_v3_router": glm4_moe}


class Names:
    """Where a model of transformers keeps our tensors: (their name, rows of ours, or an expert's
    part) of each of our parameters. Experts are one parameter, or one for each expert."""

    def __init__(self, c, theirs):
        self.c, self.theirs = c, theirs

    def pieces(self, ours):
        """-> [(their name, index into ours)]"""
        fixed = {"embedding.weight": "model.embed_tokens.weight",
                 "final_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
        if ours in fixed:
            return [(fixed[ours], ...)]
        _, layer, part, rest = ours.split(".", 3)
        return getattr(self, part)(f"model.layers.{layer}", rest)

    def attention(self, layer, rest):
        A, G, D = (self.c[k] for k in ("num_attention_heads", "num_query_groups", "kv_channels"))
        if rest == "norm.weight":
            return [(f"{layer}.input_layernorm.weight", ...)]
        if rest.startswith("qkv."):
            kind, ends = rest.split(".")[1], [0, A * D, (A + G) * D, (A + 2 * G) * D]
            return [(f"{layer}.self_attn.{x}_proj.{kind}", slice(ends[i], ends[i + 1]))
                    for i, x in enumerate("qkv")]
        if rest == "proj.weight":
            return [(f"{layer}.self_attn.o_proj.weight", ...)]
        return [(f"{layer}.self_attn.{rest}", ...)]  # q_norm, k_norm

    def mlp(self, layer, rest):
        if rest == "norm.weight":
            return [(f"{layer}.post_attention_layernorm.weight", ...)]
        mlp = self.first(f"{layer}.mlp", f"{layer}.block_sparse_moe")
        if rest in ("router.weight", "router.bias"):
            suffix = "weight" if rest.endswith("weight") else "e_score_correction_bias"
            return [(f"{mlp}.gate.{suffix}", ...)]
        if rest == "shared_expert.gate.weight":
            return [(f"{mlp}.shared_expert_gate.weight", ...)]
        for prefix in ("shared_expert.", ""):
            if rest in (f"{prefix}gate_up.weight", f"{prefix}down.weight"):
                mlp = self.first(f"{mlp}.{prefix}", f"{mlp}.shared_experts.") if prefix else f"{mlp}."
                return self.gated(mlp, rest.endswith("gate_up.weight"), (), self.width(mlp))
        up = rest == "experts.gate_up.weight"
        whole = f"{mlp}.experts.{'gate_up_proj' if up else 'down_proj'}"
        if whole in self.theirs:
            return [(whole, ...)]
        found = []
        for e in range(self.c["moe"]["num_experts"]):
            found += self.gated(f"{mlp}.experts.{e}.", up, (e,), self.c["moe"]["ffn_hidden_size"])
        return found

    def gated(self, mlp, up, at, width):
        names = ("w1", "w3", "w2") if f"{mlp}w1.weight" in self.theirs else (
            "gate_proj", "up_proj", "down_proj")
        if not up:
            return [(f"{mlp}{names[2]}.weight", at or ...)]
        return [(f"{mlp}{names[i]}.weight", at + (slice(i * width, (i + 1) * width),))
                for i in range(2)]

    def width(self, mlp):
        return self.theirs[f"{mlp}gate_proj.weight"].shape[0]

    def first(self, *prefixes):
        for prefix in prefixes:
            if any(name.startswith(prefix) for name in self.theirs):
                return prefix
        raise SystemExit(f"none of {prefixes} is a part of transformers' model")


def router_losses(c, logits):
    """By transformers' own function for each layer, which returns K times our loss."""
    moe, total = c["moe"], 0.0
    for x in logits:
        x = x.reshape(-1, moe["num_experts"])
        (kind,), (coeff,) = moe["load_balancing_type"], moe["aux_loss_coeff"]
        if kind == "aux_loss" and coeff:
            total = total + coeff / moe["router_topk"] * load_balancing_loss_func(
                (x,), moe["num_experts"], moe["router_topk"])
        total = total + moe["z_loss_coeff"] * (torch.logsumexp(x, -1) ** 2).mean()
    return total


def without_losses(c):
    """The same model without losses of its router."""
    return dict(c, moe=dict(c["moe"], aux_loss_coeff=[0.0], z_loss_coeff=0.0,
                            load_balancing_type=["aux_loss"]))


def compare(family):
    tensors, metadata = golden.load(golden.FOLDER / f"{family}.safetensors")
    c = golden.json.loads(metadata["config"])
    names = list(golden.parameter_shapes(c))
    state = {n: t for n, t in tensors.items() if n.endswith(".router.bias")}
    grads = {n: tensors[f"grad.{n}"].double() for n in names}
    loss = float(metadata["loss"])
    # transformers' models with these routers have no loss of theirs.
    has_losses = family != "deepseek_v3_router"
    if not has_losses:
        c = without_losses(c)
        params = {n: tensors[n] for n in names}
        _, _, _, grads = golden.compute(c, params, state, tensors["input_ids"], tensors["labels"])
    theirs = MODELS[family](c).double().train()
    at = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    where = Names(c, at)
    used = set()
    with torch.no_grad():
        for name in names + list(state):
            for their, index in where.pieces(name):
                if their not in at:
                    raise SystemExit(f"{family}: transformers has no {their}")
                at[their].copy_(tensors[name].double()[index])
                used.add(their)
    left = [n for n, _ in theirs.named_parameters() if n not in used]
    if left:
        raise SystemExit(f"{family}: transformers has parameters that were not set: {left}")
    logits_of_routers = []
    hooks = []
    if has_losses:
        for i in range(c["num_layers"]):
            layer = theirs.model.layers[i]
            block = getattr(layer, "mlp", None) or layer.block_sparse_moe
            weight = block.gate.weight
            hooks.append(block.gate.register_forward_hook(
                lambda _, inputs, __, w=weight: logits_of_routers.append(
                    inputs[0].reshape(-1, w.shape[1]) @ w.t())))
    out = theirs(input_ids=tensors["input_ids"].long(), use_cache=False).logits
    their_loss = golden.masked_loss(out, tensors["labels"].long())
    (their_loss + (router_losses(c, logits_of_routers) if has_losses else 0)).backward()
    for hook in hooks:
        hook.remove()
    out = out.detach()
    errors = {"logits": float((out - tensors["logits"].double()).norm() / out.norm()),
              "loss": abs(float(their_loss.detach()) - loss) / loss}
    for name in names:
        grad = torch.zeros_like(grads[name])
        for their, index in where.pieces(name):
            grad[index] = at[their].grad
        errors[name] = float((grad - grads[name]).norm() / grads[name].norm())
    worst = max(errors, key=errors.get)
    bad = not all(e < BOUND for e in errors.values())
    print(f"{family:18} of {type(theirs).__name__:22} logits {errors['logits']:.1e}  loss "
          f"{errors['loss']:.1e}  worst {worst} {errors[worst]:.1e}  {'WRONG' if bad else 'ok'}")
    return bad


def main():
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    torch.manual_seed(0)
    return int(any([compare(family) for family in MODELS]))


if __name__ == "__main__":
    sys.exit(main())
