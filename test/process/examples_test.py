#!/usr/bin/env python3
"""Runs the examples at the end of each help page, as they are written.

  test/process/examples_test.py <mtrain> <mtrain-launch>
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MTRAIN, LAUNCH = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2, ffn_hidden_size: 64}
tokenizer: byte
dataset: {train: data/corpus_train, validation: data/corpus_valid, seq_length: 32}
train: {steps: 4, global_batch_size: 4, micro_batch_size: 2, threads: 1, run_dir: runs/quickstart, device: cpu}
validation: {every_steps: 100, steps: 1}
distributed: {strategy: ddp}
mixed_precision: fp32
"""
# In this order: a page may need what the examples of an earlier one have written.
PAGES = ["data build", "data show", "data bigram", "data", "", "train", "export", "export hf", "import", "import hf", "eval",
         "generate", "timeline", "watch", "compare", "report", "parity", "checkpoint", "checkpoint list", "checkpoint show", "checkpoint verify", "checkpoint diff",
         "checkpoint reshard", "checkpoint prune", "calibrate", "plan", "schedule", "schema", "explain", "recipe", "recipe explain", "completion"]


def run(command):
    environment = {**os.environ, "PATH": f"{MTRAIN.parent}:{LAUNCH.parent}:{os.environ['PATH']}", "COLUMNS": "101",
                   "XDG_CACHE_HOME": str(WORK)}
    return subprocess.run(["bash", "-c", command], cwd=WORK, env=environment, stdin=subprocess.DEVNULL, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def examples(page):
    """The commands of a help page; a line that ends with a backslash continues in the next."""
    text = run(f"{page} --help").stdout
    if "\nExamples:\n" not in text:
        return []
    lines = text.split("\nExamples:\n")[1].replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.strip() and not line.strip().startswith("#")]


def prepare():
    (WORK / "recipes").mkdir()
    (WORK / "recipes/quickstart.yaml").write_text(RECIPE)
    (WORK / "quickstart.yaml").symlink_to("recipes/quickstart.yaml")
    (WORK / "corpus.txt").write_text("\n\n".join(" ".join(map(str, range(i, i + 40))) for i in range(400)))
    (WORK / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(20)))
    (WORK / "answers.jsonl").write_text(
        "".join(json.dumps({"question": f"what is {i}?", "answer": "a number"}) + "\n" for i in range(20)))
    chat = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a number"}]
    (WORK / "chats.jsonl").write_text(20 * (json.dumps({"messages": chat}) + "\n"))
    (WORK / "chat.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    (WORK / "prompts.txt").write_text("one\ntwo\n")


def main():
    prepare()
    failed, done = 0, set()
    for page in [f"mtrain {page}".strip() for page in PAGES] + ["mtrain-launch"]:
        found = examples(page)
        if page == "mtrain watch":
            shutil.copytree(WORK / "runs/first", WORK / "runs/second")
        if page == "mtrain export":
            tuned = run("mtrain recipes/quickstart.yaml train.run_dir=runs/lora peft.dim=4")
            if tuned.returncode != 0:
                print(f"a training of adapters: exit code {tuned.returncode}:\n{tuned.stdout}")
                failed += 1
        if not found:
            print(f"`{page} --help` has no examples")
            failed += 1
        for example in found:
            shell = re.search(r"completion (zsh|fish)", example)
            if example in done or (shell and not shutil.which(shell[1])):
                continue
            done.add(example)
            # The examples of several pages begin the same run; other hosts are not here.
            shutil.rmtree(WORK / "runs/quickstart", ignore_errors=True)
            command = example + (" --dry-run" if "--nnodes" in example else "")
            result = run(f"{shell[1]} -c '{command}'" if shell else f"set -o pipefail; {command}")
            if result.returncode != 0:
                print(f"{page}: exit code {result.returncode} of `{example}`:\n{result.stdout}")
                failed += 1
    shutil.rmtree(WORK)
    print(f"{failed} of {len(done)} examples failed" if failed else f"{len(done)} examples ran")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
