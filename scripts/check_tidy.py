#!/usr/bin/env python3
"""Runs clang-tidy over the files of lib and apps that scripts/tidy_record does not list as they are now.

  scripts/check_tidy.py [--record] [--seconds N] [--all | file...]
    --all      all files, whatever the record says
    --record   adds the files that are clean to the record, each as soon as it was checked; commit the record with them

    --seconds  begins no further source after N seconds, but for files that the last commit changed; the last lines say how many files that leaves

Sources of a folder are checked together, several in one translation unit, since most of the time goes to the headers that
they share. Where clang finds something in a group, or cannot read it, its sources are checked one by one.

The record has a line for each file that was found clean: a hash of its code, of .clang-tidy and of clang-tidy's version.
Comments and white space do not count, but for comments that turn a check off. A changed file is thus checked on every run until it is recorded again. The hash has no part of the headers that a file
includes, since one of a wide header would invalidate hundreds: what a changed header does to unchanged sources that
include it, --all finds, which scripts/test.sh --nightly runs.

.clang-tidy says which checks and why not the others. A header is checked within a source that includes it: its own, else
the first that names it. Files that this configuration does not build (those of a CUDA that is not there) are named, and
so are sources that clang 14 cannot read to the end, which are not recorded.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

from check_files import Tree

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("apps", "lib")       # kernels, tests and benchmarks are held to the rules of check_source.py
RECORD = "scripts/tidy_record"
GROUP = 8
IMPORT = re.compile(r"^ *(?:using [\w:]+;|namespace \w+ = )", re.M)
VERSION = 14                    # Debian 12's; findings of other versions are printed and do not fail


COMMENT = re.compile(r'//[^\n]*|/\*[\s\S]*?\*/|R"(\w*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"'
                     r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'")


def code_of(text):
    """The text without comments and with one blank for all white space between words."""
    kept = COMMENT.sub(lambda m: m[0] if m[0][:2] not in ("//", "/*") or "NOLINT" in m[0] else " ", text)
    return " ".join(kept.split())


def installed_version():
    text = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"version (\d+)", text)[1])


class Record:
    """The files that were found clean, as lines of a hash and a name. Git merges it by keeping the lines of both sides."""

    def __init__(self, tree, version):
        self.tree, self.path = tree, tree.root / RECORD
        self.rules = hashlib.sha256(f"{version}\0{(tree.root / '.clang-tidy').read_text()}".encode()).digest()
        self.lines = self.read()

    def read(self):
        return set(self.path.read_text().splitlines()) if self.path.exists() else set()

    def line(self, name):
        code = code_of((self.tree.root / name).read_text()).encode()
        return f"{hashlib.sha256(self.rules + code).hexdigest()[:16]} {name}"

    def has(self, name):
        return self.line(name) in self.lines

    def add(self, lines):
        """Adds those of these lines whose files are still the same. Lines of files that changed or are gone leave."""
        current = {self.line(str(p)) for p in self.tree.cpp(*FOLDERS)}
        self.lines = (self.read() | lines) & current
        self.path.write_text("".join(f"{line}\n" for line in sorted(self.lines, key=lambda x: x.split(" ")[1])))


def compile_commands(root):
    """Each source with one of its commands, of a build folder that compiles no sources in groups."""
    database = root / "build/tidy/compile_commands.json"
    # A folder that was configured before a source was added does not list it, and its findings would be seen elsewhere.
    lists = [root / "CMakePresets.json", *(p for f in (*FOLDERS, "kernels", "cmake") for p in (root / f).rglob("*")
                                           if p.name == "CMakeLists.txt" or p.suffix == ".cmake"), root / "CMakeLists.txt"]
    if not database.exists() or any(p.exists() and p.stat().st_mtime > database.stat().st_mtime for p in lists):
        subprocess.run(["cmake", "--preset", "release", "-B", "build/tidy", "-DMTRAIN_UNITY=OFF"], cwd=root, check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", "build/tidy", "--target", "generated_sources"], cwd=root, check=True,
                       stdout=subprocess.DEVNULL)
    entries = {}
    for entry in json.loads(database.read_text()):
        # clang cannot read the headers that GCC has precompiled; sources include what they use without them.
        entry["command"] = re.sub(r"-Winvalid-pch|-fpch-preprocess|-include \S*cmake_pch\.hxx", "", entry["command"])
        if pathlib.Path(entry["file"]).exists():   # a source that went may still be listed
            entries.setdefault(os.path.relpath(entry["file"], root), entry)
    return entries


class Sources:
    """Which source to check for a file, among those that are compiled."""

    def __init__(self, compiled, tree):
        self.compiled = compiled
        self.text = {name: (tree.root / name).read_text() for name in sorted(compiled)}
        self.others = {str(p): tree.text(p) for p in tree.cpp() if str(p) not in compiled}

    def of(self, name, seen=()):
        if name in self.compiled:
            return name
        path = pathlib.PurePosixPath(name)
        own = str(path.with_suffix(".cpp"))
        if path.suffix in (".h", ".cuh") and own in self.compiled:
            return own
        # "kernels/rmsnorm.h", "rmsnorm.h" and "../unit/rmsnorm.h" name it; so may another of that name, which does no harm.
        included = re.compile(r'#include "(?:[^"]*/)?' + re.escape(path.name) + '"')
        for source, text in self.text.items():
            if included.search(text):
                return source
        for other, text in self.others.items():   # by way of another header, or a .cu
            if other not in seen and other != name and included.search(text):
                source = self.of(other, (*seen, name))
                if source:
                    return source
        return None


def groups_of(compiled, sources):
    """-> the sources in groups of at most GROUP, which one compiler command serves. Sources that import a name stand alone:
    clang-tidy finds unused imports only in the file that it is given."""
    groups, by_command = [], {}
    for source in sources:
        entry = compiled[source]
        if IMPORT.search(pathlib.Path(entry["file"]).read_text()):
            groups.append([source])
            continue
        command = re.sub(r" -o \S+", "", entry["command"].replace(entry["file"], ""))
        by_command.setdefault((os.path.dirname(source), command), []).append(source)
    for members in by_command.values():
        groups += [members[i:i + GROUP] for i in range(0, len(members), GROUP)]
    return groups


def group_file(database, members):
    return database / f"{members[0].replace('/', '_')}.group.cpp" if len(members) > 1 else None


def write_database(database, root, compiled, groups):
    """Writes a folder of compile commands: a source that is compiled several times stands in it once; so do groups."""
    database.mkdir(exist_ok=True)
    entries = [compiled[source] for members in groups for source in members]
    for members in groups:
        path, first = group_file(database, members), compiled[members[0]]
        if path:
            path.write_text("".join(f'#include "{root / source}"  // NOLINT(bugprone-suspicious-include)\n' for source in members))
            entries.append({**first, "file": str(path), "command": first["command"].replace(first["file"], str(path))})
    (database / "compile_commands.json").write_text(json.dumps(entries))


def check_group(root, database, members):
    """-> the findings in each of the sources, and whether clang could read it."""
    path = group_file(database, members)
    if path:
        findings, all_read = check(root, database, path)
        if all_read and not findings:
            return {source: ([], True) for source in members}
    return {source: check(root, database, source) for source in members}


def check(root, database, source):
    """-> the findings as clang-tidy prints them, and whether clang could read all of the source: version 14 does not know
    all of C++20. What does not compile is for the compiler to say."""
    done = subprocess.run(["clang-tidy", "-p", str(database), "--quiet", str(root / source)],
                          cwd=root, capture_output=True, text=True)
    output = done.stdout.replace(f"{root}/", "")
    if done.returncode != 0 and not output:
        output = f"{source}:1: error: clang-tidy failed: {done.stderr.strip()}\n"
    every = re.split(r"^(?=\S[^\n]*: (?:warning|error): )", output, flags=re.M)
    findings = [f for f in every if f.strip() and "[clang-diagnostic-error]" not in f.split("\n")[0]]
    return findings, len(findings) == len([f for f in every if f.strip()])


def files_of_sources(tree, compiled, names):
    """-> the sources to check, each with those of the files that it is checked for; and the files that are not built."""
    sources, files_of, not_built = Sources(compiled, tree), {}, []
    for name in names:
        source = sources.of(name)
        files_of.setdefault(source, []).append(name) if source else not_built.append(name)
    return files_of, not_built


def changed_files(root):
    """The files that differ from the commit before this one; none outside of a repository."""
    done = subprocess.run(["git", "diff", "--name-only", "HEAD~"], cwd=root, capture_output=True, text=True)
    return set(done.stdout.split()) if done.returncode == 0 else set()


def run(root, arguments):
    tree, version = Tree(root), installed_version()
    record = Record(tree, version)
    recording = "--record" in arguments
    ends = float("inf")
    if "--seconds" in arguments:
        at = arguments.index("--seconds")
        ends = time.monotonic() + float(arguments[at + 1])
        arguments = arguments[:at] + arguments[at + 2:]
    names = [a for a in arguments if not a.startswith("--")]
    every = [str(p) for p in tree.cpp(*FOLDERS)]
    if "--all" in arguments:
        names = every
    elif not names:
        names = [name for name in every if not record.has(name)]
        if version != VERSION:
            print(f"clang-tidy: this is version {version} and not {VERSION}, which nothing is recorded for; --all checks all")
            return 0
    compiled = compile_commands(tree.root)
    files_of, not_built = files_of_sources(tree, compiled, names)
    database = tree.root / "build/tidy/once"
    changed = changed_files(tree.root) if ends < float("inf") else set()
    first = {source for source, files in files_of.items() if changed & {source, *files}}
    groups = groups_of(compiled, sorted(first)) + groups_of(compiled, sorted(files_of.keys() - first))
    write_database(database, tree.root, compiled, groups)

    findings, half_read, left = [], [], []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        before = {source: {record.line(name) for name in (source, *files)} for source, files in files_of.items()}
        pending = {pool.submit(lambda g: check_group(tree.root, database, g)
                               if g[0] in first or time.monotonic() < ends else None, members): members
                   for members in groups}
        for done in concurrent.futures.as_completed(pending):
            if done.result() is None:
                left += [name for source in pending[done] for name in files_of[source]]
                continue
            for source, (found, all_read) in done.result().items():
                for text in found:
                    if text not in findings:
                        findings.append(text)
                        print(text, end="", flush=True)
                if not all_read:
                    half_read.append(source)
                elif recording and not found:
                    record.add(before[source])
    if left:
        print(f"clang-tidy: the time was spent before {len(left)} files, which are not checked")
    if not_built:
        print(f"clang-tidy: not built here, so not checked: {' '.join(not_built)}")
    if half_read:
        print(f"clang-tidy: not read to the end by clang {version}: {' '.join(sorted(half_read))}")
    print(f"clang-tidy {version}: {len(files_of)} sources for {len(names)} files, {len(findings)} findings; "
          f"{sum(map(record.has, every))} of {len(every)} files are recorded as clean")
    if findings and version != VERSION:
        print(f"clang-tidy: this is version {version} and not {VERSION}, so the lines above may be right")
        return 0
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(run(ROOT, sys.argv[1:]))
