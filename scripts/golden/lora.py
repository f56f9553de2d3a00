#!/usr/bin/env python3
"""Makes adapters (LoRA) with peft for the small models of test/golden/hf, and what they compute.

  scripts/golden/lora.py                      writes test/golden/lora/<case>/
  scripts/golden/lora.py --check [case...]    recomputes what these adapters compute, writes nothing
  scripts/golden/lora.py --same BASE ADAPTER MERGED
                                              peft must load ADAPTER beside BASE, and the logits must be those of MERGED

needs PyTorch, transformers, safetensors and peft (scripts/golden/requirements.txt).

A folder has adapter_config.json and adapter_model.safetensors as peft saves them. expected.safetensors has what peft
computes in float64. These are ids (B, S + 1), the logits (B, S, V) of all but the last, and the mean loss of the next
ids. The gradients of the loss by A and B have the names of adapter_model.safetensors.
"""
import argparse
import pathlib
import shutil
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import hf

FOLDER = hf.FOLDER.parent / "lora"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LATENT = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    "llama": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]),
    "qwen3": dict(r=3, lora_alpha=12, target_modules=ALL),
    "qwen2": dict(r=4, lora_alpha=4, target_modules=ALL, use_rslora=True, alpha_pattern={"o_proj": 10}),
    "phi3": dict(r=2, lora_alpha=16, target_modules=["qkv_proj", "down_proj"]),
    "gpt2": dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
    "mixtral": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS),
    "deepseek_v2_lite": dict(r=4, lora_alpha=8, target_modules=["q_proj", *LATENT]),
    "deepseek_v3": dict(r=3, lora_alpha=12, target_modules=["q_a_proj", "q_b_proj", *LATENT]),
    "qwen3_moe": dict(r=4, lora_alpha=8, target_modules=ALL[:4], target_parameters=EXPERTS,
                      rank_pattern={name.removeprefix("mlp."): 2 for name in EXPERTS}),
}


def ids():
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, hf.V, (hf.B, hf.S + 1), generator=generator)


def computed(model):
    """Logits, loss, and the gradients of A and B."""
    model = model.double()
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
    out = model(input_ids=ids()[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), ids()[:, 1:].flatten())
    loss.backward()
    values = {"logits": out.detach().float(), "loss": loss.detach().float().reshape(1)}
    for name, p in model.named_parameters():
        if p.grad is not None:
            values[name.replace(".default", "")] = p.grad.float()
    return values


def write(case, seed):
    base = hf.load(hf.FOLDER / case)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **CASES[case]))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_((0.2 * torch.randn(p.shape, generator=generator)).bfloat16().float())
    with tempfile.TemporaryDirectory() as made:
        model.save_pretrained(made)
        shutil.rmtree(FOLDER / case, ignore_errors=True)
        (FOLDER / case).mkdir(parents=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(pathlib.Path(made) / name, FOLDER / case / name)
    config = FOLDER / case / "adapter_config.json"
    config.write_text(config.read_text().replace(str(hf.FOLDER / case), case))
    values = computed(model)
    save_file({"ids": ids().int(), **{k: v.contiguous() for k, v in values.items()}},
              FOLDER / case / "expected.safetensors")
    print(f"{case}: {len(values) - 2} gradients, loss {float(values['loss']):.4f}")


def check(case):
    stored = load_file(FOLDER / case / "expected.safetensors")
    again = computed(peft.PeftModel.from_pretrained(hf.load(hf.FOLDER / case), FOLDER / case, is_trainable=True))
    worst = max(float((again[k] - stored[k]).norm() / stored[k].norm()) for k in again)
    same = set(again) | {"ids"} == set(stored) and worst < 1e-6
    print(f"{case:14} relative {worst:.1e}  {'ok' if same else 'WRONG'}")
    return same


def same_as_merged(base, adapter, merged):
    with_adapter = hf.logits(peft.PeftModel.from_pretrained(hf.load(base), adapter).eval())
    alone, full = hf.logits(hf.load(base)), hf.logits(hf.load(merged))
    worst = float((with_adapter - full).norm() / full.norm())
    moved = float((with_adapter - alone).norm() / alone.norm())
    same = worst < 1e-5 < moved
    print(f"adapter against merged model: relative {worst:.1e}, against the base {moved:.1e}  {'ok' if same else 'WRONG'}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="recompute, write nothing")
    parser.add_argument("--same", nargs=3, metavar=("BASE", "ADAPTER", "MERGED"))
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.same:
        return int(not same_as_merged(*args.same))
    if args.check:
        return int(not all([check(case) for case in args.cases or CASES]))
    for number, case in enumerate(CASES, 1):
        if not args.cases or case in args.cases:
            write(case, 400 + number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
