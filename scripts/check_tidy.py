#!/usr/bin/env python3
"""Runs clang-tidy over the files that differ from the commit before this one, the working tree included.

  scripts/check_tidy.py [--all | file...]

.clang-tidy says which checks and why not the others. A header is checked within a source that includes it: its own, else
the first that names it; a .cu within the source that the CPU's emulator of CUDA makes of it. Sources that this
configuration does not build (those of a CUDA that is not there) are named and not checked.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

from check_files import CPP, Tree

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
OWN_DATABASE = BUILD / "tidy"   # where a source that is compiled several times stands once
VERSION = 14                    # Debian 12's; findings of other versions are printed and do not fail


def lines_of(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_files():
    """C++ files that differ from HEAD~, or from HEAD where that is the oldest commit here."""
    for base in ("HEAD~", "HEAD"):
        names = lines_of("git", "diff", "--name-only", "--diff-filter=d", base)
        if names is not None:
            names += lines_of("git", "ls-files", "--others", "--exclude-standard")
            return sorted({n for n in names if pathlib.PurePath(n).suffix in CPP})
    raise SystemExit("check_tidy.py: no git history to compare with; name files, or use --all")


def compile_commands():
    """Each source of the release build with one of its commands."""
    if not (BUILD / "compile_commands.json").exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    entries = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        # clang cannot read the headers that GCC has precompiled; sources include what they use without them.
        entry["command"] = re.sub(r"-Winvalid-pch|-fpch-preprocess|-include \S*cmake_pch\.hxx", "", entry["command"])
        entries.setdefault(os.path.relpath(entry["file"], ROOT), entry)
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


def check(source):
    """-> the findings as clang-tidy prints them, and whether clang could read all of the source: version 14 does not know
    all of C++20. What does not compile is for the compiler to say."""
    done = subprocess.run(["clang-tidy", "-p", str(OWN_DATABASE), "--quiet", str(ROOT / source)],
                          cwd=ROOT, capture_output=True, text=True)
    output = done.stdout.replace(f"{ROOT}/", "")
    if done.returncode != 0 and not output:
        output = f"{source}:1: error: clang-tidy failed: {done.stderr.strip()}\n"
    every = re.split(r"^(?=\S[^\n]*: (?:warning|error): )", output, flags=re.M)
    findings = [f for f in every if f.strip() and "[clang-diagnostic-error]" not in f.split("\n")[0]]
    return findings, len(findings) == len([f for f in every if f.strip()])


def main():
    names = sys.argv[1:]
    compiled = compile_commands()
    if names == ["--all"]:
        names = [str(p) for p in Tree(ROOT).cpp()]
    elif not names:
        names = changed_files()
    sources, wanted, left_out = Sources(compiled, Tree(ROOT)), set(), []
    for name in names:
        source = sources.of(name)
        wanted.add(source) if source else left_out.append(name)
    OWN_DATABASE.mkdir(exist_ok=True)
    (OWN_DATABASE / "compile_commands.json").write_text(json.dumps([compiled[s] for s in sorted(wanted)]))

    version = int(re.search(r"version (\d+)", " ".join(lines_of("clang-tidy", "--version")))[1])
    findings, half_read = [], []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, (found, all_read) in zip(sorted(wanted), pool.map(check, sorted(wanted))):
            if not all_read:
                half_read.append(source)
            for text in found:
                if text not in findings:
                    findings.append(text)
                    print(text, end="", flush=True)
    if left_out:
        print(f"clang-tidy: not built here, so not checked: {' '.join(left_out)}")
    if half_read:
        print(f"clang-tidy: not read to the end by clang {version}: {' '.join(half_read)}")
    print(f"clang-tidy {version}: {len(wanted)} sources for {len(names)} files, {len(findings)} findings")
    if findings and version != VERSION:
        print(f"clang-tidy: this is version {version} and not {VERSION}, so the lines above may be right")
        return 0
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
