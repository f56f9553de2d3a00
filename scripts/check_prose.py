#!/usr/bin/env python3
"""Checks that comments, pages and messages are written in plain English.

  scripts/check_prose.py [root]                  the checks, for the files and folders of CLEAN
  scripts/check_prose.py [root] --all            the same for all files
  scripts/check_prose.py [root] --only PATH...   the same for these files and folders

Refuses the words of RETIRED, and sentences of more than 35 words in comments. scripts/check_docs.py has the same limit
for pages. The checks read comments of every language, docstrings, pages without their blocks, and, of lib and apps,
string literals.
"""
import argparse
import ast
import inspect
import io
import pathlib
import re
import sys
import tokenize

from check_docs import RECORDS, GENERATED, SENTENCE_END, parse
from check_files import CPP, Report, Tree, is_in

WORDS = 35
CLEAN = ("README.md", "CONTRIBUTING.md", "CMakeLists.txt", ".clang-tidy", "docs", "recipes", "scripts", "test", "kernels", "lib",
         "apps")
# Users read the string literals of these folders.
MESSAGES = ("lib", "apps")
# This file and its test quote the words.
QUOTING = ("scripts/check_prose.py", "scripts/check_selftest.py")

# A retired pattern, and what to write instead. The text has one blank between words, and no code spans.
RETIRED = [(re.compile(pattern, re.I), instead) for pattern, instead in (
    (r"\bin the place of\b", "instead of"),
    (r"\b(?:go|goes|going|gone|went) on(?= (?:with|from|in|as|until|while|after|when|where|without|and|if|by)\b|[.,;:)]|$)",
     "continues or resumes"),
    (r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|better\b|\w+er than\b)", "is not a, are not"),
    (r"\banother (?:(?!rather|other|more|less)\w+ ){1,3}than\b", "a different ... from"),
    (r"\botherwise than\b", "differently from"),
    (r"\b(?:in|on) the mean\b(?! (?:of|over)\b)", "on average, or unbiased"),
    (r"\bround(?:s|ed|ing)?\b[^.;:]{0,50}\bat random\b|\brandom rounding\b", "stochastic rounding"),
    (r"\bproducts? of (?:matri|experts)|\bmatri(?:x|ces'?) products?\b", "GEMM, or matrix multiplication"),
    (r"\bwish(?:es|ed)?\b", "request"),
    (r"\bwhat of\b", "two sentences"),
    (r"\b(?:tell|tells|told|telling) of\b|\b(?:is|are|was|were|be) told\b(?! apart)", "reports or prints; is passed, or learns"),
    (r"\b(?:say|says|said) of\b", "describes, or says about"),
    (r"\bnothing of (?:it|them|this|that)\b", "none of it, or is ignored"),
    (r"\banew\b", "again"),
    (r"(?<![\w-])behind\b(?!-)", "after, for an order"),
)]
# Communication hides behind compute, and a process leaves files behind.
MAY_BE_BEHIND = re.compile(r"\bhid(?:e|es|den|ing)?\b|\bexposed\b|\b(?:leave|leaves|left|leaving)\b", re.I)

CPP_TOKEN = re.compile(r'//(?P<line>[^\n]*)|/\*(?P<block>[\s\S]*?)\*/|R"(?P<tag>\w*)\((?P<raw>[\s\S]*?)\)(?P=tag)"'
                       r'|"(?P<text>(?:\\.|[^"\\\n])*)"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'')


class Passage:
    """Lines of prose that belong together: (line number, text) of each."""

    def __init__(self, lines, is_comment=True):
        self.lines, self.is_comment = lines, is_comment


def cpp_passages(text):
    """-> comments, and then string literals; neighbouring literals are one passage."""
    comments, literals, end, number, at = [], [], -1, 1, 0
    for token in CPP_TOKEN.finditer(text):
        number += text.count("\n", at, token.start())
        at = token.start()
        if token["line"] is not None:
            column = token.start() - text.rfind("\n", 0, token.start())
            alone = not text[token.start() - column + 1:token.start()].strip()
            previous = comments[-1] if comments else None
            if previous and alone and previous[0] == column and previous[1][-1][0] == number - 1:
                previous[1].append((number, token["line"]))
            else:
                comments.append((column, [(number, token["line"])]))
        elif token["block"] is not None:
            lines = [line.strip(" *") for line in token["block"].split("\n")]
            comments.append((-1, list(enumerate(lines, number))))
        elif token["text"] is not None or token["raw"] is not None:
            start = text.rfind("\n", 0, token.start()) + 1
            if not text.startswith("#", start):
                literal = re.sub(r"\\[nt]", "  ", token["text"] or token["raw"] or "")
                lines = list(enumerate(literal.split("\n"), number))
                if literals and end >= 0 and not text[end:token.start()].strip():
                    literals[-1].extend(lines)
                else:
                    literals.append(lines)
                end = token.end()
    return [Passage(lines) for _, lines in comments], [Passage(lines, False) for lines in literals]


def joined_comments(comments):
    """(line, column, text, alone) of each comment -> passages; lines of one column that follow each other are one."""
    passages = []
    for line, column, text, alone in comments:
        if passages and alone and passages[-1][0] == column and passages[-1][1][-1][0] == line - 1:
            passages[-1][1].append((line, text))
        else:
            passages.append((column, [(line, text)]))
    return [Passage(lines) for _, lines in passages]


def python_passages(text):
    comments = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            comments.append((*token.start, token.string[1:], not token.line[:token.start[1]].strip()))
    passages = joined_comments(comments)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            lines = inspect.cleandoc(node.body[0].value.value).split("\n")
            passages.append(Passage([(at, " " + line) for at, line in enumerate(lines, node.body[0].lineno)]))
    return passages


def hash_passages(text):
    """Comments of shell, CMake and YAML: a # at the beginning of a word, outside of quotes."""
    comments = []
    for number, line in enumerate(text.split("\n"), 1):
        for hash_ in re.finditer(r"(?:^|(?<=\s))#(?![!])", line):
            before = line[:hash_.start()]
            if not before.strip() or (before.count('"') % 2 == 0 and before.count("'") % 2 == 0):
                comments.append((number, hash_.start(), line[hash_.end():], not before.strip()))
                break
    return joined_comments(comments)


def page_passages(text):
    """Paragraphs, items of lists, and cells of tables."""
    passages, lines = [], []
    for number, line in [*parse(text)[1], (0, "")]:
        if lines and (not line.strip() or re.match(r"\s*(?:[-*|#]|\d+\.) ?", line)):
            passages.append(Passage(lines, False))
            lines = []
        if line.startswith("|"):
            passages.extend(Passage([(number, cell)], False) for cell in line.split("|"))
        elif line.strip():
            lines.append((number, line))
    return passages


def passages_of(path, text):
    if path.suffix in CPP:
        comments, literals = cpp_passages(text)
        return comments + (literals if is_in(path, *MESSAGES) else [])
    if path.suffix == ".py":
        return python_passages(text)
    if path.suffix in (".sh", ".cmake", ".yaml") or path.name in ("CMakeLists.txt", ".clang-tidy"):
        return hash_passages(text)
    if path.suffix == ".md" and not is_in(path, RECORDS, GENERATED):
        return page_passages(text)
    return []


def paragraphs(passage):
    """-> lists of (line number, text) without blanks around the text. A blank line or the bullet of a list begins a
    paragraph. Lines of a comment that are indented, or whose columns are aligned, are drawings, tables and commands:
    they stand alone, and `is_text` is False."""
    paragraph, in_list = [], False
    for number, line in [*passage.lines, (0, "")]:
        bullet = re.match(r"\s*(?:[-*+|]|\d+[.)]) ", line)
        is_block = passage.is_comment and (re.search(r"\S {2,}\S", line) or
                                           re.match(r" {5}" if in_list else r" {3}", line))
        after_list = in_list and not re.match(r" {2}", line)
        if paragraph and (bullet or is_block or after_list or not line.strip()):
            yield paragraph, True
            paragraph = []
        in_list = bool(bullet or (in_list and re.match(r" {2}", line)))
        if is_block and not bullet:
            yield [(number, line.strip())], False
        elif line.strip():
            paragraph.append((number, line.strip(" -*+") if bullet else line.strip()))


def sentences(paragraph):
    """-> (a function from a place in the sentence to its line number, the sentence in one line)"""
    text, begins = "", []
    for number, line in paragraph:
        begins.append((len(text), number))
        text += line + " "
    text = re.sub(r"`[^`]*`", lambda code: "#" * len(code[0]), text.rstrip())
    begin = 0
    for end in [m.end() for m in SENTENCE_END.finditer(text)] + [len(text)]:
        yield (lambda at, begin=begin: max(b for b in begins if b[0] <= begin + at)[1]), text[begin:end]
        begin = end


def check_passage(path, passage, report):
    for paragraph, is_text in paragraphs(passage):
        for line_of, sentence in sentences(paragraph):
            for pattern, instead in RETIRED:
                for match in pattern.finditer(sentence):
                    if match[0].lower() != "behind" or not MAY_BE_BEHIND.search(sentence):
                        report.error(path, line_of(match.start()), f"'{match[0].strip()}': write {instead}")
            words = sum(bool(re.search(r"[\w#]", word)) for word in sentence.split())
            if passage.is_comment and is_text and words > WORDS:
                report.error(path, line_of(0), f"a sentence of {words} words, more than {WORDS}: '{sentence[:60]} ...'")


def check(tree, report, folders=CLEAN):
    """-> the number of files that were read."""
    count = 0
    for path in tree.files:
        text = tree.text(path)
        if text is None or str(path) in QUOTING or not (folders is None or is_in(path, *folders)):
            continue
        passages = passages_of(path, text)
        count += bool(passages)
        for passage in passages:
            check_passage(path, passage, report)
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="PATH")
    args = parser.parse_args()
    report = Report()
    count = check(Tree(args.root), report, None if args.all else args.only or CLEAN)
    for finding in report.errors:
        print(finding)
    print(f"prose: {count} files")
    return int(bool(report.errors))


if __name__ == "__main__":
    sys.exit(main())
