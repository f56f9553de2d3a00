#!/usr/bin/env python3
"""Trains three steps on rows of text with transformers, as NeMo AutoModel documents its data sets and its loss.

  scripts/golden/rows.py            writes test/golden/rows/: a small model, rows, recipes and expected.json
  scripts/golden/rows.py --check    computes the losses again, writes nothing

needs PyTorch, transformers, tokenizers, jinja2 and safetensors, and to write pyarrow; the files are written by the versions that
scripts/golden/requirements.txt names. test/process/rows_test.py trains by the same recipes with mtrain.

A row ends where its own text ends; a micro-batch is padded to its longest row, and padding has neither attention nor
labels. The loss of a step is the sum over all labels of the global batch, divided by their number. Each recipe has one
global batch, so that the order of the rows is without effect.
expected.json has, for each recipe, the losses and the gradient's norms of its steps, and its number of labels.
"""
import argparse
import json
import pathlib
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from golden_numbers import differences

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "rows"
MODEL = OUT / "model"
VOCAB, STEPS, BATCH, LOCAL = 320, 3, 8, 2
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.9, 0.99), 1e-8, 0.01, 1.0
CHAT_LENGTH = 64  # tokens; truncation shortens three of the conversations
MOCK_LENGTH, MOCK_VOCAB, MOCK_SEED = 32, 100, 42
IGNORED = -100

SUBJECTS = ["a cat", "the old king", "one bird", "her dog", "the wind", "a ship", "nobody", "the moon"]
VERBS = ["sleeps on the mat", "rules", "sings in the morning, and then again", "barks", "turns", "sails to the north",
         "waits", "is a very small light over the hill"]


def squad_rows():
    return [{"id": str(i), "context": f"{s.capitalize()} {v}.", "question": f"What does {s} do?",
             "answers": {"text": [f" {v} ", "something"], "answer_start": [len(s) + 1, 0]}}
            for i, (s, v) in enumerate(zip(SUBJECTS, VERBS))]


def hellaswag_rows():
    return [{"ctx": s.capitalize(), "label": str(i % 4), "endings": [VERBS[(i + 2 * k) % 8] + "." for k in range(4)]}
            for i, s in enumerate(SUBJECTS)]


def chat_rows():
    rows = []
    for i, (s, v) in enumerate(zip(SUBJECTS, VERBS)):
        messages = [{"role": "user", "content": f"What does {s} do?"}, {"role": "assistant", "content": f"It {v}."}]
        if i % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Be short."})
        if i % 2:
            messages += [{"role": "user", "content": "And then?"}, {"role": "assistant", "content": SUBJECTS[i - 1]}]
        rows.append({"messages": messages})
    return rows


CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {{global_batch_size: {batch}, local_batch_size: {local}, max_steps: {steps}, num_epochs: 10, ckpt_every_steps: 100}}
dist_env: {{backend: nccl, timeout_minutes: 1}}
rng: {{_target_: nemo_automodel.components.training.rng.StatefulRNG, seed: 42, ranked: true}}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: example/small
  torch_dtype: float32
checkpoint: {{enabled: false}}
distributed: {{strategy: fsdp2}}
clip_grad_norm: {{max_norm: {clip}}}
loss_fn: {{_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy}}
dataset:
{data}packed_sequence: {{packed_sequence_size: 0}}
dataloader:
  _target_: torchdata.stateful_dataloader.StatefulDataLoader
  collate_fn: nemo_automodel.components.datasets.utils.default_collater
  shuffle: true
optimizer: {{_target_: torch.optim.AdamW, lr: {lr}, betas: [{betas[0]}, {betas[1]}], eps: 1.0e-8, weight_decay: {decay}}}
"""
CLASSES = "nemo_automodel.components.datasets.llm."
DATA = {
    "squad": ("squad.make_squad_dataset", {"dataset_name": "rajpurkar/squad", "split": "train"}),
    "hellaswag": ("hellaswag.HellaSwag", {"path_or_dataset": "rowan/hellaswag", "split": "train", "num_samples_limit": 8}),
    "chat": ("chat_dataset.ChatDataset", {"path_or_dataset_id": "chat.jsonl", "split": "train", "seq_length": CHAT_LENGTH,
                                          "truncation": True, "padding": "do_not_pad", "chat_template": "chat.jinja"}),
    "mock": ("mock_iterable_dataset.MockIterableDataset", {"seq_len": MOCK_LENGTH, "num_samples": BATCH,
                                                           "vocab_size": MOCK_VOCAB}),
}


def recipe_text(name):
    target, arguments = DATA[name]
    data = f"  _target_: {CLASSES}{target}\n" + "".join(f"  {k}: {json.dumps(v)}\n" for k, v in arguments.items())
    return RECIPE.format(batch=BATCH, local=LOCAL, steps=STEPS, clip=CLIP, data=data, lr=LR, betas=BETAS, decay=DECAY)


def write_json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_files():
    import pyarrow.parquet  # of all functions only this one needs it

    MODEL.mkdir(parents=True, exist_ok=True)
    write_json_lines(OUT / "squad.jsonl", squad_rows())
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(squad_rows()), OUT / "squad.parquet")
    write_json_lines(OUT / "hellaswag.jsonl", hellaswag_rows())
    write_json_lines(OUT / "chat.jsonl", chat_rows())
    (OUT / "chat.jinja").write_text(CHAT_TEMPLATE)
    for name in DATA:
        (OUT / f"{name}.yaml").write_text(recipe_text(name))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator((" ".join([s, v, f"What does {s} do?"]) for s, v in zip(SUBJECTS, VERBS)), trainer)
    tokenizer.save(str(MODEL / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    (MODEL / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.1,
        bos_token_id=None, eos_token_id=0, pad_token_id=None))
    model.to(torch.bfloat16).save_pretrained(MODEL)


def prompt_and_answer(tokenizer, prompt, answer):
    """One text; the prompt's own number of tokens says where the labels begin."""
    ids = tokenizer(prompt + answer)["input_ids"]
    masked = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return ids, [IGNORED] * masked + ids[masked:]


def squad_sample(tokenizer, row):
    answer = row["answers"]["text"][0].strip()
    return prompt_and_answer(tokenizer, f"Context: {row['context']} Question: {row['question']} Answer: ", answer)


def hellaswag_sample(tokenizer, row):
    """Two texts, each encoded by itself; special tokens between them are dropped."""
    context, ending = (tokenizer(text)["input_ids"] for text in (row["ctx"], row["endings"][int(row["label"])]))
    if context[-1] in tokenizer.all_special_ids:
        context = context[:-1]
    if ending[0] in tokenizer.all_special_ids:
        ending = ending[1:]
    return context + ending, [IGNORED] * len(context) + ending


def chat_sample(tokenizer, row):
    """Labels are what each message of the assistant adds to the conversation before it."""
    def ids_of(messages):
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, truncation=True,
                                             max_length=CHAT_LENGTH)["input_ids"] if messages else []

    messages = row["messages"]
    ids = ids_of(messages)
    labels = [IGNORED] * len(ids)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            begin, end = len(ids_of(messages[:i])), len(ids_of(messages[: i + 1]))
            labels[begin:end] = ids[begin:end]
    return ids, labels


def mock_samples():
    """The random tokens that mtrain draws: Philox4x32-10, by a key of seed and name."""
    word, half = (1 << 64) - 1, (1 << 32) - 1
    seed = 2 * MOCK_SEED
    key = 0xCBF29CE484222325 ^ seed
    for byte in b"mock data":
        key = (key ^ byte) * 0x100000001B3 & word
    key = key + seed * 0x9E3779B97F4A7C15 & word
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & word
    key = (key ^ key >> 27) * 0x94D049BB133111EB & word
    key ^= key >> 31

    def token(index):
        k0, k1, x = key & half, key >> 32, [index & half, index >> 32, 0, 0]
        for _ in range(10):
            a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
            x = [b >> 32 ^ x[1] ^ k0, b & half, a >> 32 ^ x[3] ^ k1, a & half]
            k0, k1 = k0 + 0x9E3779B9 & half, k1 + 0xBB67AE85 & half
        return (x[0] << 32 | x[1]) * MOCK_VOCAB >> 64

    rows = [[token(i * MOCK_LENGTH + s) for s in range(MOCK_LENGTH)] for i in range(BATCH)]
    return [(ids, [IGNORED] + ids[1:]) for ids in rows]


def samples_of(name, tokenizer):
    if name == "mock":
        return mock_samples()
    if name == "chat":
        tokenizer.chat_template = CHAT_TEMPLATE
    rows = [json.loads(line) for line in (OUT / f"{name}.jsonl").read_text().splitlines()]
    make = {"squad": squad_sample, "hellaswag": hellaswag_sample, "chat": chat_sample}[name]
    return [make(tokenizer, row) for row in rows]


def padded(samples, pad):
    """Inputs, labels of the next token, and the mask of a micro-batch."""
    longest = max(len(ids) for ids, _ in samples) - 1
    inputs, labels, mask = [], [], []
    for ids, targets in samples:
        rest = longest - (len(ids) - 1)
        inputs.append(ids[:-1] + [pad] * rest)
        labels.append(targets[1:] + [IGNORED] * rest)
        mask.append([1] * (len(ids) - 1) + [0] * rest)
    return torch.tensor(inputs), torch.tensor(labels), torch.tensor(mask)


def train(name):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager")
    samples = samples_of(name, tokenizer)
    if len(samples) != BATCH:
        raise SystemExit(f"{name} has {len(samples)} rows")
    count = sum(label != IGNORED for _, labels in samples for label in labels[1:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for first in range(0, BATCH, LOCAL):
            inputs, labels, mask = padded(samples[first:first + LOCAL], tokenizer.pad_token_id)
            logits = model(input_ids=inputs, attention_mask=mask, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED,
                                                     reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    return {"labels": count, "losses": losses, "grad_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if not arguments.check:
        write_files()
    computed = {name: train(name) for name in DATA}
    if arguments.check:
        # transformers computes rotary angles in fp32, whose last digits depend on the CPU.
        wrong = differences(json.loads((OUT / "expected.json").read_text()), computed, 1e-6)
        print("\n".join(wrong) or "test/golden/rows: the same losses")
        sys.exit(bool(wrong))
    (OUT / "expected.json").write_text(json.dumps(computed, indent=1) + "\n")


if __name__ == "__main__":
    main()
