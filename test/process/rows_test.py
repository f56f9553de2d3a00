#!/usr/bin/env python3
"""Trains on rows of text by recipes of NeMo AutoModel, and compares each step with transformers or one rank.

  test/process/rows_test.py <mtrain> <mtrain-launch> <library of failing files>

scripts/golden/rows.py has written the recipes, the rows and the expected losses.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH, FAILING_FILES = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
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
# Two hosts, of which one must read more rows than fit into comm.timeout_s.
TIMEOUT_S = 4
SLOW = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: {prompt_completion: many.jsonl, cut: true}, seq_length: 32}
train: {steps: 1, global_batch_size: 2, micro_batch_size: 1, threads: 1, device: cpu}
distributed: {strategy: ddp}
checkpoint: {enabled: false}
comm: {timeout_s: %s}
""" % TIMEOUT_S
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


def two_hosts(name):
    """Starts a rank on each of two hosts; the second reads slowly and has no tokens yet. Returns exit codes, output, time."""
    (WORK / "faults").write_text("r -2 many.jsonl 1\n")
    token = WORK / "token"
    token.touch(mode=0o600)
    token.write_text(random.randbytes(32).hex())
    words = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1", "--local_addr=127.0.0.1",
             f"--master_port={random.randrange(20000, 32000)}", f"--token_file={token}"]
    hosts, began = [], time.monotonic()
    for host in (0, 1):
        environment = {**os.environ, "XDG_CACHE_HOME": str(WORK / f"{'warm' if host == 0 else name}"),
                       "LD_PRELOAD": str(FAILING_FILES), "MTRAIN_FAILING_FILES": str(WORK / "faults")}
        hosts.append(subprocess.Popen([LAUNCH, *words, f"--node_rank={host}", "slow.yaml", f"train.run_dir={name}"],
                                      cwd=WORK, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    output = "".join(host.communicate(timeout=120)[0] for host in hosts)
    return [host.returncode for host in hosts], output, time.monotonic() - began


def a_host_that_tokenizes_for_long():
    (WORK / "slow.yaml").write_text(SLOW)
    row = json.dumps({"prompt": "p", "completion": "c" * 2000}) + "\n"
    (WORK / "many.jsonl").write_text(row * 6000)
    warm = {**os.environ, "XDG_CACHE_HOME": str(WORK / "warm")}
    subprocess.run([MTRAIN, "slow.yaml", "train.run_dir=warmed"], cwd=WORK, env=warm, check=True, timeout=120,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    codes, output, seconds = two_hosts("slow")
    if codes != [0, 0] or seconds < 1.5 * TIMEOUT_S or "waiting for 1 of 2 ranks" not in output:
        fail(f"a slow host: exit codes {codes} after {seconds:.1f} s", output)
    # A host whose rows are broken ends the other, which waits.
    with open(WORK / "many.jsonl", "a") as rows:
        rows.write("broken\n")
    codes, output, _ = two_hosts("broken")
    if 0 in codes or "many.jsonl:6001" not in output or "did not arrive" in output:
        fail(f"a host with a broken row: exit codes {codes}", output)


def main():
    prepare()
    a_host_that_tokenizes_for_long()
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
