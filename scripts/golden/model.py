#!/usr/bin/env python3
"""Golden files of whole models: test/golden/model/<family>.safetensors.

  scripts/golden/model.py [FAMILY..] writes the files (needs PyTorch: apt-get install python3-torch)
  scripts/golden/model.py --check    recomputes them from their parameters and holds their gradients
                                     against finite differences

Each file holds a small model of one family: its parameters, two sequences of tokens with labels
(-1: masked), and what an implementation must find: the logits, the loss (mean over the unmasked
labels, in nats) and the gradient of every parameter. In models with experts the gradients are those
of the loss plus the routers' own losses, which the file has, too, beside their biases and the loads
of the batch before. What a capacity drops is dropped in the logits, too. Everything is computed in float64 from
parameters that are exact in float32, by plain tensor operations and autograd, so that the stored
float32 results are right to their last bit.

B batch, S sequence, H hidden, A query heads, G kv heads, D head dim, F ffn, V vocabulary, E experts,
K experts of a token
"""
import argparse
import json
import math
import pathlib
import struct
import sys

import torch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "model"
TYPES = {torch.float32: ("F32", "f"), torch.int32: ("I32", "i")}

# The settings carry the names of a recipe's model section.
LLAMA = dict(
    architecture="llama", num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2,
    kv_channels=8, ffn_hidden_size=88, vocab_size=97, max_position_embeddings=64,
    normalization="rmsnorm", norm_epsilon=1e-5, position_embedding="rope", rotary_base=1e4,
    rope_scaling=None, activation="swiglu", add_bias_linear=False, add_qkv_bias=False,
    qk_layernorm=False, share_embeddings_and_output_weights=False, window_size=None)
GPT2 = dict(LLAMA, architecture="gpt2", num_query_groups=4, ffn_hidden_size=64,
            max_position_embeddings=32, normalization="layernorm", position_embedding="learned",
            activation="gelu_tanh", add_bias_linear=True, add_qkv_bias=True,
            share_embeddings_and_output_weights=True)
EXPERTS = dict(num_experts=8, router_topk=2, ffn_hidden_size=24, router_score="softmax",
               router_pre_softmax=False, norm_topk_prob=True, router_topk_scaling_factor=1.0,
               num_groups=1, group_topk=1, router_bias=False, first_dense_layers=0,
               load_balancing_type=["aux_loss"], aux_loss_coeff=[0.0], z_loss_coeff=0.0,
               expert_capacity_factor=0.0, token_drop_policy="probs",
               shared_expert_ffn_hidden_size=0, shared_expert_gate=False)
FAMILIES = {
    "llama": LLAMA,
    # With 48 original positions lane 0 (wavelength 6.3) keeps its frequency, lane 1 (32) is
    # interpolated, and the others are slowed by the whole factor.
    "llama3_rope": dict(
        LLAMA, kv_channels=16, hidden_size=48, rotary_base=5e5,
        rope_scaling=dict(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=48)),
    "qwen2": dict(LLAMA, architecture="qwen2", rotary_base=1e6, norm_epsilon=1e-6,
                  add_qkv_bias=True, share_embeddings_and_output_weights=True),
    "qwen3": dict(LLAMA, architecture="qwen3", hidden_size=40, kv_channels=16, rotary_base=1e6,
                  norm_epsilon=1e-6, qk_layernorm=True),
    "mistral": dict(LLAMA, architecture="mistral", window_size=8),
    "gpt2": GPT2,
    "gpt2_erf": dict(GPT2, activation="gelu"),
    "llama_bias": dict(LLAMA, attention_bias=True),
    # Softmax over the chosen logits, and a balance loss.
    "mixtral": dict(LLAMA, architecture="mixtral", rotary_base=1e6,
                    moe=dict(EXPERTS, aux_loss_coeff=[0.1])),
    # Softmax over all experts; the weights of the chosen ones are scaled to a sum of 1.
    "qwen3_moe": dict(LLAMA, architecture="qwen3_moe", kv_channels=16, norm_epsilon=1e-6,
                      rotary_base=1e6, qk_layernorm=True,
                      moe=dict(EXPERTS, router_topk=3, router_pre_softmax=True, z_loss_coeff=0.01)),
    # Weights that do not sum to 1, and a shared expert under a gate.
    "qwen2_moe": dict(LLAMA, architecture="qwen2_moe", norm_epsilon=1e-6, rotary_base=1e6,
                      add_qkv_bias=True,
                      moe=dict(EXPERTS, router_topk=4, router_pre_softmax=True,
                               norm_topk_prob=False, aux_loss_coeff=[0.1], z_loss_coeff=0.01,
                               shared_expert_ffn_hidden_size=40, shared_expert_gate=True)),
    # A dense layer first, and a shared expert without a gate.
    "deepseek_moe": dict(LLAMA, architecture="deepseek_moe", norm_epsilon=1e-6,
                         moe=dict(EXPERTS, router_topk=3, router_pre_softmax=True,
                                  norm_topk_prob=False, first_dense_layers=1,
                                  shared_expert_ffn_hidden_size=48)),
    # DeepSeek-V3's router: the experts come from the best groups by score + bias, and their weights
    # are the sigmoids, scaled to a sum of 2.5.
    "deepseek_v3_router": dict(LLAMA, norm_epsilon=1e-6,
                               moe=dict(EXPERTS, num_experts=16, router_topk=4, router_score="sigmoid",
                                        router_topk_scaling_factor=2.5, num_groups=4, group_topk=2,
                                        router_bias=True, first_dense_layers=1,
                                        load_balancing_type=["seq_aux_loss"], aux_loss_coeff=[0.1],
                                        shared_expert_ffn_hidden_size=48)),
    # The balance losses of a sample, and of the loads of the batch before; both with another.
    "seq_aux_loss": dict(LLAMA, moe=dict(EXPERTS, load_balancing_type=["seq_aux_loss"],
                                         aux_loss_coeff=[0.1])),
    "global_aux_loss": dict(LLAMA, moe=dict(EXPERTS, load_balancing_type=["global_aux_loss"],
                                            aux_loss_coeff=[0.1])),
    "all_losses": dict(LLAMA, moe=dict(
        EXPERTS, load_balancing_type=["aux_loss", "seq_aux_loss", "global_aux_loss"],
        aux_loss_coeff=[0.03, 0.04, 0.05], z_loss_coeff=0.01)),
    # Experts that drop what is beyond 1.0 and 0.8 of an even share. The weights of a token's other
    # experts stay as they are.
    "capacity_probs": dict(LLAMA, moe=dict(EXPERTS, router_topk=3, router_pre_softmax=True,
                                           norm_topk_prob=False, expert_capacity_factor=1.0,
                                           aux_loss_coeff=[0.1])),
    "capacity_position": dict(LLAMA, moe=dict(EXPERTS, router_score="sigmoid", router_topk=3,
                                              expert_capacity_factor=0.8,
                                              token_drop_policy="position")),
    # Of each head of 16, 12 elements are rotated: of their 6 lanes the first keeps its frequency, and
    # the fifth is the first that is slowed by the whole factor.
    "yarn": dict(
        LLAMA, kv_channels=16, rotary_percent=0.75, rotary_base=1e2,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0,
                          beta_slow=0.25, attention_factor=1.15)),
    "mlp_bias": dict(LLAMA, mlp_bias=True),
    # Norms of inputs and outputs, also around experts; and experts that read the residual stream itself.
    "sandwich_layernorms": dict(GPT2, norm_placement="sandwich", layernorm_zero_centered_gamma=True),
    "sandwich_experts": dict(LLAMA, norm_placement="sandwich",
                             moe=dict(EXPERTS, shared_expert_ffn_hidden_size=40,
                                      shared_expert_gate=True, aux_loss_coeff=[0.1])),
    # Norms of the outputs of attention and MLP alone, and of all heads' queries and keys.
    "post_norms": dict(LLAMA, norm_placement="post", qk_layernorm=True, qk_layernorm_all_heads=True),
    # All norms multiply by 1 + weight.
    "sandwich_norms": dict(LLAMA, kv_channels=16, norm_placement="sandwich", qk_layernorm=True,
                           layernorm_zero_centered_gamma=True),
    "post_experts": dict(LLAMA, norm_placement="post", moe=dict(EXPERTS, router_topk=3)),
    # With a window and rotary positions, with either, and with neither. The window's base is not
    # scaled; scores are divided by another root, and capped.
    "some_layers": dict(
        LLAMA, num_layers=4, kv_channels=16, rotary_base=1e4, rotary_base_local=1e2,
        rope_scaling=dict(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=48),
        no_rope_freq=[0, 0, 1, 1], window_size=8, window_attn_skip_freq=[1, 0, 1, 0],
        query_pre_attn_scalar=6.0, attn_logit_softcapping=2.0),
    # Gates by gelu, embeddings that are scaled where tokens are looked up but not where the same
    # matrix gives the logits, and a cap that bends most of these.
    "geglu_capped": dict(LLAMA, activation="geglu", embedding_multiplier=32 ** 0.5,
                         final_logit_softcapping=3.0, share_embeddings_and_output_weights=True),
    "geglu_moe": dict(LLAMA, activation="geglu",
                      moe=dict(EXPERTS, aux_loss_coeff=[0.1], first_dense_layers=1,
                               shared_expert_ffn_hidden_size=40, shared_expert_gate=True)),
}
B, S = 2, 24
# fp32 must choose the experts that float64 chooses, and its scores err by some 1e-6. Finite
# differences move a score by some 1e-5.
LEAST_MARGIN = 1e-4


class NarrowChoice(Exception):
    pass


def save(path, tensors, metadata):
    """safetensors: an 8-byte length, a JSON header, then the tensors one after another."""
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        dtype, code = TYPES[tensor.dtype]
        blob = struct.pack(f"<{tensor.numel()}{code}", *tensor.flatten().tolist())
        header[name] = dict(dtype=dtype, shape=list(tensor.shape), data_offsets=[at, at + len(blob)])
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    raw = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:start])
    metadata = header.pop("__metadata__")
    by_name = {name: (dtype, code) for dtype, (name, code) in TYPES.items()}
    tensors = {}
    for name, entry in header.items():
        dtype, code = by_name[entry["dtype"]]
        first, last = entry["data_offsets"]
        values = struct.unpack_from(f"<{(last - first) // 4}{code}", raw, start + first)
        tensors[name] = torch.tensor(values, dtype=dtype).reshape(entry["shape"])
    return tensors, metadata


def experts_of(c, layer):
    """The layer's settings of experts; None for a dense layer."""
    moe = c.get("moe")
    return moe if moe and layer >= moe["first_dense_layers"] else None


def placement(c):
    """-> whether attention and MLP have norms of their inputs, and of their outputs."""
    where = c.get("norm_placement", "pre")
    return where != "post", where != "pre"


def parameter_shapes(c):
    """Name -> shape, in the order of the forward pass."""
    H, A, G, D = c["hidden_size"], c["num_attention_heads"], c["num_query_groups"], c["kv_channels"]
    ffn, V = c["ffn_hidden_size"], c["vocab_size"]
    shapes = {"embedding.weight": (V, H)}

    def norm(name):
        shapes[f"{name}.weight"] = (H,)
        if c["normalization"] == "layernorm":
            shapes[f"{name}.bias"] = (H,)

    def linear(name, rows, columns, bias):
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)

    if c["position_embedding"] == "learned":
        shapes["position_embedding.weight"] = (c["max_position_embeddings"], H)
    inputs, outputs = placement(c)
    for i in range(c["num_layers"]):
        attention, mlp = f"layers.{i}.attention", f"layers.{i}.mlp"
        bias, mlp_bias = c["add_bias_linear"], c["add_bias_linear"] or c.get("mlp_bias", False)
        if inputs:
            norm(f"{attention}.norm")
        attention_bias = c.get("attention_bias", False)
        linear(f"{attention}.qkv", (A + 2 * G) * D, H, c["add_qkv_bias"] or attention_bias)
        if c["qk_layernorm"]:
            as_one = c.get("qk_layernorm_all_heads", False)
            shapes[f"{attention}.q_norm.weight"] = (A * D if as_one else D,)
            shapes[f"{attention}.k_norm.weight"] = (G * D if as_one else D,)
        linear(f"{attention}.proj", H, A * D, bias or attention_bias)
        if outputs:
            norm(f"{attention}.out_norm")
        if inputs:
            norm(f"{mlp}.norm")
        moe = experts_of(c, i)
        if moe:
            E, F, shared = moe["num_experts"], moe["ffn_hidden_size"], moe["shared_expert_ffn_hidden_size"]
            linear(f"{mlp}.router", E, H, False)
            if shared:
                linear(f"{mlp}.shared_expert.gate_up", 2 * shared, H, False)
                linear(f"{mlp}.shared_expert.down", H, shared, False)
            if moe["shared_expert_gate"]:
                linear(f"{mlp}.shared_expert.gate", 1, H, False)
            shapes[f"{mlp}.experts.gate_up.weight"] = (E, 2 * F, H)
            shapes[f"{mlp}.experts.down.weight"] = (E, H, F)
            if outputs:
                norm(f"{mlp}.out_norm")
            continue
        if c["activation"] in GATES:
            linear(f"{mlp}.gate_up", 2 * ffn, H, mlp_bias)
        else:
            linear(f"{mlp}.up", ffn, H, mlp_bias)
        linear(f"{mlp}.down", H, ffn, mlp_bias)
        if outputs:
            norm(f"{mlp}.out_norm")
    norm("final_norm")
    if not c["share_embeddings_and_output_weights"]:
        shapes["output.weight"] = (V, H)
    return shapes


def draw_state(c, generator):
    """The routers' state beside parameters: biases, and each expert's part of a batch's choices."""
    state = {}
    for i in range(c["num_layers"]):
        moe = experts_of(c, i)
        if moe and moe["router_bias"]:
            state[f"layers.{i}.mlp.router.bias"] = 0.2 * torch.randn(
                moe["num_experts"], generator=generator, dtype=torch.float32)
        if moe and "global_aux_loss" in moe["load_balancing_type"]:
            counts = torch.rand(moe["num_experts"], generator=generator, dtype=torch.float32) + 0.1
            state[f"layers.{i}.mlp.router.load_fraction"] = counts / counts.sum()
    return state


def draw_parameters(c, generator):
    """Large enough that every gradient is far from zero; norms multiply by numbers around one."""
    params, centre = {}, 0 if c.get("layernorm_zero_centered_gamma", False) else 1
    for name, shape in parameter_shapes(c).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float32)
        if name.endswith("norm.weight"):
            params[name] = centre + 0.2 * values
        else:
            params[name] = values * (0.5 if name.startswith("embedding") else 0.15)
    return params


def rotary_size(c):
    return int(c["kv_channels"] * c.get("rotary_percent", 1))


def yarn_frequency(f, i, D, base, scaling):
    """From lane `low` to lane `high`, the frequency changes gradually to that of a context `factor` times as long."""
    def lane(turns):
        return D * math.log(scaling["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(lane(scaling["beta_fast"])), 0), min(math.ceil(lane(scaling["beta_slow"])), D - 1)
    share = min(max((i - low) / (high - low), 0), 1)
    return share * f / scaling["factor"] + (1 - share) * f


def of_layer(c, setting, layer, default):
    """Whether a list of 0 and 1 has a 1 for this layer."""
    return c[setting][layer] == 1 if setting in c else default


def inverse_frequencies(c, local=False):
    D, scaling, base = rotary_size(c), c["rope_scaling"], c["rotary_base"]
    if local and "rotary_base_local" in c:
        scaling, base = None, c["rotary_base_local"]
    frequencies = []
    for i in range(D // 2):
        f = base ** (-2 * i / D)
        if scaling and scaling["type"] == "yarn":
            f = yarn_frequency(f, i, D, base, scaling)
        elif scaling:
            wavelength, original = 2 * math.pi / f, scaling["original_max_position_embeddings"]
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            if wavelength > original / low:
                f /= scaling["factor"]
            elif wavelength >= original / high:
                smooth = (original / wavelength - low) / (high - low)
                f = (1 - smooth) * f / scaling["factor"] + smooth * f
        frequencies.append(f)
    return torch.tensor(frequencies, dtype=torch.float64)


def rotate(x, angles, size=1.0):
    """x (B, S, heads, D); lane i turns with lane i + R; angles (S, R); elements from 2 R on stay."""
    R = angles.shape[-1]
    first, second, rest = x[..., :R], x[..., R:2 * R], x[..., 2 * R:]
    cos, sin = size * angles.cos()[:, None, :], size * angles.sin()[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def rms_norm(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def layer_norm(x, weight, bias, epsilon):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


# The functions of gates.
GATES = {"swiglu": lambda x: x * torch.sigmoid(x), "geglu": gelu_tanh}


class Gpt:
    def __init__(self, config, params):
        self.c, self.p = config, params
        self.router_losses = 0.0  # the sum over layers, after logits()
        self.margin = math.inf    # the margin of every choice of logits()

    def norm_factor(self, name):
        zero_centered = self.c.get("layernorm_zero_centered_gamma", False)
        return self.p[f"{name}.weight"] + (1 if zero_centered else 0)

    def input(self, name, x):
        return self.norm(f"{name}.norm", x) if placement(self.c)[0] else x

    def output(self, name, x):
        return self.norm(f"{name}.out_norm", x) if placement(self.c)[1] else x

    def norm(self, name, x):
        weight, bias = self.norm_factor(name), self.p.get(f"{name}.bias")
        if self.c["normalization"] == "layernorm":
            return layer_norm(x, weight, bias, self.c["norm_epsilon"])
        return rms_norm(x, weight, self.c["norm_epsilon"])

    def linear(self, name, x, bias=True):
        y, bias = x @ self.p[f"{name}.weight"].t(), self.p.get(f"{name}.bias") if bias else None
        return y if bias is None else y + bias

    def attention(self, name, x, layer):
        c = self.c
        window = c["window_size"] and of_layer(c, "window_attn_skip_freq", layer, True)
        A, G, D = c["num_attention_heads"], c["num_query_groups"], c["kv_channels"]
        b, s, _ = x.shape
        qkv = self.linear(f"{name}.qkv", self.input(name, x))
        q, k = qkv[..., :A * D], qkv[..., A * D:(A + G) * D]
        if c.get("qk_layernorm_all_heads", False):
            q = rms_norm(q, self.norm_factor(f"{name}.q_norm"), c["norm_epsilon"])
            k = rms_norm(k, self.norm_factor(f"{name}.k_norm"), c["norm_epsilon"])
        q, k = q.reshape(b, s, A, D), k.reshape(b, s, G, D)
        v = qkv[..., (A + G) * D:].reshape(b, s, G, D)
        if c["qk_layernorm"] and not c.get("qk_layernorm_all_heads", False):
            q = rms_norm(q, self.norm_factor(f"{name}.q_norm"), c["norm_epsilon"])
            k = rms_norm(k, self.norm_factor(f"{name}.k_norm"), c["norm_epsilon"])
        position = torch.arange(s, dtype=torch.float64)
        if c["position_embedding"] == "rope" and not of_layer(c, "no_rope_freq", layer, False):
            angles = position[:, None] * inverse_frequencies(c, window)
            size = (c["rope_scaling"] or {}).get("attention_factor", 1.0)
            q, k = rotate(q, angles, size), rotate(k, angles, size)
        distance = position[:, None] - position[None, :]  # from a query (row) to a key (column)
        visible = distance >= 0
        if window:
            visible &= distance < c["window_size"]
        heads = []
        for head in range(A):
            group = head // (A // G)
            scores = q[:, :, head] @ k[:, :, group].transpose(1, 2)
            scores = scores / math.sqrt(c.get("query_pre_attn_scalar", D))
            if "attn_logit_softcapping" in c:
                cap = c["attn_logit_softcapping"]
                scores = cap * torch.tanh(scores / cap)
            weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1)
            heads.append(weights @ v[:, :, group])
        return self.output(name, self.linear(f"{name}.proj", torch.cat(heads, -1)))

    def mlp(self, name, x):
        h = self.input(name, x)
        if self.c["activation"] in GATES:
            h = self.gated(self.linear(f"{name}.gate_up", h))
        else:
            activate = gelu_tanh if self.c["activation"] == "gelu_tanh" else gelu
            h = activate(self.linear(f"{name}.up", h))
        return self.output(name, self.linear(f"{name}.down", h))

    def gated(self, gate_up):
        gate, up = gate_up.chunk(2, -1)
        return GATES[self.c["activation"]](gate) * up

    def expert(self, x, gate_up, down):
        return self.gated(x @ gate_up.t()) @ down.t()

    def best(self, values, n):
        """-> indices of the n largest of each row. Notes by how much they are larger."""
        ranked = torch.sort(values, -1, descending=True)
        if n < values.shape[-1]:
            gap = (ranked.values[:, n - 1] - ranked.values[:, n]).min()
            self.margin = min(self.margin, float(gap))
        return ranked.indices[:, :n]

    def choose(self, moe, logits, scores, bias):
        E, K, groups, best_groups = (moe["num_experts"], moe["router_topk"], moe["num_groups"],
                                     moe["group_topk"])
        over_chosen = moe["router_score"] == "softmax" and not moe["router_pre_softmax"]
        values = (logits if over_chosen else scores).detach()
        if bias is not None:
            values = values + bias
        if groups > 1:
            of_group = values.reshape(-1, groups, E // groups)
            group_score = of_group.topk(K // best_groups, -1).values.sum(-1)
            open_ = torch.zeros_like(group_score).scatter_(1, self.best(group_score, best_groups), 1)
            values = of_group.masked_fill(open_[..., None] == 0, -1e9).flatten(1)
        return self.best(values, K)

    @staticmethod
    def weigh(moe, logits, scores, chosen):
        if moe["router_score"] == "softmax" and not moe["router_pre_softmax"]:
            weights = torch.softmax(logits.gather(1, chosen), -1)
        else:
            weights = scores.gather(1, chosen)
            if moe["norm_topk_prob"]:
                weights = weights / weights.sum(-1, keepdim=True)
        return moe["router_topk_scaling_factor"] * weights

    def losses(self, moe, name, samples, logits, scores, chosen):
        """The rows of logits, scores and chosen are the samples' tokens, one sample after the other."""
        E = moe["num_experts"]
        part = scores / scores.sum(-1, keepdim=True)

        def balance(fraction, parts):
            return E * (fraction * parts.mean(0)).sum()

        def fraction(choices):
            return torch.bincount(choices.flatten(), minlength=E).double() / choices.numel()

        total = moe["z_loss_coeff"] * (torch.logsumexp(logits, -1) ** 2).mean()
        for kind, coeff in zip(moe["load_balancing_type"], moe["aux_loss_coeff"]):
            if kind == "aux_loss":
                total = total + coeff * balance(fraction(chosen), part)
            elif kind == "seq_aux_loss":
                each = [balance(fraction(c), p) for c, p in zip(chosen.chunk(samples),
                                                                part.chunk(samples))]
                total = total + coeff * sum(each) / samples
            elif kind == "global_aux_loss":
                total = total + coeff * balance(self.p[f"{name}.router.load_fraction"], part)
        return total

    def kept(self, moe, samples, chosen, weights):
        """-> 1 for choices within their expert's capacity, 0 for the others."""
        T, K = chosen.shape
        keep = torch.ones(T, K, dtype=torch.float64)
        if not moe["expert_capacity_factor"]:
            return keep
        capacity = math.ceil(moe["expert_capacity_factor"] * T * K / moe["num_experts"])
        # The first token of every sample comes first, then the second ones.
        order = torch.arange(T).reshape(samples, -1).t().flatten().tolist()
        for e in range(moe["num_experts"]):
            mine = [(t, k) for t in order for k in range(K) if chosen[t, k] == e]
            if moe["token_drop_policy"] == "probs":
                mine.sort(key=lambda choice: -float(weights[choice]))
                if len(mine) > capacity > 0:
                    gap = float(weights[mine[capacity - 1]] - weights[mine[capacity]])
                    self.margin = min(self.margin, gap)
            for choice in mine[capacity:]:
                keep[choice] = 0
        return keep

    def experts(self, moe, name, x):
        p = self.p
        h = self.input(name, x).flatten(0, 1)
        logits = self.linear(f"{name}.router", h, bias=False)
        scores = (torch.sigmoid(logits) if moe["router_score"] == "sigmoid"
                  else torch.softmax(logits, -1))
        chosen = self.choose(moe, logits, scores, p.get(f"{name}.router.bias"))
        weights = self.weigh(moe, logits, scores, chosen)
        samples = x.shape[0]
        self.router_losses = self.router_losses + self.losses(moe, name, samples, logits, scores,
                                                              chosen)
        weights = weights * self.kept(moe, samples, chosen, weights.detach())
        gate_up, down = p[f"{name}.experts.gate_up.weight"], p[f"{name}.experts.down.weight"]
        rows = []
        for t in range(h.shape[0]):
            rows.append(sum(w * self.expert(h[t], gate_up[e], down[e])
                            for w, e in zip(weights[t], chosen[t].tolist())))
        out = torch.stack(rows)
        if moe["shared_expert_ffn_hidden_size"]:
            shared = self.expert(h, p[f"{name}.shared_expert.gate_up.weight"],
                                 p[f"{name}.shared_expert.down.weight"])
            if moe["shared_expert_gate"]:
                shared = torch.sigmoid(self.linear(f"{name}.shared_expert.gate", h)) * shared
            out = out + shared
        return self.output(name, out.reshape(x.shape))

    def logits(self, ids):
        p = self.p
        x = p["embedding.weight"][ids] * self.c.get("embedding_multiplier", 1.0)
        if self.c["position_embedding"] == "learned":
            x = x + p["position_embedding.weight"][:ids.shape[1]]
        for i in range(self.c["num_layers"]):
            x = x + self.attention(f"layers.{i}.attention", x, i)
            moe, mlp = experts_of(self.c, i), f"layers.{i}.mlp"
            x = x + (self.experts(moe, mlp, x) if moe else self.mlp(mlp, x))
        logits = self.norm("final_norm", x) @ p.get("output.weight", p["embedding.weight"]).t()
        cap = self.c.get("final_logit_softcapping")
        return cap * torch.tanh(logits / cap) if cap else logits


def masked_loss(logits, labels):
    keep = labels >= 0
    chosen = torch.log_softmax(logits[keep], -1).gather(1, labels[keep][:, None])
    return -chosen.mean()


def compute(config, params, state, ids, labels):
    """-> logits, loss, the routers' losses, and gradients of their sum, in float64."""
    leaves = {name: p.double().requires_grad_() for name, p in params.items()}
    gpt = Gpt(config, leaves | {name: s.double() for name, s in state.items()})
    logits = gpt.logits(ids.long())
    loss = masked_loss(logits, labels.long())
    (loss + gpt.router_losses).backward()
    if gpt.margin < LEAST_MARGIN:
        raise NarrowChoice(f"a choice was made by {gpt.margin:.1e}")
    return (logits.detach(), loss.detach(), float(torch.as_tensor(gpt.router_losses).detach()),
            {name: p.grad for name, p in leaves.items()})


def write(family, seed):
    for attempt in range(1000):
        try:
            return draw_and_write(family, seed + 1000 * attempt)
        except NarrowChoice:
            continue
    raise SystemExit(f"{family}: no seed keeps all choices apart")


def draw_and_write(family, seed):
    config = FAMILIES[family]
    generator = torch.Generator().manual_seed(seed)
    params = draw_parameters(config, generator)
    ids = torch.randint(config["vocab_size"], (B, S + 1), generator=generator, dtype=torch.int32)
    labels = ids[:, 1:].clone()
    labels[torch.rand(B, S, generator=generator) < 0.2] = -1
    state = draw_state(config, generator)
    logits, loss, router_losses, grads = compute(config, params, state, ids[:, :-1], labels)
    tensors = {"input_ids": ids[:, :-1].contiguous(), "labels": labels}
    tensors.update(params)
    tensors.update(state)
    tensors["logits"] = logits.float()
    tensors["loss"] = loss.float().reshape(1)
    tensors.update({f"grad.{name}": grad.float() for name, grad in grads.items()})
    path = FOLDER / f"{family}.safetensors"
    metadata = {"config": json.dumps(config), "loss": repr(float(loss))}
    if "moe" in config:
        metadata["router_losses"] = repr(router_losses)
    save(path, tensors, metadata)
    smallest = min(float(g.norm()) for g in grads.values())
    print(f"{family:12} loss {float(loss):.6f}  {len(params)} parameters, smallest gradient norm "
          f"{smallest:.1e}  {path.stat().st_size // 1024} KiB")


def worst_difference(family):
    """Largest relative error: of the stored results, and of the gradients along random directions
    against central differences."""
    tensors, metadata = load(FOLDER / f"{family}.safetensors")
    config = json.loads(metadata["config"])
    params = {name: tensors[name] for name in parameter_shapes(config)}
    state = {name: t for name, t in tensors.items()
             if name.endswith((".router.bias", ".router.load_fraction"))}
    ids, labels = tensors["input_ids"], tensors["labels"]
    logits, loss, _, grads = compute(config, params, state, ids, labels)
    found = {"logits": logits, "loss": loss.reshape(1)}
    found.update({f"grad.{name}": grad for name, grad in grads.items()})
    stored = max(float((tensors[n].double() - x).norm() / x.norm()) for n, x in found.items())
    generator, slope, h = torch.Generator().manual_seed(1), 0.0, 1e-5
    for name, grad in grads.items():
        direction = torch.randn(grad.shape, generator=generator, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            moved = {n: p.double() for n, p in (params | state).items()}
            moved[name] = moved[name] + sign * h * direction
            gpt = Gpt(config, moved)
            loss = masked_loss(gpt.logits(ids.long()), labels.long())
            losses.append(float(loss + gpt.router_losses))
        difference = (losses[0] - losses[1]) / (2 * h)
        error = abs(difference - float((grad * direction).sum())) / float(grad.norm())
        slope = max(slope, error)
    return stored, slope


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="recompute the files, write nothing")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    args = parser.parse_args()
    if not args.check:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for seed, family in enumerate(FAMILIES):
            if not args.families or family in args.families:
                write(family, seed + 1)
        return 0
    failed = False
    for family in args.families or FAMILIES:
        stored, slope = worst_difference(family)
        # float32 rounds to 6e-8; a central difference at h = 1e-5 errs by h^2 times the third
        # derivative along a direction of ~100 lengths, and by float64 rounding / h.
        bad = not (stored < 1e-6 and slope < 1e-6)
        failed |= bad
        print(f"{family:18} stored {stored:.1e}  finite differences {slope:.1e}"
              f"  {'WRONG' if bad else 'ok'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
