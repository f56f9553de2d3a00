#!/usr/bin/env python3
"""Prints what the last run of scripts/test.sh cost: its phases, the suites of tests, and the build.

  scripts/test_times.py [build folder, default build/release]

Seconds are those of the wall clock. Several tests and compilers run at once.
"""
import collections
import pathlib
import re
import sys

ROWS = 12                       # of the longest tests, and of the targets that took longest to build
RESULT = re.compile(r"Test +#\d+: (\S+) \.*\s*(?:Passed|\*\*\*\w+) +([\d.]+) sec")
# The first pattern that a test's name matches decides. docs/testing.md describes the suites.
SUITES = (("unit", r"unit_"), ("parity", r"parity_|overlap_steps$"), ("emulated CUDA", r"cuda_emulator"),
          ("instruction sets", r"kernels_isa_"), ("process", ""))


def suite_of(name):
    return next(suite for suite, pattern in SUITES if re.match(pattern, name))


def read_tests(build):
    """-> (name, seconds) of every test in the logs of this build folder; a test that ran twice is there twice."""
    return [(m[1], float(m[2])) for log in sorted(build.glob("test*.log"))
            for m in RESULT.finditer(log.read_text(errors="replace"))]


def read_build(build):
    """-> {target: [seconds, objects]} of the last compilation of each object."""
    last = {}
    for line in (build / ".ninja_log").read_text().splitlines():
        if not line.startswith("#"):
            begin, end, _, output, _ = line.split("\t")
            last[output] = (int(end) - int(begin)) / 1000
    targets = collections.defaultdict(lambda: [0.0, 0])
    for output, seconds in last.items():
        if found := re.search(r"CMakeFiles/(?:mtrain_)?([^/]+)\.dir/", output):
            targets[found[1]][0] += seconds
            targets[found[1]][1] += 1
    return targets


def main():
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release")
    if not (build / ".ninja_log").exists():
        raise SystemExit(f"test_times.py: {build} has no build; run scripts/test.sh first")
    if (build / "phases.txt").exists():
        print("phases of the last run of scripts/test.sh")
        print((build / "phases.txt").read_text(), end="")
    tests, suites = read_tests(build), collections.defaultdict(list)
    for name, seconds in tests:
        suites[suite_of(name)].append(seconds)
    print(f"{'suite':<18} {'tests':>5} {'seconds':>8} {'longest':>8}")
    for suite, _ in SUITES:
        if suites[suite]:
            print(f"{suite:<18} {len(suites[suite]):>5} {sum(suites[suite]):>8.0f} {max(suites[suite]):>8.0f}")
    print("longest tests")
    for name, seconds in sorted(tests, key=lambda t: -t[1])[:ROWS]:
        print(f"{seconds:>8.0f} s  {name}")
    targets = read_build(build)
    print(f"build: {sum(n for _, n in targets.values())} objects, {sum(s for s, _ in targets.values()):.0f} s of compilers, "
          "the most in these targets")
    for target, (seconds, objects) in sorted(targets.items(), key=lambda t: -t[1][0])[:ROWS]:
        print(f"{seconds:>8.0f} s  {target}, {objects} objects")


if __name__ == "__main__":
    main()
