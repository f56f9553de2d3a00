#!/usr/bin/env python3
"""Fills a cache of the Hugging Face Hub with stubs: configurations and tokenizers of the models that recipes name,
and a few rows of their data sets. There are no weights. Sizes are the published ones where a layout depends on them.
  scripts/stub_hub.py CACHE RECIPE_FOLDER...
"""
import json
import pathlib
import re
import sys

COMMIT = "0" * 40

# The families that mtrain builds: name on the Hub -> model_type, layers, hidden, heads, kv heads, ffn, vocabulary.
SIZES = [
    (r"Llama-3\.2-1B", "llama", 16, 2048, 32, 8, 8192, 128256),
    (r"Llama-3\.2-3B", "llama", 28, 3072, 24, 8, 8192, 128256),
    (r"Llama-3\.1-8B|Llama-3\.1-Nemotron-Nano-8B|Seed-Coder-8B", "llama", 32, 4096, 32, 8, 14336, 128256),
    (r"Llama-3\.[13]-70B", "llama", 80, 8192, 64, 8, 28672, 128256),
    (r"Falcon3-7B", "llama", 28, 3072, 12, 4, 23040, 131072),
    (r"MiniCPM5-1B", "llama", 24, 1536, 16, 2, 4096, 73448),
    (r"Qwen3-30B-A3B", "qwen3_moe", 48, 2048, 32, 4, 6144, 151936),
    (r"Qwen3-235B-A22B", "qwen3_moe", 94, 4096, 64, 4, 12288, 151936),
    (r"Qwen3-0\.6B", "qwen3", 28, 1024, 16, 8, 3072, 151936),
    (r"Qwen3-4B", "qwen3", 36, 2560, 32, 8, 9728, 151936),
    (r"Qwen3-8B", "qwen3", 36, 4096, 32, 8, 12288, 151936),
    (r"Qwen3-32B", "qwen3", 64, 5120, 64, 8, 25600, 151936),
    (r"Qwen2\.5-0\.5B", "qwen2", 24, 896, 14, 2, 4864, 151936),
    (r"Qwen2\.5-3B", "qwen2", 36, 2048, 16, 2, 11008, 151936),
    (r"Qwen2\.5-7B", "qwen2", 28, 3584, 28, 4, 18944, 152064),
    (r"Qwen2\.5-32B|QwQ-32B", "qwen2", 64, 5120, 40, 8, 27648, 152064),
    (r"Qwen1\.5-MoE", "qwen2_moe", 24, 2048, 16, 16, 5632, 151936),
    (r"Mistral-7B", "mistral", 32, 4096, 32, 8, 14336, 32000),
    (r"Mistral-Nemo", "mistral", 40, 5120, 32, 8, 14336, 131072),
    (r"Mixtral-8x7B", "mixtral", 32, 4096, 32, 8, 14336, 32000),
    (r"phi-4", "phi3", 40, 5120, 40, 10, 17920, 100352),
    (r"Phi-3-mini", "phi3", 32, 3072, 32, 32, 8192, 32064),
    (r"gemma-2-9b", "gemma2", 42, 3584, 16, 8, 14336, 256000),
    (r"gemma-3-270m|functiongemma-270m", "gemma3_text", 18, 640, 4, 1, 2048, 262144),
    (r"OLMo-2-0425-1B", "olmo2", 16, 2048, 16, 16, 8192, 100352),
    (r"granite-3\.3-2b", "granite", 40, 2048, 32, 8, 8192, 49159),
    (r"Seed-OSS-36B", "seed_oss", 64, 5120, 80, 8, 27648, 155136),
    (r"GLM-4\.5-Air", "glm4_moe", 46, 4096, 96, 8, 10944, 151552),
    (r"GLM-4\.7$", "glm4_moe", 92, 5120, 96, 8, 12288, 151552),
    (r"DeepSeek-V3(-Base|-0324|\.1)?$", "deepseek_v3", 61, 7168, 128, 128, 18432, 129280),
    (r"Kimi-K2", "kimi_k2", 61, 7168, 64, 64, 18432, 163840),
    (r"Moonlight-16B", "deepseek_v3", 27, 2048, 16, 16, 11264, 163840),
    (r"DeepSeek-V2-Lite", "deepseek_v2", 27, 2048, 16, 16, 10944, 102400),
    (r"GLM-4\.7-Flash", "glm4_moe_lite", 47, 2048, 20, 20, 10240, 154880),
    (r"gpt2$", "gpt2", 12, 768, 12, 12, 3072, 50257),
]
# Families that mtrain does not build: the name alone decides what it reports.
OTHERS = [
    (r"gpt-oss", "gpt_oss"), (r"Nemotron-3|Nemotron-Nano-9B", "nemotron_h"), (r"Nemotron-Flash", "nemotron_flash"),
    (r"Super-49B", "nemotron-nas"), (r"DeepSeek-V3\.2|deepseek-v32", "deepseek_v32"), (r"DeepSeek-V4", "deepseek_v4"),
    (r"Kimi-Linear", "kimi_linear"), (r"Kimi-K3", "kimi_k3"),
    (r"GLM-5", "glm_moe_dsa"), (r"Ling-", "bailing_moe_v2"),
    (r"MiniMax-M2", "minimax_m2"), (r"Falcon-H1", "falcon_h1"), (r"Baichuan", "baichuan"), (r"c4ai", "cohere2"),
    (r"phi-2", "phi"), (r"gemma-7b", "gemma"), (r"gemma-4", "gemma4"), (r"glm-4-9b", "glm"), (r"t5-small", "t5"),
    (r"starcoder2", "starcoder2"), (r"Hy3|Hy-MT2", "hy_v3"), (r"Step-3\.5", "step3p5"), (r"MiMo", "mimo_v2_flash"),
    (r"Qwen3\.[58]", "qwen3_5_moe"), (r"Qwen3-Next", "qwen3_next"), (r"Ministral|Devstral|Small-4", "mistral3"),
    (r"ERNIE-4\.5-0", "ernie4_5"), (r"ERNIE", "ernie4_5_moe"),
]


def experts_of(kind, name):
    if kind == "qwen3_moe":
        return {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536 if "235B" in name else 768,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if kind == "qwen2_moe":
        return {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632, "norm_topk_prob": False, "decoder_sparse_step": 1,
                "mlp_only_layers": []}
    if kind == "mixtral":
        return {"num_local_experts": 8, "num_experts_per_tok": 2}
    if kind == "glm4_moe":
        large = "4.7" in name
        return {"n_routed_experts": 160 if large else 128, "num_experts_per_tok": 8, "n_shared_experts": 1,
                "moe_intermediate_size": 1536 if large else 1408, "first_k_dense_replace": 3 if large else 1,
                "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5 if large else 1.0,
                "partial_rotary_factor": 0.5, "use_qk_norm": large, "attention_bias": True}
    # experts, of a token, width of one, shared ones, dense layers, groups, groups of a token, scale, q_lora_rank
    sizes = {"DeepSeek-V3": (256, 8, 2048, 1, 3, 8, 4, 2.5, 1536), "Kimi-K2": (384, 8, 2048, 1, 1, 1, 1, 2.827, 1536),
             "Moonlight": (64, 6, 1408, 2, 1, 1, 1, 2.446, None), "DeepSeek-V2": (64, 6, 1408, 2, 1, 1, 1, 1.0, None),
             "GLM-4.7-Flash": (64, 4, 1536, 1, 1, 1, 1, 1.8, 768)}
    for part, (experts, chosen, width, shared, dense, groups, best, scale, q_lora) in sizes.items():
        if part in name:
            flash, v2 = part.startswith("GLM"), kind == "deepseek_v2"
            return {"n_routed_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": width,
                    "n_shared_experts": shared, "first_k_dense_replace": dense, "n_group": groups, "topk_group": best,
                    "routed_scaling_factor": scale, "norm_topk_prob": not v2, "q_lora_rank": q_lora or NULL,
                    "kv_lora_rank": 512, "qk_nope_head_dim": 192 if flash else 128, "qk_rope_head_dim": 64,
                    "v_head_dim": 256 if flash else 128, "topk_method": "greedy" if v2 else "noaux_tc",
                    "scoring_func": "softmax" if v2 else "sigmoid", "num_nextn_predict_layers": 0}
    return {}


NULL = object()  # a key whose value is null


def config_of(name):
    for pattern, kind, layers, hidden, heads, kv, ffn, vocab in SIZES:
        if not re.search(pattern, name):
            continue
        if kind == "gpt2":
            return {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024,
                    "n_ctx": 1024, "vocab_size": vocab, "activation_function": "gelu_new", "attn_pdrop": 0.1,
                    "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5}
        config = {"model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab,
                  "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn,
                  "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
                  "hidden_act": "silu", "tie_word_embeddings": bool(re.search(r"3\.2-|0\.[56]B|270m|gemma|granite", name)),
                  "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
        if kind in ("qwen3", "qwen3_moe", "glm4_moe", "seed_oss"):
            config["head_dim"] = 128
        if kind.startswith("gemma"):
            config.update({"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "hidden_act": None,
                           "hidden_activation": "gelu_pytorch_tanh"})
        if kind == "gemma2":
            config.update({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
        if kind == "gemma3_text":
            config.update({"rope_local_base_freq": 10000.0, "sliding_window": 512, "sliding_window_pattern": 6})
        if kind == "granite":
            config.update({"attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                           "logits_scaling": 8.0})
        config.update(experts_of(kind, name))
        return {key: None if value is NULL else value for key, value in config.items() if value is not None}
    for pattern, kind in OTHERS:
        if re.search(pattern, name):
            return {"model_type": kind, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16}
    return {"model_type": "unknown_" + re.sub(r"\W", "_", name.split("/")[-1]).lower()}


def byte_tokenizer():
    """The bytes, in GPT-2's letters for them, and three special tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte], extra = chr(256 + extra), extra + 1
    vocab = {letters[byte]: 3 + byte for byte in range(256)}
    special = ["<pad>", "<s>", "</s>"]
    added = [{"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, text in enumerate(special)]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": []}}


CHAT = ("{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}")


def row_of(name, i):
    words = ["one", "two", "three", "four", "five"]
    if "squad" in name:
        return {"context": f"A page of {words[i % 5]} lines.", "question": f"How many lines has page {i}?",
                "answers": {"text": [words[i % 5]], "answer_start": [10]}}
    if "hellaswag" in name.lower():
        return {"ctx": f"Somebody counts to {words[i % 5]} and", "label": str(i % 4),
                "endings": ["stops.", "goes on counting.", "forgets it.", "begins again."]}
    if "tulu" in name or "FineProofs" in name:
        return {"messages": [{"role": "user", "content": f"Count to {words[i % 5]}."},
                             {"role": "assistant", "content": " ".join(words[: i % 5 + 1])}]}
    return {"text": f"row {i}"}


def snapshot(cache, kind, name):
    folder = cache / f"{kind}--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    files = folder / "snapshots" / COMMIT
    files.mkdir(parents=True, exist_ok=True)
    return files


def main(cache, folders):
    models, data = set(), set()
    for folder in folders:
        for file in sorted(pathlib.Path(folder).rglob("*.y*ml")):
            text = re.sub(r"(^|\s)#.*", "", file.read_text())
            models.update(re.findall(r"name_or_path: *[\"']?([\w.-]+/[\w.-]+)[\"']?\s", text))
            data.update(re.findall(r"(?:dataset_name|path_or_dataset(?:_id)?): *[\"']?([\w-][\w.-]*/[\w.-]+)[\"']?\s", text))
    for name in models:
        files = snapshot(cache, "models", name)
        (files / "config.json").write_text(json.dumps(config_of(name), indent=1))
        (files / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        (files / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": CHAT}))
    for name in data:
        files = snapshot(cache, "datasets", name)
        for split, rows in (("train", 200), ("validation", 40)):
            lines = [json.dumps(row_of(name, i)) for i in range(rows)]
            (files / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(models)} models and {len(data)} data sets in {cache}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
