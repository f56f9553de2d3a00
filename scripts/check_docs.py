#!/usr/bin/env python3
"""Checks the Markdown pages as a reader sees them, without a network.

  scripts/check_docs.py [root]               the checks
  scripts/check_docs.py --commands PAGE...   the commands of these pages, for scripts/check_readme.sh
  scripts/check_docs.py --options PAGE...    the options that their text names, for scripts/check_readme.sh

A table has a header line, equally many cells in every row, and short cells. A link leads to a file and to a heading
that exist. A sentence has at most 35 words. Commands stand in blocks that begin with ```bash, which the shell can parse.
A patch for `git apply` fits the sources.
A comment above such a block says how scripts/check_readme.sh treats it:

  <!-- not run: reason -->     never runs it
  <!-- builds: reason -->      runs it only if check_readme.sh builds the programs
  <!-- exit code: N -->        expects this exit code of each of its commands
"""
import itertools
import pathlib
import re
import subprocess
import sys

from check_files import Report, Tree, is_in
from check_source import line_of

WORDS, CELL, HOW_TO_LINES = 35, 200, 80
PROGRAMS = re.compile(r"(?:\$ )?(?:mtrain|mtrain-launch|scripts/\w+\.(?:sh|py)|cmake|ctest|cpack|export|eval) +\S")
FENCE = re.compile(r" {0,3}```(\S*)")
MARK = re.compile(r"<!-- (not run|builds|exit code): *(.*?) *-->")
LINK = re.compile(r"\]\(([^()\s]+)\)")
CELL_BORDER = re.compile(r"(?<!\\)\|")
DELIMITER = re.compile(r":?-+:?")
# A sentence, or a clause before a colon or semicolon, ends at one of these before a blank.
SENTENCE_END = re.compile(r"(?<=[.!?:;])[)*\"]*\s+")
# Measurements are records of their day, and the program writes the generated pages.
RECORDS, GENERATED = "scripts/bench/results", "docs/reference"


class Block:
    """A fenced block: the line of its fence, its language, its lines, and the mark above it as (kind, text)."""

    def __init__(self, at, language, mark):
        self.at, self.language, self.mark, self.lines = at, language, mark, []


def parse(text):
    """-> (blocks, prose): prose has the (number, line) of all lines outside of blocks."""
    blocks, prose, block, mark = [], [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if block:
            if fence:
                block, mark = None, None
            else:
                block.lines.append(line)
            prose.append((number, ""))
        elif fence:
            block = Block(number, fence[1], mark)
            blocks.append(block)
            prose.append((number, ""))
        else:
            found = MARK.fullmatch(line.strip())
            mark = (found[1], found[2]) if found else mark if not line.strip() else None
            prose.append((number, line))
    return blocks, prose


def is_complete(command):
    """Whether the shell reads these lines as one or more complete commands."""
    if command.endswith("\\"):
        return False
    run = subprocess.run(["bash", "-n"], input=command + "\n", capture_output=True, text=True, check=False)
    return run.returncode == 0 and not run.stderr


def commands(block):
    """-> [(line number, command)] and the first line of an incomplete command, or None."""
    found, command, begin = [], "", None
    for number, line in enumerate(block.lines, block.at + 1):
        if not command and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begin = begin if command else number
        command = f"{command}\n{line}" if command else line
        if is_complete(command):
            found.append((begin, command))
            command = ""
    return found, begin if command else None


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    found = set()
    for _, line in parse(text)[1]:
        heading = re.match(r"#{1,6} +(.*)", line)
        if heading:
            name, n = slug(heading[1]), 0
            while (f"{name}-{n}" if n else name) in found:
                n += 1
            found.add(f"{name}-{n}" if n else name)
    return found


def check_blocks(path, blocks, report):
    for block in blocks:
        if block.language == "bash":
            _, broken = commands(block)
            if broken:
                report.error(path, broken, "bash cannot parse this command")
            if block.mark and not block.mark[1]:
                report.error(path, block.at - 1, f"<!-- {block.mark[0]}: --> needs a text after the colon")
            if block.mark and block.mark[0] == "exit code" and not block.mark[1].isdigit():
                report.error(path, block.at - 1, f"'{block.mark[1]}' is not an exit code")
        else:
            if block.mark:
                report.error(path, block.at - 1, f"<!-- {block.mark[0]} --> stands above a block that is not ```bash")
            if not block.language:
                report.error(path, block.at, "a block needs a language: ```bash for commands, ```text for output")
            for number, line in enumerate(block.lines, block.at + 1):
                if PROGRAMS.match(line) and block.language in ("", "text", "sh"):
                    report.error(path, number, "a command outside of a ```bash block, where nothing runs it")


def check_patches(tree, path, blocks, report):
    for block in blocks:
        for number, command in commands(block)[0] if block.language == "bash" else ():
            patch = re.fullmatch(r"git apply <<'(\w+)'\n(.*\n)\1", command, flags=re.S)
            if not patch:
                continue
            run = subprocess.run(["git", "apply", "--check"], input=patch[2], cwd=tree.root, capture_output=True, text=True,
                                 check=False)
            if run.returncode != 0:
                report.error(path, number, f"the patch does not fit: {run.stderr.strip()}")


def check_tables(path, prose, report, most):
    columns, header = 0, None
    for at, (number, line) in enumerate(prose):
        if not line.startswith("|"):
            columns, header = 0, None
            continue
        cells = CELL_BORDER.split(line.strip())
        if len(cells) < 3 or cells[0] or cells[-1]:
            report.error(path, number, "a row of a table ends with |")
            continue
        cells = [c.strip() for c in cells[1:-1]]
        if header is None:
            header, columns = number, len(cells)
            below = prose[at + 1][1] if at + 1 < len(prose) else ""
            if not all(DELIMITER.fullmatch(c.strip()) for c in CELL_BORDER.split(below.strip())[1:-1] or [""]):
                report.error(path, number, "a table without a header line and |---| below it does not render")
        if len(cells) != columns:
            report.error(path, number, f"{len(cells)} cells under a header of {columns}; write \\| for a bar in a cell")
        for cell in cells:
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
            if most and len(shown) > most:
                report.error(path, number, f"a cell of {len(shown)} characters, more than {most}: "
                             f"'{shown[:50]} ...'; move the rest below the table")


def check_links(tree, path, prose, report):
    for number, line in prose:
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            parts = []
            for part in (path.parent / name).parts if name else path.parts:
                if part == "..":
                    if not parts:
                        break
                    parts.pop()
                else:
                    parts.append(part)
            file = pathlib.PurePosixPath(*parts)
            if file not in tree.files and not any(f.parts[:len(parts)] == file.parts for f in tree.files):
                report.error(path, number, f"the link {target} leads to no file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(tree.text(file)):
                report.error(path, number, f"the link {target} leads to no heading")


def paragraphs(prose):
    """-> (number, text) of each paragraph and item of a list."""
    lines, begin = [], 0
    for number, line in [*prose, (0, "")]:
        is_text = line.strip() and not re.match(r"[|#<]|    ", line)
        if lines and (not is_text or re.match(r"\s*(?:[-*]|\d+\.) ", line)):
            yield begin, " ".join(lines)
            lines = []
        if is_text:
            begin = begin if lines else number
            lines.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip())


def check_sentences(path, prose, report):
    for number, text in paragraphs(prose):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
        for sentence in SENTENCE_END.split(text):
            words = len(sentence.split())
            if words > WORDS:
                report.error(path, number, f"a sentence of {words} words, more than {WORDS}: '{sentence[:60]} ...'")


def check_index(tree, report):
    index = pathlib.PurePosixPath("docs/README.md")
    if index not in tree.files:
        return
    listed = {link.partition("#")[0] for link in LINK.findall(tree.text(index))}
    for path in tree.files:
        if path.suffix == ".md" and is_in(path, "docs") and path != index:
            if str(path.relative_to("docs")) not in listed:
                report.error(path, 1, "docs/README.md does not list this page")


def check(tree, report):
    """-> the number of pages."""
    pages = [p for p in tree.files if p.suffix == ".md" and not is_in(p, "test") and tree.text(p) is not None]
    for path in pages:
        blocks, prose = parse(tree.text(path))
        ours = not is_in(path, RECORDS, GENERATED)
        check_tables(path, prose, report, CELL if ours else 0)
        check_links(tree, path, prose, report)
        if ours:
            check_blocks(path, blocks, report)
            check_patches(tree, path, blocks, report)
            check_sentences(path, prose, report)
        if is_in(path, "docs/how-to") and len(prose) > HOW_TO_LINES + 1:
            report.error(path, 1, f"{len(prose) - 1} lines; a page of docs/how-to has at most {HOW_TO_LINES}")
    check_index(tree, report)
    return len(pages)


def print_commands(pages):
    """Prints <page>:<line> <kind of mark> <its text> <command>, each ended by a zero byte."""
    for page in pages:
        for block in parse(pathlib.Path(page).read_text())[0]:
            if block.language == "bash":
                kind, text = block.mark or ("", "")
                for number, command in commands(block)[0]:
                    for field in (f"{page}:{number}", kind, text, command):
                        sys.stdout.write(field + "\0")


def print_options(pages):
    """Prints <page>:<line>, the command and one of its options for each option of a command within a text or a table."""
    for page in pages:
        text = "\n".join(line for _, line in parse(pathlib.Path(page).read_text())[1])
        for span in re.finditer(r"`((?:mtrain|mtrain-launch)\s[^`]*)`", text):
            words = span[1].split()
            command = " ".join(itertools.takewhile(re.compile(r"[a-z][a-z-]*$").match, words))
            for option in filter(re.compile(r"--[a-z]").match, words):
                print(f"{page}:{line_of(text, span.start())}", command, option.partition("=")[0], sep="\t")


def main():
    printers = {"--commands": print_commands, "--options": print_options}
    if sys.argv[1:] and sys.argv[1] in printers:
        return printers[sys.argv[1]](sys.argv[2:])
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    report, tree = Report(), Tree(root)
    pages = check(tree, report)
    for finding in report.notes + report.errors:
        print(finding)
    print(f"docs: {pages} pages")
    return int(bool(report.errors))


if __name__ == "__main__":
    sys.exit(main())
