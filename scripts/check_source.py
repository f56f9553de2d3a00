#!/usr/bin/env python3
"""Checks rules of the sources that no compiler knows.

  scripts/check_source.py [root]

Backends are chosen by file and not by #if, and code above the layers that know backends does not ask for the kind of
device. Each folder of lib is one namespace, and helpers in it have different names. Comments contain no open work, sources contain no path of one machine, and files
and functions are small enough to hold one idea. Rules that need a compiler's understanding of C++ are clang-tidy's.
"""
import pathlib
import re
import sys

from check_files import CPP, Report, Tree, is_in
from cpp_functions import blank_out, functions
from unnamed_namespaces import unnamed_names

FILE_LINES, FILE_LINES_MOST, FUNCTION_LINES = 600, 900, 80

BACKEND_FOLDERS = ("lib/device", "lib/comm", "lib/ops", "kernels")
BACKEND_IF = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b[^\n]*"
                        r"(CUDA|CUDNN|CUBLAS|NCCL|NVCC|GPU|ROCM|HIP|GLOO|DNNL|OPENBLAS|HAS_CPU|BACKEND|AVX)", re.M)
BACKEND_BRANCH = re.compile(r"\bif\s*(?:constexpr\s*)?\(\s*!?\s*(?:\w+(?:\.|->))*(?:is_)?(cuda|gpu|cpu)\s*[)&|]")
# Only the backend folders, and these folders, which settle a run's settings, may ask for the kind of the device.
SETTLING_FOLDERS = ("lib/recipe", "lib/plan")
DEVICE_BRANCH = re.compile(r"\bis_(?:cuda|gpu|cpu)\s*\(\s*\)|\bcase\s+(?:\w+::)*Device(?:Choice|Kind)::\w+"
                           r"|[=!]=\s*(?:\w+::)*Device(?:Choice|Kind)::\w+|\bDevice(?:Choice|Kind)::\w+\s*[=!]=")
# Exceptions, by file and line of code, with the reason. The list may only become shorter.
KNOWN_DEVICE_BRANCHES = {}
# From a namespace's line to the brace that closes it at the beginning of a line.
NAMESPACE_BLOCK = re.compile(r"^namespace (mtrain[\w:]*) \{(.*?)^\}", re.M | re.S)
FORWARD = re.compile(r"(?:(?:class|struct|enum class) \w+(?: : [\w:]+)?|using [\w:]+);")
# Written in pieces, so that these lines are not findings themselves.
LEFT_BEHIND = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"
                         r"|\b(?i:not (?:yet )?imple" r"mented|unimple" r"mented)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}*)-])/(?:home|root|work|workspace|Users|mnt|opt|srv)/\w[\w./-]*")
SIZED = CPP | {".py", ".sh", ".cmake"}
# Files of other authors, which are kept unchanged.
VERBATIM = ("test/golden",)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def check_backends(tree, report):
    for path in tree.cpp("lib", "apps"):
        if is_in(path, *BACKEND_FOLDERS):
            continue
        text = tree.text(path)
        for match in BACKEND_IF.finditer(text):
            report.error(path, line_of(text, match.start()),
                         f"a preprocessor branch on {match[1]} above {', '.join(BACKEND_FOLDERS)}: "
                         "a missing backend is a file")
        code = blank_out(text)
        for match in BACKEND_BRANCH.finditer(code):
            report.error(path, line_of(code, match.start()),
                         f"a branch on {match[1]} above {', '.join(BACKEND_FOLDERS)}")


def check_device_branches(tree, report, known):
    for path in tree.cpp("lib", "apps"):
        if is_in(path, *BACKEND_FOLDERS, *SETTLING_FOLDERS):
            continue
        text, found = tree.text(path), set()
        for match in DEVICE_BRANCH.finditer(blank_out(text)):
            line = line_of(text, match.start())
            place = (str(path), text.split("\n")[line - 1].strip())
            found.add(place)
            if place not in known:
                report.error(path, line, f"'{match[0]}': a branch on the kind of device above "
                             f"{', '.join(BACKEND_FOLDERS)}; the plan settles it, or the device promises it")
        for place in sorted(set(known) - found):
            if place[0] == str(path):
                report.note(path, 1, f"'{place[1]}' is not here any more: take it off KNOWN_DEVICE_BRANCHES")


def check_namespaces(tree, report):
    for path in tree.cpp("lib"):
        if len(path.parts) < 3:
            continue
        folder = path.parts[1]
        own = "mtrain" if folder == "base" else f"mtrain::{folder}"
        text = blank_out(tree.text(path))
        for match in NAMESPACE_BLOCK.finditer(text):
            name, body = match[1], match[2]
            if name == own or name.startswith(own + "::"):
                continue
            # Other folders' names may be declared here, and words of the whole house be taken into mtrain.
            if all(FORWARD.fullmatch(line.strip()) for line in body.split("\n") if line.strip()):
                continue
            report.error(path, line_of(text, match.start()),
                         f"lib/{folder} is the namespace {own}; in {name} it may only declare what others define")


def check_unnamed_names(tree, report):
    """The sources of a folder are compiled in groups, in which a second helper of the same name collides, or overloads."""
    owners = {}
    for path in tree.cpp("lib", "apps"):
        if path.suffix != ".cpp" or len(path.parts) < 3:
            continue
        text = tree.text(path)
        for name, at in unnamed_names(text):
            owner = owners.setdefault((path.parts[1], name), path)
            if owner != path:
                report.error(path, line_of(text, at), f"{owner} has a {name} in its unnamed namespace, too: share it, or "
                             "name the two differently")


def check_test_namespaces(tree, report):
    """Helpers of the tests of one program are often alike, so each file has its own."""
    for path in tree.cpp("test"):
        own = path.stem if is_in(path, "test/unit") else f"parity_{path.stem}"
        if not is_in(path, "test/unit", "test/parity") or not path.name.endswith("_test.cpp"):
            continue
        if not re.search(rf"^namespace {own} {{$", tree.text(path), re.M):
            report.error(path, 1, f"is not in a namespace of its own, {own}: tests of a program are compiled in groups")


def check_text(tree, report):
    for path in tree.files:
        text = tree.text(path)
        if text is None or is_in(path, *VERBATIM):
            continue
        for match in LEFT_BEHIND.finditer(text):
            report.error(path, line_of(text, match.start()), f"'{match[0]}': finish it or leave it out")
        for match in MACHINE_PATH.finditer(text):
            report.error(path, line_of(text, match.start()), f"'{match[0]}' is a path of one machine")
        if text and not text.endswith("\n"):
            report.error(path, text.count("\n") + 1, "the last line has no line break")
        if "\r" in text:
            report.error(path, line_of(text, text.index("\r")), "a carriage return")
        for match in re.finditer(r"[ \t]+$", text, re.M):
            report.error(path, line_of(text, match.start()), "blanks at the end of the line")


def check_sizes(tree, report):
    """-> the longest file, as (lines, name)."""
    longest = (0, "none")
    for path in tree.files:
        text = tree.text(path)
        if path.suffix not in SIZED or text is None:
            continue
        lines = text.count("\n")
        longest = max(longest, (lines, str(path)))
        if lines > FILE_LINES:
            tell = report.error if lines > FILE_LINES_MOST else report.note
            tell(path, 1, f"{lines} lines; more than {FILE_LINES} are two ideas")
    return longest


def check_functions(tree, report):
    """-> the longest function, as (lines, name)."""
    longest = (0, "none")
    for path in tree.cpp():
        found, unmatched = functions(tree.text(path))
        if unmatched:
            report.error(path, unmatched, "this brace matches none, so the functions after it cannot be measured")
        for function in found:
            longest = max(longest, (function.lines, f"{function.name} of {path}"))
            if function.lines > FUNCTION_LINES:
                report.error(path, function.line, f"{function.name} has {function.lines} lines; "
                             f"more than {FUNCTION_LINES} are two ideas")
    return longest


def check(tree, report, known_device_branches=KNOWN_DEVICE_BRANCHES):
    check_backends(tree, report)
    check_device_branches(tree, report, known_device_branches)
    check_namespaces(tree, report)
    check_unnamed_names(tree, report)
    check_test_namespaces(tree, report)
    check_text(tree, report)
    return check_sizes(tree, report), check_functions(tree, report)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    report, tree = Report(), Tree(root)
    (lines, longest), (function_lines, function) = check(tree, report)
    for finding in report.notes + report.errors:
        print(finding)
    print(f"{len(tree.files)} files; the longest has {lines} lines ({longest}), "
          f"the longest function {function_lines} ({function})")
    return int(bool(report.errors))


if __name__ == "__main__":
    sys.exit(main())
