#!/usr/bin/env python3
"""Measures and continues texts with the small models of test/golden/hf, by transformers.

  scripts/golden/hf_use.py            writes test/golden/hf/expected/use.json and the tokenizer beside it
  scripts/golden/hf_use.py --check    computes the same again, writes nothing
  scripts/golden/hf_use.py --compare MTRAIN FOLDER
                                      holds what this mtrain computes with the model of any folder against transformers:
                                      the loss of README.md, and the likeliest tokens after a prompt

needs PyTorch and transformers; the files are written by the versions that scripts/golden/requirements.txt names.

use.json holds, all computed in float64 from the weights of the files:
  ids, window             a stream of tokens, and the length of the windows over it
  <case>.nats             by stride: the mean loss of the tokens, in the windows of transformers' guide to perplexity;
                          all losses weigh alike, however many labels a window has
  <case>.texts            what generate() adds to a prompt without sampling, under two lists of ids that end a text
The tokenizer has a token for each of 61 characters and three special ones; <s> begins every text.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, processors

import hf
from golden_numbers import without_versions

OUT = hf.EXPECTED
TOKENS, WINDOW, STRIDES = 150, 16, (16, 5)
NEW = 12  # tokens after a prompt; with the prompt and <s> they fill the positions of the smallest model
PROMPTS = ["Hey", "Why", "And", "Yes", "Its", "Old"]
CHARACTERS = " ,.!?'-:;" + "".join(chr(ord("a") + i) for i in range(26)) + "".join(chr(ord("A") + i) for i in range(26))
SPECIAL = ["<s>", "</s>", "<stop>"]
# transformers computes rotary angles in fp32, and their last digits depend on the CPU: losses differ by up to 1e-7.
BOUND = 1e-6
MARGIN = 1e-4  # between the logits of the two likeliest tokens, so that rounding cannot change the choice


def write_tokenizer(folder):
    vocab = {c: i for i, c in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", bos)])
    tokenizer.decoder = decoders.Fuse()
    if tokenizer.get_vocab_size() != hf.V:
        raise SystemExit(f"{tokenizer.get_vocab_size()} tokens")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def stream():
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, hf.V, (TOKENS,), generator=generator)


def nats(model, ids, stride, window=WINDOW):
    """The mean loss over the tokens of all windows, each where it is first a label."""
    total, counted, seen = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        labels = ids[begin:end].clone()
        labels[: max(0, seen - begin)] = -100
        losses = int((labels[1:] != -100).sum())
        if losses:
            with torch.no_grad():
                out = model(input_ids=ids[None, begin:end], labels=labels[None], use_cache=False)
            total, counted = total + float(out.loss) * losses, counted + losses
        seen = end
        if end == len(ids):
            break
    return total / counted


def continued(model, tokenizer, prompt, eos):
    """The text and the ids that are added, without the id that ends them; None if two tokens are about as likely."""
    ids = tokenizer(prompt, return_tensors="pt")
    model.generation_config = transformers.GenerationConfig(eos_token_id=eos, pad_token_id=0)
    with torch.no_grad():
        out = model.generate(**ids, do_sample=False, max_new_tokens=NEW, output_logits=True,
                             return_dict_in_generate=True)
    for logits in out.logits:
        best = logits[0].topk(2).values
        if best[0] - best[1] < MARGIN:
            return None
    added = out.sequences[0, ids.input_ids.shape[1]:].tolist()
    ended = added[-1] in eos
    added = added[:-1] if ended else added
    return dict(prompt=prompt, eos=eos, ids=added, text=tokenizer.decode(added, skip_special_tokens=False,
                                                          clean_up_tokenization_spaces=False), ended=ended)


def use(case, tokenizer):
    model = hf.load(hf.FOLDER / case).double()
    ids = stream()
    end = tokenizer.convert_tokens_to_ids("</s>")
    whole = next(text for p in PROMPTS if (text := continued(model, tokenizer, p, [end])))
    texts = [whole]
    if len(whole["ids"]) > 5:  # another id ends it, too
        texts.append(continued(model, tokenizer, whole["prompt"], [end, whole["ids"][5]]))
    return dict(nats={str(stride): nats(model, ids, stride) for stride in STRIDES}, texts=texts)


def compare(mtrain, folder):
    """Returns whether loss and text are the same, both computed in fp32."""
    def run(*words):
        return subprocess.run([mtrain, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout

    model, tokenizer = hf.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    readme = hf.FOLDER.parents[2] / "README.md"
    window = min(512, getattr(model.config, "max_position_embeddings", 512))
    ids = torch.tensor(tokenizer(readme.read_text()).input_ids)
    with tempfile.TemporaryDirectory() as work:
        run("data", "build", "--input", readme, "--output", f"{work}/text", "--tokenizer", folder, "--no-eod")
        said = run("eval", "--model", folder, "--data", f"{work}/text", "--stride", window // 2,
                   f"dataset.seq_length={window}")
    got, want = float(said.split()[0]), nats(model, ids, window // 2, window)
    prompt = "The capital of France is"
    text = run("generate", "--model", folder, "--prompt", prompt, "--tokens", 20, "--temperature", 0)
    with torch.no_grad():
        out = model.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=20,
                             repetition_penalty=1.0)
    theirs = tokenizer.decode(out[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    same = abs(got - want) < 1e-4 and text == theirs + "\n"
    print(f"{folder}: nats per token {got:.6f} and {want:.6f}, text {text!r} and {theirs!r}: {'ok' if same else 'WRONG'}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compute again, write nothing")
    parser.add_argument("--compare", nargs=2, metavar=("MTRAIN", "FOLDER"), help="compare with mtrain itself")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.compare:
        return int(not compare(*args.compare))
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made) / "tokenizer"
        write_tokenizer(folder)
        files = {f.name: f.read_text() for f in folder.iterdir()}
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        result = dict(tokens=NEW, window=WINDOW, ids=stream().tolist())
        result["cases"] = {case: use(case, tokenizer) for case in hf.CASES}
    if not args.check:
        (OUT / "tokenizer").mkdir(exist_ok=True)
        for name, text in files.items():
            (OUT / "tokenizer" / name).write_text(text)
        (OUT / "use.json").write_text(json.dumps(result) + "\n")
        print(f"{len(result['cases'])} models")
        return 0
    stored = json.loads((OUT / "use.json").read_text())
    wrong = [name for name, text in files.items()
             if without_versions(json.loads((OUT / "tokenizer" / name).read_text())) != without_versions(json.loads(text))]
    wrong += [key for key in result if key != "cases" and result[key] != stored[key]]
    wrong += [case for case in stored["cases"] if case not in result["cases"]]
    for case, got in result["cases"].items():
        want = stored["cases"].get(case)
        same = want is not None and got["texts"] == want["texts"] and all(
            abs(got["nats"][s] - want["nats"][s]) < BOUND * want["nats"][s] for s in got["nats"])
        print(f"{case:14} {'ok' if same else 'WRONG'}")
        wrong += [] if same else [case]
    if wrong:
        print("differ:", *wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
