#!/usr/bin/env python3
"""Runs every test case of a Catch2 program in a process of its own, several at a time.

  scripts/bench/each_test.py [--jobs N] [--each SECONDS] [--under COMMAND] PROGRAM [FILTER ...]

A process cannot use its GPU after an illegal access, and a kernel that hangs never ends. With a process for each case,
neither affects the results of other cases. `--under` is a command that runs the program, such as "compute-sanitizer
--tool memcheck". A case that takes longer than --each is ended. At SIGTERM the script prints the cases that have not
run. The exit code is 1 if a case failed or has not run, and 3 if none did and one took too long.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

from process_groups import GROUP, kill_group

SAID = 30  # last lines of a failed case
TIMED_OUT = 3


class Late(str):
    """Why a case that took too long has no exit code."""


class Cases:
    def __init__(self, args):
        self.args, self.lock, self.running, self.over = args, threading.Lock(), set(), False

    def execute(self, command):
        """-> (exit code or why there is none, its output)."""
        with self.lock:
            if self.over:
                return "ended", ""
            try:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           stdin=subprocess.DEVNULL, **GROUP)
            except OSError as e:
                return f"{command[0]} cannot be started: {e.strerror}", ""
            self.running.add(process)
        code = None
        try:
            said, _ = process.communicate(timeout=self.args.each)
        except subprocess.TimeoutExpired:
            kill_group(process)
            try:  # a process that waits in the driver may not end
                said, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired as e:
                said = e.output or b""
            code = Late(f"longer than {self.args.each:g} s")
        with self.lock:
            self.running.discard(process)
        return code or process.returncode, said.decode(errors="replace")

    def end(self):
        with self.lock:
            self.over = True
            for process in self.running:
                kill_group(process)

    def names(self):
        code, said = self.execute([self.args.program, "--list-test-names-only", *self.args.filters])
        if isinstance(code, str):  # a number is the count of cases
            sys.exit(f"no list of test cases: {code}")
        return [line.strip() for line in said.splitlines() if line.strip()]

    def run(self, name):
        began = time.monotonic()
        # Characters with a meaning in the language of filters.
        exact = re.sub(r"([\\,\[])", r"\\\1", name)
        code, said = self.execute([*shlex.split(self.args.under), self.args.program, exact])
        if code == 0 and "No test cases matched" in said:
            code = "no test"
        return name, code, said, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=max(2, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--each", type=float, default=60)
    parser.add_argument("--under", default="")
    parser.add_argument("program")
    parser.add_argument("filters", nargs="*")
    args = parser.parse_args()
    cases = Cases(args)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=cases.end).start())
    names = cases.names()
    failed, late, left = 0, 0, set(names)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(cases.run, name) for name in names]):
            name, code, said, seconds = done.result()
            if cases.over and code != 0:
                continue
            left.discard(name)
            late += isinstance(code, Late)
            failed += code != 0 and not isinstance(code, Late)
            result = "passed" if code == 0 else f"TIMED OUT ({code})" if isinstance(code, Late) else f"FAILED ({code})"
            print(f"{seconds:6.1f} s  {result}  {name}", flush=True)
            if code != 0:
                print("".join(f"          {line}\n" for line in said.rstrip().splitlines()[-SAID:]), end="", flush=True)
    for name in sorted(left):
        print(f"          not run  {name}")
    print(f"{len(names)} test cases, {failed} failed, {late} timed out, {len(left)} not run" if names else "there are no test cases")
    sys.exit(1 if failed or left or not names else TIMED_OUT if late else 0)


if __name__ == "__main__":
    main()
