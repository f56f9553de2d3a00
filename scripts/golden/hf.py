#!/usr/bin/env python3
"""Makes small models of each Hugging Face family with transformers, and what they compute.

  scripts/golden/hf.py                      writes test/golden/hf/<case>/
  scripts/golden/hf.py --check [case...]    recomputes the logits of these folders, writes nothing
  scripts/golden/hf.py --exports case=FOLDER...  each folder is an export of that case: it must load
                                            without a missing or unexpected key, and give its logits
  scripts/golden/hf.py --load FOLDER        the folder and its tokenizer must load so; nothing is compared

needs PyTorch, transformers and safetensors; the files are written by the versions that
scripts/golden/requirements.txt names. Exports are loaded by transformers 4, too.

A folder has config.json and the weights as transformers saves them: one file, or shards with an index.
test/golden/hf/expected/<case>.safetensors has input_ids (B, S) and logits (B, S, V), computed in
float64 from the weights of the files. The weights are seeded, and bf16 numbers, so that a model of any type has the same;
the biases by which routers choose experts are fp32 in all of them, as transformers keeps them.
"""
import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "hf"
EXPECTED = FOLDER / "expected"
B, S, V = 2, 9, 64
ROUTER_BIAS = "e_score_correction_bias"
# Plain operations, which also work in float64. Only transformers 5 has others for experts.
EAGER = dict(attn_implementation="eager")
if int(transformers.__version__.split(".")[0]) >= 5:
    EAGER["experts_implementation"] = "eager"

SIZES = dict(vocab_size=V, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
EXPERTS = dict(SIZES, moe_intermediate_size=16, num_experts_per_tok=2, decoder_sparse_step=1)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
TWO_HEADS = dict(SIZES, num_attention_heads=2, num_key_value_heads=1)
# Layers from the second on have experts in two groups of 4; a token's experts come from one group.
ROUTED = dict(SIZES, moe_intermediate_size=8, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
              first_k_dense_replace=1, routed_scaling_factor=2.5)
PHI3 = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
# A head of 16 has 6 lanes.
LONGROPE = dict(rope_type="longrope", rope_theta=1e2, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.2, 1.4, 1.7, 2.0], long_factor=[1.0, 2.0, 2.5, 3.0, 3.5, 4.0])
# Of the 8 lanes of a head of 16, the first is kept, those from the sixth on are slowed.
YARN = dict(rope_type="yarn", rope_theta=1e2, factor=4.0, original_max_position_embeddings=16, beta_fast=2.0,
            beta_slow=0.25)

# Latent attention: keys of 20 elements, 8 of them rotated, and values of 6.
LATENT = dict(ROUTED, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
              v_head_dim=6)
DIRECT = dict(LATENT, q_lora_rank=None)

FOUR_LAYERS = dict(SIZES, num_hidden_layers=4)
GEMMA = dict(FOUR_LAYERS, **PHI3, head_dim=16, query_pre_attn_scalar=24, sliding_window=4)
FULL, SLIDING = "full_attention", "sliding_attention"


def rope(theta, kind="default", **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def without(sizes, key):
    return {k: v for k, v in sizes.items() if k != key}


# case: (configuration, whether the file is in 3 shards)
CASES = {
    "llama": (transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, rms_norm_eps=1e-5), False),
    "llama_tied": (transformers.LlamaConfig(**SIZES, rope_parameters=rope(1e4, "linear", factor=2.0),
                                            tie_word_embeddings=True, attention_bias=True), True),
    "mistral": (transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=4,
                                           rope_parameters=rope(1e6)), True),
    "mistral_tied": (transformers.MistralConfig(**SIZES, sliding_window=None, tie_word_embeddings=True,
                                                rope_parameters=rope(1e4)), False),
    "qwen2": (transformers.Qwen2Config(**SIZES, rope_parameters=rope(1e6), use_sliding_window=True,
                                       sliding_window=5, max_window_layers=0), True),
    "qwen2_tied": (transformers.Qwen2Config(**SIZES, rope_parameters=rope(1e6),
                                            tie_word_embeddings=True), False),
    "qwen3": (transformers.Qwen3Config(**SIZES, head_dim=16, rope_parameters=rope(1e6)), False),
    "qwen3_tied": (transformers.Qwen3Config(**SIZES, head_dim=16, rope_parameters=rope(1e6),
                                            tie_word_embeddings=True), True),
    "phi3": (transformers.Phi3Config(**SIZES, sliding_window=5, rope_parameters=rope(1e4), pad_token_id=0,
                                     bos_token_id=1, eos_token_id=2), False),
    "phi3_tied": (transformers.Phi3Config(**SIZES, tie_word_embeddings=True, rope_parameters=rope(1e4),
                                          pad_token_id=0, bos_token_id=1, eos_token_id=2), True),
    "gpt2": (transformers.GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=16,
                                     bos_token_id=1, eos_token_id=2), True),
    "gpt2_untied": (transformers.GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=16,
                                            n_inner=48, tie_word_embeddings=False, bos_token_id=1,
                                            eos_token_id=2), False),
    "mixtral": (transformers.MixtralConfig(**dict(SIZES, intermediate_size=16), num_local_experts=4,
                                           num_experts_per_tok=2, sliding_window=None,
                                           rope_parameters=rope(1e6)), True),
    "qwen2_moe": (transformers.Qwen2MoeConfig(**EXPERTS, num_experts=4, shared_expert_intermediate_size=24,
                                              rope_parameters=rope(1e6), mlp_only_layers=[0]), False),
    "qwen3_moe": (transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4, head_dim=16, norm_topk_prob=True,
                                              rope_parameters=rope(1e6)), False),
    "llama_yarn": (transformers.LlamaConfig(**SIZES, head_dim=16, rope_parameters=YARN), False),
    "qwen3_yarn": (transformers.Qwen3Config(**SIZES, head_dim=16, rope_parameters=dict(
        YARN, truncate=False, mscale=0.8, mscale_all_dim=0.3)), True),
    "phi3_partial": (transformers.Phi3Config(**TWO_HEADS, rope_parameters=rope(1e3, partial_rotary_factor=0.75),
                                             **PHI3), False),
    "llama_mlp_bias": (transformers.LlamaConfig(**SIZES, mlp_bias=True, rope_parameters=rope(1e4)), False),
    # The samples of 9 tokens are not longer than the original length, and then they are.
    "phi3_longrope": (transformers.Phi3Config(**TWO_HEADS, original_max_position_embeddings=16,
                                              rope_parameters=LONGROPE, **PHI3), True),
    "phi3_longrope_long": (transformers.Phi3Config(**TWO_HEADS, original_max_position_embeddings=4,
                                                   rope_parameters=LONGROPE, **PHI3), False),
    # Windows in the layers from one on, and in every other layer, which only layer_types can express.
    "qwen2_window": (transformers.Qwen2Config(**dict(SIZES, num_hidden_layers=3), rope_parameters=rope(1e6),
                                              use_sliding_window=True, sliding_window=4,
                                              max_window_layers=1), False),
    "qwen3_window": (transformers.Qwen3Config(**dict(SIZES, num_hidden_layers=3), head_dim=16,
                                              rope_parameters=rope(1e6), use_sliding_window=True,
                                              sliding_window=4, layer_types=[
                                                  "sliding_attention", "full_attention",
                                                  "sliding_attention"]), False),
    "smollm3": (transformers.SmolLM3Config(**FOUR_LAYERS, no_rope_layer_interval=2, rope_parameters=rope(1e4),
                                           **PHI3), False),
    # The third layer has no rotary positions, and therefore a window.
    "smollm3_untied": (transformers.SmolLM3Config(**FOUR_LAYERS, no_rope_layers=[1, 1, 0, 1], use_sliding_window=True,
                                                  sliding_window=4, attention_bias=True, mlp_bias=True,
                                                  tie_word_embeddings=False, rope_parameters=LLAMA3, **PHI3), True),
    "olmo2": (transformers.Olmo2Config(**SIZES, rope_parameters=rope(5e5), **PHI3), False),
    "olmo2_tied": (transformers.Olmo2Config(**SIZES, tie_word_embeddings=True, attention_bias=True,
                                            rope_parameters=rope(1e4, "linear", factor=2.0), **PHI3), True),
    # Scores and logits are far beyond these caps in some places.
    "gemma2": (transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=3.0,
                                         rope_parameters=rope(1e4)), False),
    "gemma2_untied": (transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None,
                                                layer_types=[FULL, SLIDING, SLIDING, FULL], attention_bias=True,
                                                tie_word_embeddings=False, rope_parameters=rope(1e3)), True),
    "gemma3_text": (transformers.Gemma3TextConfig(**GEMMA, sliding_window_pattern=3, rope_parameters={
        FULL: rope(1e4, "linear", factor=8.0), SLIDING: rope(1e2)}), True),
    "gemma3_text_untied": (transformers.Gemma3TextConfig(**GEMMA, layer_types=[SLIDING, FULL, FULL, SLIDING],
                                                         final_logit_softcapping=5.0, attention_bias=True,
                                                         tie_word_embeddings=False, rope_parameters={
        FULL: rope(1e6), SLIDING: rope(1e4)}), False),
    "dots1": (transformers.Dots1Config(**ROUTED, head_dim=16, n_shared_experts=2, norm_topk_prob=True,
                                       rope_parameters=rope(1e6)), False),
    # A window in all layers, experts in all layers, biases of all four projections, and weights as they are.
    "dots1_window": (transformers.Dots1Config(**dict(ROUTED, n_group=1, first_k_dense_replace=0), n_shared_experts=1,
                                              norm_topk_prob=False, sliding_window=5, max_window_layers=0,
                                              attention_bias=True, rope_parameters=rope(1e4)), True),
    "glm4_moe": (transformers.Glm4MoeConfig(**dict(ROUTED, n_group=4, topk_group=2, num_experts_per_tok=4),
                                            head_dim=16, n_shared_experts=1, use_qk_norm=True, attention_bias=True,
                                            num_mtp_layers=0, rope_parameters=rope(1e6, partial_rotary_factor=0.5)), True),
    "glm4_moe_tied": (transformers.Glm4MoeConfig(**dict(ROUTED, routed_scaling_factor=1.0), head_dim=16,
                                                 n_shared_experts=2, tie_word_embeddings=True, num_mtp_layers=0,
                                                 rope_parameters=rope(1e4, partial_rotary_factor=0.5)), False),
    "deepseek_v3": (transformers.DeepseekV3Config(**dict(LATENT, n_group=4, topk_group=2, num_experts_per_tok=4),
                                                  n_shared_experts=1, num_mtp_layers=0,
                                                  rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=0.3)), True),
    "deepseek_v3_direct": (transformers.DeepseekV3Config(**dict(DIRECT, n_group=1), n_shared_experts=2,
                                                         norm_topk_prob=False, tie_word_embeddings=True,
                                                         rms_norm_eps=1e-3, num_mtp_layers=0,
                                                         rope_parameters=rope(1e4)), False),
    "deepseek_v2": (transformers.DeepseekV2Config(**dict(LATENT, n_group=None, topk_group=None), n_shared_experts=1,
                                                  rope_parameters=rope(1e4)), False),
    "deepseek_v2_lite": (transformers.DeepseekV2Config(**dict(DIRECT, n_group=1), n_shared_experts=2,
                                                       rope_parameters=dict(YARN, mscale=0.707,
                                                                            mscale_all_dim=0.707)), True),
    # Of four groups of two experts, a token's three experts come from two, ranked by their best expert.
    "deepseek_v2_limited": (transformers.DeepseekV2Config(**dict(LATENT, n_group=4, topk_group=2, num_experts_per_tok=3,
                                                                 routed_scaling_factor=16.0),
                                                          topk_method="group_limited_greedy", n_shared_experts=2,
                                                          rope_parameters=rope(1e4)), False),
    "glm4_moe_lite": (transformers.Glm4MoeLiteConfig(**without(LATENT, "first_k_dense_replace"), n_shared_experts=1,
                                                     rope_parameters=rope(1e4)), True),
    # Groups ranked by two experts, of which a token has one; the second layer is dense.
    "glm4_moe_lite_direct": (transformers.Glm4MoeLiteConfig(**without(dict(DIRECT, num_hidden_layers=3, n_group=4,
                                                                           topk_group=2), "first_k_dense_replace"),
                                                            n_shared_experts=2, tie_word_embeddings=True,
                                                            mlp_layer_types=["sparse", "dense", "sparse"],
                                                            rope_parameters=rope(1e4)), False),
    "seed_oss": (transformers.SeedOssConfig(**SIZES, head_dim=16, rope_parameters=rope(1e7), **PHI3), False),
    "seed_oss_tied": (transformers.SeedOssConfig(**SIZES, head_dim=16, attention_bias=False, mlp_bias=True,
                                                 tie_word_embeddings=True,
                                                 rope_parameters=rope(1e4, "linear", factor=2.0), **PHI3), True),
    "granite": (transformers.GraniteConfig(**SIZES, embedding_multiplier=3.0, attention_multiplier=0.7,
                                           residual_multiplier=0.22, logits_scaling=1.7, rope_parameters=rope(1e4),
                                           **PHI3), False),
    "granite_tied": (transformers.GraniteConfig(**SIZES, embedding_multiplier=12.0, attention_multiplier=0.125,
                                                residual_multiplier=0.6, logits_scaling=8.0, attention_bias=True,
                                                mlp_bias=True, tie_word_embeddings=True, rope_parameters=LLAMA3,
                                                **PHI3), True),
}
# Cases whose gradients are stored, too, and what three steps of AdamW make of them.
GRADIENTS = ("deepseek_v3", "deepseek_v2_lite", "deepseek_v2_limited", "glm4_moe_lite")
# The seeds of later cases; an earlier one has its number in the list.
SEEDS = {"dots1": 101, "dots1_window": 102, "glm4_moe": 103, "glm4_moe_tied": 104, "smollm3": 201, "smollm3_untied": 202,
         "deepseek_v3": 401, "deepseek_v3_direct": 402, "deepseek_v2": 403, "deepseek_v2_lite": 404,
         "deepseek_v2_limited": 405, "glm4_moe_lite": 406, "glm4_moe_lite_direct": 407,
         "olmo2": 203, "olmo2_tied": 204, "gemma2": 205, "gemma2_untied": 206, "gemma3_text": 207,
         "gemma3_text_untied": 208, "seed_oss": 301, "seed_oss_tied": 302, "granite": 303,
         "granite_tied": 304}


def ids():
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, V, (B, S), generator=generator)


def seeded(config, seed):
    """A model whose weights are bf16 numbers, large enough that every one affects the logits."""
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    norms = 0.0 if config.model_type.startswith("gemma") else 1.0  # Gemma's norms multiply by 1 + weight
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            about = norms if p.dim() == 1 and "norm" in name or ".ln_" in name and "weight" in name else 0.0
            p.copy_((about + 0.2 * noise).bfloat16().float())
    return model


def put_router_biases(model, seed):
    """Seeds the biases of routers in fp32, in a model of any type. They change which experts are chosen."""
    generator = torch.Generator().manual_seed(1000 + seed)
    for name, b in model.named_buffers():
        if name.endswith(ROUTER_BIAS):
            b.data = 0.2 * torch.randn(b.shape, generator=generator)


def logits(model):
    # Routers of these families compute in fp32, and those of transformers 4 then cannot add experts in float64.
    routed = any(name.endswith(ROUTER_BIAS) for name, _ in model.named_buffers())
    model = model.float() if routed and transformers.__version__.startswith("4.") else model.double()
    with torch.no_grad():
        return model(input_ids=ids(), use_cache=False).logits.float()


def gradients(model):
    """The gradients of the mean loss of all tokens but the first, computed in float64."""
    model = model.double()
    logits = model(input_ids=ids()[:, :-1], use_cache=False).logits
    torch.nn.functional.cross_entropy(logits.reshape(-1, V), ids()[:, 1:].reshape(-1)).backward()
    return {name: p.grad.float().contiguous() for name, p in model.named_parameters()}


def trained(model):
    """The losses before each of four steps of AdamW with all ids but the last, and the weights after three of them.
    Computed in float64. Vectors have no weight decay, and routers' biases stay."""
    model = model.double()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                                  lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(4):
        logits = model(input_ids=ids()[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), ids()[:, 1:].reshape(-1))
        losses.append(loss.item())
        if step < 3:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    weights = {name: p.detach().float().contiguous() for name, p in model.named_parameters()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return dict(weights, losses=torch.tensor(losses, dtype=torch.float64))


def load(folder):
    """The model of a folder in fp32. No key may be missing, unexpected or of a wrong shape."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **EAGER)
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    return model.eval()


def write(case, seed):
    config, sharded = CASES[case]
    folder = FOLDER / case
    with tempfile.TemporaryDirectory() as made:
        model = seeded(config, seed).bfloat16()
        put_router_biases(model, seed)
        total = sum(2 * p.numel() for p in model.parameters())
        model.save_pretrained(made, max_shard_size=int(total * 0.45) if sharded else "1GB")
        files = sorted(pathlib.Path(made).glob("*.safetensors"))
        if len(files) != (3 if sharded else 1):
            raise SystemExit(f"{case}: {len(files)} files")
        expected = logits(load(made))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        EXPECTED.mkdir(exist_ok=True)
        save_file({"input_ids": ids().int(), "logits": expected.contiguous()},
                  EXPECTED / f"{case}.safetensors")
        if case in GRADIENTS:
            save_file(gradients(load(made)), EXPECTED / f"{case}_gradients.safetensors")
            save_file(trained(load(made)), EXPECTED / f"{case}_adamw.safetensors")
    print(f"{case}: {sum(f.stat().st_size for f in folder.iterdir()) / 1024:.0f} KiB")


def check(case):
    stored = load_file(EXPECTED / f"{case}.safetensors")
    again = logits(load(FOLDER / case))
    worst = float((again - stored["logits"]).norm() / again.norm())
    same = bool((stored["input_ids"] == ids()).all()) and worst < 1e-6
    print(f"{case:14} relative {worst:.1e}  {'ok' if same else 'WRONG'}")
    return same


def check_export(folder, case):
    stored = load_file(EXPECTED / f"{case}.safetensors")
    worst = float((logits(load(folder)) - stored["logits"]).norm() / stored["logits"].norm())
    # The weights are those of the case; fp16 rounds those below 2^-14.
    same = worst < 1e-5
    print(f"{case:14} relative {worst:.1e}  {'ok' if same else 'WRONG'}  {folder}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="recompute the logits, write nothing")
    parser.add_argument("--exports", action="store_true", help="check exports, each as case=FOLDER")
    parser.add_argument("--load", metavar="FOLDER", help="only load a folder")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.load:
        tokens = len(transformers.AutoTokenizer.from_pretrained(args.load))
        print(f"{type(load(args.load)).__name__} loads {args.load}, with a tokenizer of {tokens} tokens")
        return 0
    if args.exports:
        pairs = [pair.split("=", 1) for pair in args.cases]
        return int(not pairs or not all([check_export(folder, case) for case, folder in pairs]))
    if args.check:
        return int(not all([check(case) for case in args.cases or CASES]))
    for number, case in enumerate(CASES, 1):
        if not args.cases or case in args.cases:
            write(case, SEEDS.get(case, number))
    return 0


if __name__ == "__main__":
    sys.exit(main())
