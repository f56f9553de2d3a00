#!/usr/bin/env python3
"""Compares mtrain's chat templates with Jinja2, as transformers configures it.

  scripts/check_templates.py RENDER [--conversations N] [--seed N] [--folder DIR] [--write]

RENDER is the program test_render_template (test/support/render_template.cpp). Every template of test/golden/chat, and of
DIR if one is given (*.jinja, and chat_template in tokenizer_config.json), is rendered with N random conversations by both.
The texts and the spans of {% generation %} must be equal; where Jinja2 throws, mtrain must, too. The snippets of
test/golden/chat/snippets.txt are compared likewise. Needs Jinja2: pip install jinja2.

--write also writes test/golden/chat/expected.json for the test unit_data. It holds a few conversations and all snippets,
with Jinja2's results at a fixed date.
"""
import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.sandbox

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "test" / "golden" / "chat"
FIXED = datetime.datetime(2025, 3, 9, 7, 5, 2)
# What mtrain refuses by design, and Jinja2 does not.
REFUSED = ("not supported", "does not fit into 64 bits", "has no text", "no members like", "needs the name of")


class Generation(jinja2.ext.Extension):
    """The block `generation`: records which part of the text it made."""

    tags = {"generation"}
    blocks, spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("record")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def record(self, caller):
        text = caller()
        begin = sum(len(block.encode()) for block in Generation.blocks)
        Generation.spans.append([begin, begin + len(text.encode())])
        return text


def environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: (now or datetime.datetime.now()).strftime(form)
    return env


def by_jinja(template, variables):
    try:
        Generation.blocks, Generation.spans = [], []
        for block in template.generate(**json.loads(json.dumps(variables))):
            Generation.blocks.append(block)
        return {"text": "".join(Generation.blocks), "generated": Generation.spans}
    except Exception as error:  # any: templates fail as Python does
        return {"error": f"{type(error).__name__}: {error}"}


def by_mtrain(program, source, cases, track):
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", newline="") as file:
        file.write(source)
        file.flush()
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        run = subprocess.run([program, file.name] + ["--track"] * track, input=lines, capture_output=True, text=True)
    out = [json.loads(line) for line in run.stdout.split("\n") if line]
    if len(out) == 1 and run.returncode == 2:  # a mistake of syntax
        return out * len(cases)
    if len(out) != len(cases):
        sys.exit(f"{program} ended with {run.returncode} after {len(out)} of {len(cases)} lines: {run.stderr}")
    return out


WORDS = ["the", "sum", "of", "two", "Zürich", "naïve", "東京", "λ", "emoji 🙂", "it's", '"quoted"', "<b>", "a&b", "{{ x }}",
         "{% raw %}", "\\n", "<|im_end|>", "</s>", "[INST]", "3.5", "don’t", "/no_think", "x=1;", "İstanbul", "ß", "\t"]


def text(rng):
    body = " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 8)))
    body = rng.choice(["", "", " ", "\n", "  \n\n"]) + body + rng.choice(["", "", "\n", " ", "\n\n", "."])
    return body.replace(" the ", "\n") if rng.random() < 0.3 else body


def value(rng, depth=0):
    kinds = ["text", "int", "float", "bool", "none"] + ["list", "dict"] * (depth < 2)
    kind = rng.choice(kinds)
    if kind == "list":
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind == "dict":
        return {rng.choice("abcdeXY") + str(i): value(rng, depth + 1) for i in range(rng.randint(0, 3))}
    return {"text": text(rng), "int": rng.randint(-10**6, 10**12), "float": rng.choice([0.5, 1e-7, 3.0, 1e22, -2.25]),
            "bool": rng.random() < 0.5, "none": None}[kind]


def schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean"] + ["array", "object"] * (depth < 2))
    out = {"type": kind}
    if rng.random() < 0.6:
        out["description"] = text(rng)
    if kind == "array" and rng.random() < 0.8:
        out["items"] = schema(rng, depth + 1)
    if kind == "object" or depth == 0:
        out["type"] = "object"
        out.pop("items", None)
        out["properties"] = {f"p{i}": schema(rng, depth + 1) for i in range(rng.randint(0, 3))}
        out["required"] = [name for name in out["properties"] if rng.random() < 0.5]
    if kind == "string" and rng.random() < 0.3:
        out["enum"] = ["a", "b"]
    if rng.random() < 0.2:
        out["default"] = value(rng, 2)
    return out


def tool(rng):
    function = {"name": rng.choice(["add", "weather", "search"]), "description": text(rng), "parameters": schema(rng)}
    return {"type": "function", "function": function}


def assistant(rng, with_calls):
    message = {"role": "assistant", "content": text(rng)}
    if rng.random() < 0.3:
        message["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)
    if rng.random() < 0.2:
        message["reasoning_content"] = message["thinking"] = text(rng)
    if with_calls:
        message["content"] = rng.choice([None, "", text(rng)])
        call = lambda: {"id": "abcdef123", "type": "function",
                        "function": {"name": "add", "arguments": {f"k{i}": value(rng) for i in range(rng.randint(0, 3))}}}
        message["tool_calls"] = [call() for _ in range(rng.choice([1, 1, 1, 2]))]
    return message


def conversation(rng):
    """Mostly the turns that all templates accept, and sometimes what some refuse."""
    tools = rng.random() < 0.35
    parts = rng.random() < 0.08
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text(rng)})
    for _ in range(rng.randint(1, 4)):
        content = text(rng) if not parts else [{"type": "text", "text": text(rng)}, {"type": "image"}]
        messages.append({"role": "user", "content": content})
        if tools and rng.random() < 0.5:
            messages.append(assistant(rng, True))
            messages.append({"role": "tool", "tool_call_id": "abcdef123", "content": text(rng)})
        messages.append(assistant(rng, False))
    if rng.random() < 0.35:
        messages.pop()
    if rng.random() < 0.06:
        messages.insert(rng.randint(0, len(messages)), {"role": rng.choice(["user", "assistant", "critic"]), "content": "?"})
    case = {"messages": messages, "tools": [tool(rng) for _ in range(rng.randint(1, 2))] if tools else None,
            "documents": [{"title": "t", "text": text(rng)} for _ in range(2)] if rng.random() < 0.15 else None,
            "add_generation_prompt": rng.random() < 0.4, "bos_token": "<s>", "eos_token": "</s>"}
    for name, make in {"enable_thinking": lambda: rng.random() < 0.5, "date_string": lambda: "26 Jul 2024",
                       "thinking": lambda: True, "reasoning_effort": lambda: "high", "custom_tools": lambda: [tool(rng)],
                       "tools_in_user_message": lambda: False, "controls": lambda: {"length": "short"}}.items():
        if rng.random() < 0.2:
            case[name] = make()
    return case


def templates(folder):
    found = sorted(GOLDEN.glob("*.jinja")) + (sorted(folder.rglob("*.jinja")) if folder else [])
    sources = [(path.stem if path.parent == GOLDEN else str(path), path.read_text()) for path in found]
    for path in sorted(folder.rglob("tokenizer_config.json")) if folder else []:
        chat = json.loads(path.read_text()).get("chat_template")
        named = chat if isinstance(chat, list) else [{"name": "default", "template": chat}] if chat else []
        sources += [(f"{path}:{entry['name']}", entry["template"]) for entry in named]
    return sources


def same(expected, got, tracked):
    if "error" in expected or "error" in got:
        return "error" in expected and "error" in got
    return expected["text"] == got["text"] and (not tracked or expected["generated"] == got["generated"])


def check_families(program, folder, count, seed):
    wrong = 0
    for name, source in templates(folder):
        rng = random.Random(f"{seed} {name}")
        cases = [conversation(rng) for _ in range(count)]
        template = environment(None).from_string(source)
        tracked = "generation %}" in source or "generation -%}" in source
        expected = [by_jinja(template, case) for case in cases]
        got = by_mtrain(program, source, cases, tracked)
        bad = [i for i in range(count) if not same(expected[i], got[i], tracked)]
        rendered = sum("text" in e for e in expected)
        spans = sum(len(e["generated"]) for e in expected if "text" in e) if tracked else 0
        print(f"{name}: {count} conversations, {rendered} rendered, {count - rendered} refused by both, "
              f"{spans} spans, {len(bad)} differ")
        for i in bad[:3]:
            print("  variables:", json.dumps(cases[i], ensure_ascii=False)[:2000])
            print("  Jinja2:   ", json.dumps(expected[i], ensure_ascii=False)[:2000])
            print("  mtrain:   ", json.dumps(got[i], ensure_ascii=False)[:2000])
        wrong += len(bad)
    return wrong


def snippets():
    return [s for s in (GOLDEN / "snippets.txt").read_text().split("\n---\n") if s.strip("\n")]


def variables_of_snippets():
    return json.loads((GOLDEN / "snippets.json").read_text())


def by_jinja_source(source, variables, now):
    try:
        template = environment(now).from_string(source)
    except Exception as error:  # syntax, and what Jinja2 computes when it compiles
        return {"error": f"{type(error).__name__}: {error}"}
    return by_jinja(template, variables)


def check_snippets(program):
    wrong = refused = 0
    for source in snippets():
        expected = by_jinja_source(source, variables_of_snippets(), None)
        got = by_mtrain(program, source, [variables_of_snippets()], "generation" in source)[0]
        if same(expected, got, "generation" in source):
            continue
        if any(reason in got.get("error", "") for reason in REFUSED):
            refused += 1
            continue
        wrong += 1
        print(f"  {source!r}\n  Jinja2: {expected}\n  mtrain: {got}")
    print(f"snippets: {len(snippets())}, {refused} refused by mtrain alone, {wrong} differ")
    return wrong


def write_goldens(program):
    out = {"families": [], "snippets": []}
    for name, source in templates(None):
        rng = random.Random(f"golden {name}")
        template = environment(FIXED).from_string(source)
        tracked = "generation %}" in source or "generation -%}" in source
        cases = []
        while len(cases) < 5:
            case = conversation(rng)
            result = by_jinja(template, case)
            if "text" in result and len(json.dumps(case)) < 1500:
                cases.append({"variables": case, "text": result["text"],
                              "generated": result["generated"] if tracked else []})
        out["families"].append({"name": name, "cases": cases})
    for source in snippets():
        expected = by_jinja_source(source, variables_of_snippets(), FIXED)
        got = by_mtrain(program, source, [variables_of_snippets()], False)[0]
        refused = "text" in expected and any(reason in got.get("error", "") for reason in REFUSED)
        entry = {"source": source}
        if refused or "error" in expected:
            entry["refused"] = True
        else:
            entry["text"] = expected["text"]
        out["snippets"].append(entry)
    lines = ['{"families": [']
    lines += [json.dumps(f, ensure_ascii=False) + "," for f in out["families"][:-1]] + [json.dumps(out["families"][-1], ensure_ascii=False)]
    lines += ['], "snippets": [']
    lines += [json.dumps(s, ensure_ascii=False) + "," for s in out["snippets"][:-1]] + [json.dumps(out["snippets"][-1], ensure_ascii=False)]
    (GOLDEN / "expected.json").write_text("\n".join(lines + ["]}"]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    o = parser.parse_args()
    if o.write:
        write_goldens(o.program)
    wrong = check_families(o.program, o.folder, o.conversations, o.seed) + check_snippets(o.program)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
