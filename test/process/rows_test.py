#!/usr/bin/env python3
"""Trains on rows of text by recipes of NeMo AutoModel, and compares each step with transformers or one rank.

  test/process/rows_test.py <mtrain> <mtrain-launch>

scripts/golden/rows.py has written the recipes, the rows and the expected losses.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MTRAIN, LAUNCH = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/rows"
WORK = pathlib.Path(tempfile.mkdtemp())
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BOUND = 1e-5
PIPELINE = ["distributed.pp_size=2", "distributed.pipeline={}"]
LAYOUTS = {
    "one rank": (1, []),
    "fsdp2 4": (4, []),
    "tp 2": (2, ["distributed.tp_size=2"]),
    "tp 2 with sequence parallelism": (2, ["distributed.tp_size=2", "distributed.sequence_parallel=true"]),
    "cp 2": (2, ["distributed.cp_size=2"]),
    "pp 2": (2, PIPELINE),
}
# In one pack, and in one global batch: the same labels as those of the rows.
PACKS = ["packed_sequence.packed_sequence_size=512", "train.global_batch_size=1", "train.micro_batch_size=1"]
# Rows of different lengths on ranks that exchange tokens: these layouts are compared with one rank.
EXPERTS = """
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 64, vocab_size: 320}
model.moe: {num_experts: 4, router_topk: 2, ffn_hidden_size: 32, load_balancing_type: aux_loss, aux_loss_coeff: 0.01}
tokenizer: {path: TOKENIZER}
dataset:
  train: {prompt_completion: rajpurkar/squad, prompt: "{context} {question} ", completion: "{answers.text[0]|trim}"}
train: {steps: 3, global_batch_size: 8, micro_batch_size: 2}
checkpoint: {enabled: false}
"""
EXPERT_LAYOUTS = {
    "ep 4": (4, ["distributed.ep_size=4"]),
    "ep 2, cp 2": (4, ["distributed.ep_size=2", "distributed.cp_size=2"]),
    "ep 2, pp 2": (4, ["distributed.ep_size=2", *PIPELINE]),
}
FAILED = []


def prepare():
    """A cache of the Hub as `hf download` fills it, and the files that recipes name by their paths."""
    for kind, name, source in [("models", "example--small", GOLDEN / "model"), ("datasets", "rajpurkar--squad", "squad"),
                               ("datasets", "rowan--hellaswag", "hellaswag")]:
        repository = WORK / f"hub/{kind}--{name}"
        snapshot = repository / "snapshots" / COMMIT
        (repository / "refs").mkdir(parents=True)
        (repository / "refs/main").write_text(COMMIT)
        if kind == "models":
            shutil.copytree(source, snapshot)
        else:
            (snapshot / "data").mkdir(parents=True)
            shutil.copy(GOLDEN / f"{source}.jsonl", snapshot / "data/train-00000-of-00001.jsonl")
            (snapshot / "data/validation.jsonl").write_text("{}\n")
    for name in ["chat.jsonl", "chat.jinja"]:
        shutil.copy(GOLDEN / name, WORK / name)


def start(arguments, ranks=1):
    # Runs with the same number of ranks share a cache; the ranks of the first tokenize at the same time.
    environment = {**os.environ, "HF_HUB_CACHE": str(WORK / "hub"), "XDG_CACHE_HOME": str(WORK / f"cache{ranks}")}
    command = [MTRAIN, *arguments] if ranks == 1 else [LAUNCH, "--nproc-per-node", str(ranks), *arguments]
    return subprocess.run([str(word) for word in command], cwd=WORK, env=environment, stdin=subprocess.DEVNULL,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def fail(text, output=""):
    FAILED.append(text)
    print(f"FAILED: {text}\n{output}")


def steps_of(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [r for r in records if "loss" in r and "step" in r and "grad_norm" in r]


def near(a, b):
    return a is not None and abs(a - b) <= BOUND * max(1.0, abs(b))


def train(recipe, layout, ranks, settings, expected=None):
    """The losses and gradient norms of a run, which are compared if others are expected."""
    run = WORK / f"runs/{recipe.stem} {layout}"
    result = start([recipe, f"train.run_dir={run}", "mixed_precision=fp32", "train.device=cpu", "train.threads=1",
                    *settings], ranks)
    name = f"{recipe.stem}, {layout}"
    if result.returncode != 0:
        fail(name, result.stdout)
        return {"losses": [], "grad_norms": []}
    steps = steps_of(run)
    computed = {"losses": [s["loss"] for s in steps], "grad_norms": [s["grad_norm"] for s in steps]}
    for key, values in computed.items():
        wanted = expected[key] if expected else values
        if not values or len(values) != len(wanted) or not all(map(near, values, wanted)):
            fail(f"{name}: {key} are {values} instead of {wanted}", result.stdout)
    return computed


def main():
    prepare()
    expected = json.loads((GOLDEN / "expected.json").read_text())
    for recipe, values in expected.items():
        for layout, (ranks, settings) in LAYOUTS.items():
            train(GOLDEN / f"{recipe}.yaml", layout, ranks, settings, values)
    train(GOLDEN / "squad.yaml", "packs", 1, PACKS, expected["squad"])
    experts = WORK / "experts.yaml"
    experts.write_text(EXPERTS.replace("TOKENIZER", str(GOLDEN / "model")))
    one_rank = train(experts, "one rank", 1, [])
    for layout, (ranks, settings) in EXPERT_LAYOUTS.items():
        train(experts, layout, ranks, settings, one_rank)
    print(f"{len(FAILED)} figures differ" if FAILED else "all runs have the expected losses")
    shutil.rmtree(WORK)
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
