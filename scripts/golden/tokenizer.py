#!/usr/bin/env python3
"""Writes test/golden/tokenizer/: small tokenizer.json files and the ids that the reference implementation gives.

Needs the PyPI package `tokenizers` (a throw-away virtual environment will do):
    python3 -m venv venv && venv/bin/pip install tokenizers && venv/bin/python scripts/golden/tokenizer.py
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "golden" / "tokenizer"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_WORDS = r"\s?\p{L}+"

TEXT = """
The ship sailed from the harbour in the early morning, and nobody knew where it was going. "We'll see," said the
captain; he'd seen worse. They're 12 men, 345 barrels and 6789 biscuits. It's what they've got - isn't it? I'm sure.
In the year 1984 there were 1000000 stars, and 3.14159 is nearly pi. naïve café, Zürich, façade, jalapeño, Ångström.
def main(argc, argv):
    for i in range(10):
        print(i, argv[i])   # a loop

    return 0
Здравствуй, мир! Как дела? Γειά σου Κόσμε. 你好，世界。今天天气很好。こんにちは世界。안녕하세요 세계. שלום עולם. नमस्ते दुनिया. مرحبا بالعالم
the quick brown fox jumps over the lazy dog; the dog sleeps. THE QUICK BROWN FOX. Mixed Case Words And camelCaseWords.
😀 😃 👍🏽 👨‍👩‍👧‍👦 ❤️ 🇩🇪 → ← ∀x∈ℝ: x² ≥ 0. “quoted” ‘single’ – dash — long … dots.
"""

STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "a", " a", "  a", "a ", "a  ", "a  b", "a   b    c",
    "Hello world", "Hello, world!", " Hello", "hello\nworld", "hello\r\nworld\r\n\r\nagain", "line \n  next\n\n\n end  \n",
    "I'm you're they'll we've he'd it's don't", "I'M YOU'RE THEY'LL WE'VE HE'D IT'S DON'T", "'s's's ''s 'S 'x 'ſ",
    "1", "12", "123", "1234", "12345678", "1,234,567.89", "a1b22c333d4444", "x² y³ ½ Ⅻ ٣٤٥ ১২৩ ①②③",
    "foo(bar)[baz]{qux}", "a+=b;//c\n\treturn  x;\n}\n", "!!!???...---___***", "$100 #tag @user &amp; 50%", "http://x.y/z?q=1&r=2",
    "naïve café", "cafe\u0301 na\u0308ive", "A\u030angstro\u0308m", "q\u0307\u0323 q\u0323\u0307", "\u1100\u1161\u11a8 각",
    "Zürich Ångström ﬁ ﬂ ß ẞ", "e\u0301\u0301\u0301", "\u0301 leading mark",
    "Здравствуй, мир!", "Γειά σου Κόσμε", "你好，世界。", "今天天气很好 123 abc", "こんにちは世界", "カ\u3099ガ", "안녕하세요", "שלום עולם", "नमस्ते",
    "مرحبا بالعالم", "ไทยไม่มีช่องว่าง", "😀😃", "👍🏽", "👨‍👩‍👧‍👦", "❤️ 🇩🇪", "a😀b 😀 c",
    "\u00a0nbsp\u00a0\u00a0x", "\u3000wide\u3000space", "\u2028line\u2029para\u0085nel", "zero\u200bwidth\u200djoin\ufeffbom",
    "mongolian\u180evowel \u180e x", "\u0000nul\u0001\u001f\u007f", "tab\tseparated\tvalues\t", "trailing spaces    ",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> x", "<|endoftext", " <|endoftext|> ", "<tool>call</tool> <tool",
    "\U0010ffff\ue000 private", "é" * 20, "ab" * 60, "the " * 20, "x" * 100, "\n" * 10 + " " * 10 + "\n" + " " * 10 + "y",
    "“quoted” ‘single’ – dash — long … dots", "camelCaseWords snake_case_words KEBAB-CASE", "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𐍈𐌰",
]


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def sequence(*stages):
    return pre_tokenizers.Sequence(list(stages))


VARIANTS = {
    # name: (pre-tokenizer, normalizer, ignore_merges, vocabulary)
    "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, 600),
    "llama3": (sequence(isolated(LLAMA3), bytes_only()), None, True, 600),
    "qwen2": (sequence(isolated(QWEN2), bytes_only()), normalizers.NFC(), False, 600),
    "prefix": (pre_tokenizers.ByteLevel(add_prefix_space=True), None, False, 300),
    "digits": (sequence(pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)),
               None, False, 300),
    "starcoder": (sequence(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
                  None, False, 300),
    "removed": (sequence(pre_tokenizers.Split(Regex(r"\s+"), "removed"), bytes_only()), None, False, 300),
    "previous": (sequence(pre_tokenizers.Split(" ", "merged_with_previous"), bytes_only()), None, False, 300),
    "next": (sequence(pre_tokenizers.Split(Regex(r"[\s\p{P}]"), "merged_with_next"), bytes_only()), None, False, 300),
    "contiguous": (sequence(pre_tokenizers.Split(Regex(r"[\r\n]"), "contiguous"), isolated(DEEPSEEK_WORDS), bytes_only()),
                   None, False, 300),
    "inverted": (sequence(pre_tokenizers.Split(Regex(r"\p{L}+|\u0031"), "removed", invert=True), bytes_only()), None, False, 300),
}


def build(name, pre_tokenizer, normalizer, ignore_merges, vocabulary):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    data = json.loads(tokenizer.to_str())
    if ignore_merges:
        # A word of the vocabulary that no merge makes: only ignore_merges finds it.
        data["model"]["vocab"]["Ġsnake"] = len(data["model"]["vocab"])
        for token in data["added_tokens"]:
            token["id"] += 1
    if name == "gpt2":  # the older way to write merges
        data["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return Tokenizer.from_str(text)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    expected = {"strings": STRINGS, "ids": {}}
    for name, settings in VARIANTS.items():
        tokenizer = build(name, *settings)
        expected["ids"][name] = [tokenizer.encode(s, add_special_tokens=False).ids for s in STRINGS]
    text = json.dumps(expected, ensure_ascii=True, separators=(",", ":"))
    (OUT / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
