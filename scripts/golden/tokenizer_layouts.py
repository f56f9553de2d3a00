#!/usr/bin/env python3
"""Writes test/golden/tokenizer/layouts/: tokenizers with the layouts of real families, trained on a little text, and what
the tokenizers library makes of random strings; or checks mtrain against the library on many more of them.

    scripts/golden/tokenizer_layouts.py                                   writes the files
    scripts/golden/tokenizer_layouts.py --check PROGRAM --strings N       see scripts/check_tokenizers.sh

Needs the PyPI package `tokenizers` in the version below. The layouts (normalizer, pre-tokenizer, model options, added
tokens, decoder, template) are those of the families' own files; vocabularies and merges are not.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tokenizer import LLAMA3, QWEN2, STRINGS, TEXT

VERSION = "0.23.3"
OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "tokenizer" / "layouts"
SAMPLE = 24, 10  # random strings and strings of tokenizer.py for each committed layout; features have a third

TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
MARK = "\u2581"


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sequence(*stages):
    return pre_tokenizers.Sequence(list(stages))


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def template(*tokens):
    """`tokens`: pairs of a text and an id that stand before the text."""
    return processors.TemplateProcessing(single=" ".join(t for t, _ in tokens) + " $A", special_tokens=list(tokens))


def special(text, **flags):
    return AddedToken(text, **{"special": True, "normalized": False, **flags})


def plain(text, **flags):
    return AddedToken(text, **{"special": False, "normalized": True, **flags})


def sentencepiece_decoder(strip=True):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def sentencepiece(first, vocabulary=420, normalizer=None, pre_tokenizer=None, decoder=None, added=(), post=None,
                  lacks=(), **model):
    """A BPE over characters: `first` are the first tokens, then the 256 bytes without `lacks`, then what is trained."""
    tokenizer = Tokenizer(models.BPE(**{"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **model}))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = [c for c in sorted(set(TEXT[:500]) | set("éЗдравстуй世界")) if c not in "\n q"] + [MARK]
    bytes_ = [f"<0x{b:02X}>" for b in range(256) if b not in lacks]
    # Training sees words, so that merges stay inside them; a few below join words and spaces.
    words = [MARK + "".join(c for c in w if c in alphabet) for w in TEXT.split()]
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - 256, special_tokens=list(first), initial_alphabet=alphabet,
                                  show_progress=False)
    bare = Tokenizer(models.BPE(unk_token="<unk>"))
    bare.train_from_iterator(words, trainer)
    data = json.loads(bare.to_str())["model"]
    old = sorted(data["vocab"], key=data["vocab"].get)
    names = old[:len(first)] + bytes_ + old[len(first):]
    merges = [tuple(m) for m in data["merges"]]
    for pair in ((MARK, MARK), (MARK * 2, MARK * 2), ("e", MARK), ("e" + MARK, "t"), (".", MARK)):
        names.append("".join(pair))
        merges.append(pair)
    # As in converted SentencePiece models, a token is made by every pair that gives it.
    known = set(names)
    for token in list(names):
        for cut in range(1, len(token)):
            pair = (token[:cut], token[cut:])
            if pair[0] in known and pair[1] in known and pair not in merges and token not in first and \
                    not token.startswith("<0x"):
                merges.append(pair)
    names = list(dict.fromkeys(names))
    vocab = {name: i for i, name in enumerate(names)}
    data = json.loads(tokenizer.to_str())
    data["model"]["vocab"] = vocab
    data["model"]["merges"] = [list(m) for m in merges]
    return finish(Tokenizer.from_str(json.dumps(data)), added, decoder, post)


def bytes_bpe(pre_tokenizer, vocabulary=420, normalizer=None, added=(), post=None, lacks=(), **model):
    """A byte-level BPE."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    data = json.loads(tokenizer.to_str())
    for character in lacks:
        removed = data["model"]["vocab"].pop(character)
        data["model"]["vocab"] = {t: i - (i > removed) for t, i in data["model"]["vocab"].items()}
    if model.get("ignore_merges"):  # words that no merge makes
        for word in ("Ġsnake", "Ġword", "ĠÐ¼Ð¸ÑĢ"):
            data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))
    if "unk_token" in model:
        data["model"]["vocab"].setdefault(model["unk_token"], len(data["model"]["vocab"]))
    return finish(Tokenizer.from_str(json.dumps(data)), added, decoders.ByteLevel(), post)


def finish(tokenizer, added, decoder, post):
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    if decoder is not None:
        tokenizer.decoder = decoder
    if post is not None:
        tokenizer.post_processor = post(tokenizer) if callable(post) else post
    return tokenizer


def bos(*texts):
    return lambda t: template(*[(x, t.token_to_id(x)) for x in texts])


def after_bytes(*texts):
    return lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), bos(*texts)(t)])


LLAMA2_NORMALIZER = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
START = ["<unk>", "<s>", "</s>"]

LAYOUTS = {
    "gpt2": lambda: bytes_bpe(byte_level(True), added=[special("<|endoftext|>", normalized=True)],
                              post=processors.ByteLevel(trim_offsets=False)),
    "llama2": lambda: sentencepiece(START, normalizer=LLAMA2_NORMALIZER, decoder=sentencepiece_decoder(),
                                    added=[special(t) for t in START], post=bos("<s>")),
    "llama3": lambda: bytes_bpe(sequence(isolated(LLAMA3), byte_level()), ignore_merges=True,
                                added=[special(t) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
                                                            "<|start_header_id|>")],
                                post=after_bytes("<|begin_of_text|>")),
    "mistral_v1": lambda: sentencepiece(START, normalizer=LLAMA2_NORMALIZER, decoder=sentencepiece_decoder(),
                                        fuse_unk=False, added=[special(t, normalized=True) for t in START],
                                        post=bos("<s>")),
    "mistral_v3": lambda: sentencepiece(START, pre_tokenizer=pre_tokenizers.Metaspace(MARK, "first", split=False),
                                        decoder=sentencepiece_decoder(),
                                        added=[special(t) for t in START + ["[INST]", "[/INST]", "[TOOL_CALLS]"]],
                                        post=bos("<s>")),
    "mistral_nemo": lambda: bytes_bpe(sequence(isolated(TEKKEN), byte_level()), ignore_merges=True,
                                      added=[special(t) for t in ("<unk>", "<s>", "</s>", "[INST]")],
                                      post=bos("<s>")),
    "qwen2": lambda: bytes_bpe(sequence(isolated(QWEN2), byte_level()), normalizer=normalizers.NFC(),
                               added=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
                                      plain("<tool_call>", normalized=False)],
                               post=processors.ByteLevel(trim_offsets=False)),
    "smollm2": lambda: bytes_bpe(sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(True)),
                                 lacks="ĄĆ", added=[special("<|endoftext|>"), special("<|im_start|>"),
                                                       special("<repo_name>")]),
    "phi3": lambda: sentencepiece(START, normalizer=LLAMA2_NORMALIZER, decoder=sentencepiece_decoder(),
                                  added=[special("<unk>"), special("<s>"), plain("</s>", normalized=False, rstrip=True),
                                         special("<|endoftext|>"), special("<|assistant|>", rstrip=True),
                                         special("<|user|>", rstrip=True)], post=bos("<s>")),
    "gemma": lambda: sentencepiece(["<pad>", "<eos>", "<bos>", "<unk>"], normalizer=normalizers.Replace(" ", MARK),
                                   pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
                                   decoder=sentencepiece_decoder(False),
                                   added=[special(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>")] +
                                   [plain(t, normalized=False) for t in ("\n", "\n\n", "\t\t", MARK * 2, MARK * 3,
                                                                         "<table>", "</table>")],
                                   post=bos("<bos>")),
    "deepseek_v3": lambda: bytes_bpe(sequence(isolated(r"\p{N}{1,3}"), isolated(DEEPSEEK_CJK), isolated(DEEPSEEK),
                                              byte_level()), normalizer=normalizers.Sequence([]),
                                     added=[special(t) for t in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                                                                 "<｜User｜>")] +
                                     [plain("<｜fim▁hole｜>", normalized=True)],
                                     post=processors.ByteLevel(trim_offsets=False)),
    "glm4": lambda: bytes_bpe(sequence(isolated(LLAMA3), byte_level()), ignore_merges=True,
                              added=[special(t) for t in ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>")],
                              post=after_bytes("[gMASK]", "<sop>")),
    "olmo2": lambda: bytes_bpe(sequence(isolated(LLAMA3), byte_level()), unk_token="<|endoftext|>",
                               added=[special("<|endoftext|>"), plain("|||EMAIL_ADDRESS|||", normalized=False)]),
    "starcoder": lambda: bytes_bpe(sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(True)),
                                   unk_token="<|endoftext|>", added=[special("<|endoftext|>"), special("<fim_prefix>"),
                                                                     special("<filename>")]),
    "neox": lambda: bytes_bpe(byte_level(True), normalizer=normalizers.NFC(),
                              added=[special("<|endoftext|>"), special("<|padding|>")] +
                              [plain(" " * n) for n in (24, 7, 4, 3, 2)]),
}


def small(**settings):
    return sentencepiece(START, **{"vocabulary": 380, "added": [special(t) for t in START], **settings})


def features():
    """One small tokenizer for each feature that the layouts leave out."""
    P, N, D = pre_tokenizers, normalizers, decoders
    yield "nfd", small(normalizer=N.NFD())
    yield "nfkc", small(normalizer=N.NFKC(), decoder=D.Sequence([D.ByteFallback(), D.Fuse()]))
    yield "nfkd", small(normalizer=N.Sequence([N.NFKD(), N.Lowercase()]), decoder=D.ByteFallback())
    yield "nfc_bytes", bytes_bpe(byte_level(True), 262, normalizer=N.NFC())
    yield "nfd_bytes", bytes_bpe(byte_level(True), 262, normalizer=N.NFD())
    yield "nfkc_bytes", bytes_bpe(byte_level(True), 262, normalizer=N.NFKC())
    yield "nfkd_bytes", bytes_bpe(byte_level(True), 262, normalizer=N.NFKD())
    yield "lowercase", bytes_bpe(byte_level(True), 270, normalizer=N.Lowercase(),
                                 added=[plain("<Tool>"), plain("<RAW>", normalized=False)])
    yield "strip", small(normalizer=N.Strip(), pre_tokenizer=P.Metaspace(MARK, "first"), decoder=D.Metaspace())
    yield "strip_right", small(normalizer=N.Sequence([N.Strip(left=False, right=True), N.Replace(Regex(r"\s+"), " ")]))
    yield "replace", small(normalizer=N.Sequence([N.Replace("the", "THE"), N.Replace(Regex("[aeiou]*x?"), "é")]),
                           decoder=D.Sequence([D.Replace("e", "aa"), D.Fuse(), D.Replace("aaa", "b")]))
    yield "whitespace", small(pre_tokenizer=P.Whitespace())
    yield "whitespace_split", small(pre_tokenizer=P.WhitespaceSplit(), fuse_unk=False, byte_fallback=False)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield f"punctuation_{behavior}", small(pre_tokenizer=P.Punctuation(behavior))
    yield "digits", small(pre_tokenizer=P.Digits())
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"metaspace_{scheme}_{split}", small(
                pre_tokenizer=P.Metaspace(MARK, scheme, split), decoder=D.Metaspace(MARK, scheme, split),
                added=[special("<s>"), plain("<t>"), plain("<r>", rstrip=True)])
    yield "metaspace_later", small(pre_tokenizer=P.Sequence([P.Punctuation(), P.Metaspace(MARK, "first")]))
    yield "words", small(pre_tokenizer=P.WhitespaceSplit(), added=[
        special("<unk>"), special("<s>", lstrip=True), special("</s>", rstrip=True), plain("<tool>", single_word=True),
        plain("the", single_word=True), plain("ou", single_word=True, normalized=False), plain("  ", normalized=False),
        plain("<b>", lstrip=True, rstrip=True), plain("\n")])
    yield "unknown", small(byte_fallback=False, decoder=D.Fuse())
    yield "unknown_each", small(byte_fallback=False, fuse_unk=False, pre_tokenizer=P.Split(" ", "isolated"))
    yield "unknown_dropped", small(byte_fallback=False, unk_token=None)
    yield "some_bytes", small(lacks=range(0xC8, 0xE4), decoder=sentencepiece_decoder())
    yield "some_bytes_each", small(lacks=range(0xC8, 0xE4), fuse_unk=False, decoder=D.Sequence([
        D.Strip("e", 1, 0), D.ByteFallback()]))
    yield "whole_words", small(ignore_merges=True, pre_tokenizer=P.Split(Regex(r"\s"), "removed"))
    yield "bytes_unknown", bytes_bpe(byte_level(True), 300, lacks="ĄĆéĠ"[:2], unk_token="<unk>",
                                     fuse_unk=True)
    yield "bytes_fall_back", bytes_bpe(byte_level(), 262, lacks="a", byte_fallback=True, unk_token="<unk>")
    yield "scripts", bytes_bpe(sequence(P.Split(Regex(r"\p{Han}+|\p{Hiragana}|\p{Lu}\p{Ll}*"), "isolated"),
                                        P.Split(Regex(r"\p{M}+|\p{S}"), "merged_with_previous"), byte_level()), 262)
    yield "prefix_space", bytes_bpe(sequence(P.Digits(), P.ByteLevel(add_prefix_space=True)), 262)


ATOMS = sorted(set(TEXT.split())) + [
    " ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "'s", "'LL", "'re", "'ſ", "123", "4", "12", "1234",
    ".", "...", "!?", "//", "_", "-", "=", "()", "\\", "\"", "the", "The", "THE", "you", "ou", "x", "ee", "e t", MARK, MARK * 2,
    "<", ">", "<s>", "</s>", "<unk>", "<t>", "<r>", "<b>", "<tool>", "<Tool>", "<tool", "<RAW>", "<0x41>", "<0x0A>",
    "<|endoftext|>", "<|im_start|>", "[INST]", "<|user|>", "<|eot_id|>", "<｜User｜>", "<｜fim▁hole｜>", "<bos>", "<table>",
    "|||EMAIL_ADDRESS|||", "é", "e\u0301", "\u0301", "\u0327\u0301", "\u0345", "ﬁ", "ﬀ", "½", "²", "①", "Ⅻ", "㎏", "ｶﾞ", "ﾊﾟ",
    "각", "\u1100\u1161\u11a8", "İ", "ẞ", "Σ", "Ω", "Å", "\u00a0", "\u3000", "\u2003", "\u200b", "\u200d", "\ufeff", "\u0085",
    "\u2028", "\u180e", "\x04", "\x06", "\x00", "\x7f", "👍🏽", "👨‍👩‍👧", "❤️", "🇩🇪", "𝕌", "𐍈", "क्षि", "ไทย", "שלום", "مرحبا",
]
# First and last code points from which single characters are drawn.
BLOCKS = [(0x20, 0x7E)] * 4 + [
    (0x00, 0xFF), (0x100, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF), (0x600, 0x6FF),
    (0x700, 0x8FF), (0x900, 0x97F), (0x980, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x13FF), (0x1400, 0x17FF),
    (0x1800, 0x1CFF), (0x1D00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x23FF), (0x2400, 0x2BFF), (0x2C00, 0x2E7F),
    (0x2E80, 0x303F), (0x3040, 0x30FF), (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
    (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFEFF), (0xFF00, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x10FFF),
    (0x11000, 0x11FFF), (0x12000, 0x16FFF), (0x17000, 0x1BFFF), (0x1C000, 0x1D3FF), (0x1D400, 0x1D7FF), (0x1D800, 0x1EFFF),
    (0x1F000, 0x1F6FF), (0x1F700, 0x1FFFF), (0x20000, 0x323FF), (0xE0000, 0x10FFFF)]


def random_string(rng):
    parts = []
    block = rng.choice(BLOCKS)
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8, 13, 30))):
        draw = rng.random()
        if draw < 0.55:
            parts.append(rng.choice(ATOMS))
        elif draw < 0.7:
            parts.append(chr(rng.randint(*rng.choice(BLOCKS))))
        else:  # a run of one script
            if draw > 0.95:
                block = rng.choice(BLOCKS)
            parts.append("".join(chr(rng.randint(*block)) for _ in range(rng.randint(1, 5))))
    return "".join(parts)


def sweep():
    """Every code point beside letters and digits, and between marks that normalization would move past it."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for i in range(0, len(points), 64):
        part = points[i:i + 64]
        yield "".join(f"a{chr(c)}1" for c in part)
        yield "".join(f"b\u0345{chr(c)}\u0334 " for c in part)


def expectation(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return ids, tokenizer.decode(ids, skip_special_tokens=False)


def random_ids(tokenizer, rng):
    return [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]


def compact(data):
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def samples(tokenizer, rng, share):
    strings = [random_string(rng) for _ in range(SAMPLE[0] // share)] + rng.sample(STRINGS, SAMPLE[1] // share)
    return [[s, *expectation(tokenizer, s)] for s in strings]


def write():
    OUT.mkdir(parents=True, exist_ok=True)
    rng = random.Random(20)
    dump = lambda data: json.dumps(data, ensure_ascii=True, separators=(",", ":")) + "\n"
    for name, make in LAYOUTS.items():
        tokenizer = make()
        (OUT / f"{name}.json").write_text(compact(json.loads(tokenizer.to_str())) + "\n", encoding="utf-8")
        prefix = tokenizer.encode("", add_special_tokens=True).ids
        (OUT / f"{name}.samples.json").write_text(
            dump({"prefix": prefix, "samples": samples(tokenizer, rng, 1)}), encoding="utf-8")
    # Features share most vocabularies, which are by far the largest part; each is kept once.
    shared, found = [], {}
    for name, tokenizer in features():
        data = json.loads(tokenizer.to_str())
        words = {key: data["model"].pop(key) for key in ("vocab", "merges")}
        if words not in shared:
            shared.append(words)
        found[name] = {"words": shared.index(words), "tokenizer": data, "samples": samples(tokenizer, rng, 3)}
    (OUT / "features.json").write_text(dump({"words": shared, "features": found}), encoding="utf-8")


def check_one(program, name, tokenizer, count, folder, seed):
    rng = random.Random(f"{name} {seed}")
    path = pathlib.Path(folder) / f"{name}.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    texts = [random_string(rng) for _ in range(count)] + list(sweep())
    sequences = [random_ids(tokenizer, rng) for _ in range(count // 10)]
    lines = [json.dumps(t) for t in texts] + [json.dumps(s) for s in sequences]
    answer = subprocess.run([program, "--answer", str(path)], input="\n".join(lines) + "\n", capture_output=True, text=True)
    if answer.returncode:
        sys.exit(f"{name}: {program} failed: {answer.stderr}")
    answers = answer.stdout.splitlines()
    if len(answers) != len(lines):
        sys.exit(f"{name}: {len(answers)} answers to {len(lines)} questions")
    wrong = broken = 0
    for question, line in zip(texts + sequences, answers):
        ids, _, text = line.partition("\t")
        ids, text = [int(i) for i in ids.split()], bytes.fromhex(text).decode("utf-8", "replace")
        if isinstance(question, str):
            expected = expectation(tokenizer, question)
            same = expected == (ids, text)
        else:
            expected = (question, tokenizer.decode(question, skip_special_tokens=False))
            # For bytes that form no character the library writes U+FFFD, by other rules than Python; mtrain the bytes.
            broken += "\ufffd" in expected[1]
            same = "\ufffd" in expected[1] or expected[1] == text
        if not same:
            wrong += 1
            if wrong <= 3:
                print(f"{name}: {question!r}\n  expected {expected!r}\n  mtrain   {(ids, text)!r}")
    print(f"{name}: {len(texts)} strings, {len(sequences)} sequences of ids ({broken} with unfinished characters), {wrong} differ",
          flush=True)
    return wrong


def check(program, count, feature_count, seed):
    import tempfile
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, make in LAYOUTS.items():
            wrong += check_one(program, name, make(), count, folder, seed)
        for name, tokenizer in features():
            wrong += check_one(program, name, tokenizer, feature_count, folder, seed)
    if wrong:
        sys.exit(f"{wrong} results differ from those of tokenizers {VERSION}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="PROGRAM", help="compare this bench_tokenizer with the library")
    parser.add_argument("--strings", type=int, default=100000, help="random strings for each layout")
    parser.add_argument("--feature-strings", type=int, default=10000, help="random strings for each feature")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if tokenizers.__version__ != VERSION:
        sys.exit(f"tokenizers is {tokenizers.__version__}, and this script needs {VERSION}")
    if options.check:
        check(options.check, options.strings, options.feature_strings, options.seed)
    else:
        write()


if __name__ == "__main__":
    main()
