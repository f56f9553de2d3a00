#!/usr/bin/env python3
"""Makes ranks fail on purpose (debug.fault) in every phase of a run, and checks what the job does about it.

  test/process/faults_test.py MTRAIN LAUNCH [--nightly] [--table FILE] [--only WORD] [--jobs N]

Each cell is a job of two CPU ranks: a fault, the line that names its culprit, the end of all ranks, the next step after the
restart, and losses that are those of a run without faults, bit for bit. 24 cells run in the test command, all with --nightly,
which also puts each fault on rank 0. --table writes a Markdown table.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("mtrain")
parser.add_argument("launch")
parser.add_argument("--nightly", action="store_true")
parser.add_argument("--table")
parser.add_argument("--only", default="")
parser.add_argument("--jobs", type=int, default=2)
options = parser.parse_args()
MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in (options.mtrain, options.launch))
WORK = pathlib.Path(tempfile.mkdtemp(prefix="mtrain-faults-"))
STEPS, EVERY, EVALUATED = 12, 2, 3
# The limits within which a hang is seen; all others are those of a run.
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: text, validation: text, seq_length: 32}
train: {steps: %d, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
validation: {every_steps: %d, steps: 1}
distributed: {strategy: ddp}
optimizer: {lr: 1e-3}
mixed_precision: fp32
comm: {timeout_s: 6}
checkpoint: {every_steps: %d, async: true, keep: 0}
launch: {start_timeout_s: 20, save_timeout_s: 2, step_timeout_s: 2}
""" % (STEPS, EVALUATED, EVERY)

PHASES = ["rendezvous", "load", "forward", "backward", "collective", "optimizer", "evaluation", "staging", "write", "commit",
          "end"]
OF_LAUNCHES = ["forward", "backward", "collective", "optimizer", "evaluation"]
CELLS = {kind: PHASES for kind in ("kill", "stop", "segfault", "abort", "exception", "async_exception", "node")}
CELLS |= {"disconnect": PHASES[1:], "device_error": OF_LAUNCHES, "stuck_stream": OF_LAUNCHES,
          "io_error": ["load", "write", "commit"], "nan": ["forward", "backward"], "spike": ["backward"], "slow": [None]}
# Each kind and each phase at least once.
QUICK = [("kill", "rendezvous"), ("kill", "collective"), ("kill", "commit"), ("stop", "forward"), ("stop", "write"),
         ("segfault", "backward"), ("segfault", "end"), ("abort", "optimizer"), ("abort", "staging"), ("exception", "load"),
         ("exception", "evaluation"), ("async_exception", "forward"), ("async_exception", "write"),
         ("device_error", "backward"), ("device_error", "collective"), ("slow", None), ("stuck_stream", "optimizer"),
         ("disconnect", "collective"), ("disconnect", "staging"), ("io_error", "load"), ("io_error", "write"),
         ("nan", "backward"), ("spike", "backward"), ("node", "forward")]


class Failure(Exception):
    pass


def step_of(kind, phase):
    if phase in ("rendezvous", "load", "end"):
        return 1
    if kind == "spike":
        return 19  # 16 norms come first
    return {"evaluation": 6, "staging": 6, "write": 6, "commit": 6}.get(phase, 7)


def goes_on(kind, phase, rank):
    """Whether the run continues without a restart: a save fails, or a rank is slow. Only rank 0 commits."""
    saves = phase == "write" or (phase == "commit" and rank == 0)
    return kind == "slow" or (saves and kind in ("io_error", "exception"))


def losses(run):
    """The loss of each step; a later record of a step replaces an earlier one."""
    found = {}
    for line in (WORK / run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            found[record["step"]] = record["loss"]
    return found


def ranks_of(launcher):
    """The pids of the ranks of a launcher."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"MTRAIN_LAUNCHER_PID=%d\0" % launcher in (path / "environ").read_bytes() and os.readlink(path / "exe") == MTRAIN:
                if (path / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(path.name))
        except OSError:
            continue
    return found


class Job:
    """A launcher whose lines of output are kept with their times."""

    def __init__(self, run, *settings, restarts=1, ranks=2):
        self.lines = []
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [LAUNCH, f"--nproc_per_node={ranks}", f"--max_restarts={restarts}", "r.yaml", f"train.run_dir={run}", *settings],
            cwd=WORK, env={**os.environ, "TMPDIR": str(WORK / "tmp")}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True, text=True, errors="replace")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def find(self, pattern, after=0.0):
        """The time and the match of the first line with the pattern."""
        for at, line in list(self.lines):
            match = re.search(pattern, line)
            if match and at >= after:
                return at, match
        return None

    def await_line(self, pattern, seconds):
        while not (found := self.find(pattern)):
            if time.monotonic() - self.began > seconds or (self.process.poll() is not None and not self.reader.is_alive()):
                raise Failure(f"no line: {pattern}\n{self.text()}")
            time.sleep(0.01)
        return found

    def text(self):
        return "\n".join(f"    {at - self.began:7.2f} {line}" for at, line in self.lines)

    def end(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise Failure(f"does not end\n{self.text()}") from None
        self.reader.join(5)
        return code


def expect(condition, what, job):
    if not condition:
        raise Failure(f"{what}\n{job.text()}")


def settings_of(kind, phase):
    if kind == "spike":
        return ["train.steps=24", "train.spike_factor=20"]
    if kind == "slow":
        return ["train.steps=150", "checkpoint.every_steps=0", "validation.every_steps=0"]
    return []


def fault_of(kind, phase, rank):
    fault = {"kind": kind, "rank": rank, "step": step_of(kind, phase) if kind != "slow" else 20}
    if phase:
        fault["phase"] = phase
    if kind in ("slow", "spike"):
        fault["factor"] = 3 if kind == "slow" else 1e6
    return "debug.fault=" + json.dumps(fault).replace('"', "")


def watch_ranks(job, ends):
    """Notes when the ranks that were there at the fault are gone."""
    first = []
    while job.process.poll() is None and not job.find(r"debug\.fault: \w+ on rank"):
        time.sleep(0.005)
        first = ranks_of(job.process.pid) or first
    while any(os.path.exists(f"/proc/{pid}") for pid in first):
        time.sleep(0.01)
    ends.append(time.monotonic())


def run_cell(kind, phase, rank):
    run = f"{kind}-{phase}-{rank}"
    settings = settings_of(kind, phase)
    if phase == "load":  # there is something to load
        shutil.copytree(WORK / "before", WORK / run)
        settings += ["checkpoint.load=latest"]
    job = Job(run, *settings, fault_of(kind, phase, rank))
    ends = []
    watcher = threading.Thread(target=watch_ranks, args=(job, ends), daemon=True)
    watcher.start()
    code = job.end(60)
    watcher.join(5)
    struck = job.find(rf"debug\.fault: {kind} on rank {rank}")
    expect(struck, "the fault has not happened", job)
    struck = struck[0]
    cell = {"kind": kind, "phase": phase or "", "rank": rank}
    if kind == "node":  # nobody is left who could say more than the record of the run
        status = subprocess.run([MTRAIN, "status", run], cwd=WORK, capture_output=True, text=True)
        said = (status.stdout + status.stderr).splitlines()
        cell["culprit"] = ([line for line in said if "nobody holds the folder" in line] or said)[0]
        named = time.monotonic()
        again = Job(run, *[s for s in settings if "load" not in s], "checkpoint.load=latest")
        code = again.end(60)
    elif goes_on(kind, phase, rank):
        pattern = rf"rank {rank} on \S+ computes at" if kind == "slow" else r"(could not be saved|not saved|cannot be saved).*"
        found = job.find(pattern)
        expect(found, "nobody names the culprit", job)
        named, cell["culprit"] = found[0], found[1].string
        expect(kind == "slow" or rank == 0 or f"rank {rank}" in found[1].string, f"not rank {rank} is named", job)
    else:
        found = job.find(r"mtrain-launch: error: (.*)")
        expect(found, "nobody names a culprit", job)
        named, cell["culprit"] = found[0], found[1][1]
        # All ranks have the norm of a spike. Of a collective that hangs, nobody knows which rank is at fault.
        expect(kind == "spike" or re.search(rf"ranks? ([\d, ]*\b)?{rank}\b", cell["culprit"]), f"not rank {rank} is named", job)
    expect(code == 0, f"ends with exit code {code}", job)
    cell["named_s"] = named - struck
    if not goes_on(kind, phase, rank):
        cell["gone_s"] = ends[0] - struck if ends else None
        resumed = (again if kind == "node" else job).find(r"continuing after step (\d+)|starting at step 1|nothing is saved")
        from_step = int(resumed[1][1] or 0) if resumed else 0
        after = max(named, resumed[0] if resumed else 0)
        following = None if kind == "node" else job.find(rf"step +{from_step + 1}/", after)
        cell["next_step_s"] = following[0] - struck if following else None
        ends_before = phase not in ("evaluation", "staging", "write", "commit")
        done = {"end": STEPS, "rendezvous": 0, "load": 6}.get(phase, step_of(kind, phase) - ends_before)
        cell["lost"] = max(0, done - from_step)
    if kind != "slow":
        want = reference("long" if kind == "spike" else "short")
        got = losses(run)
        expect(got == want, f"the losses differ: {[s for s in want if got.get(s) != want[s]]}", job)
    expect(not ranks_of(job.process.pid), "ranks are left", job)
    shutil.rmtree(WORK / run)
    return cell


def records(run):
    """The loss of each step, and the steps that were skipped."""
    found = [json.loads(line) for line in (WORK / run / "metrics.jsonl").read_text().splitlines()]
    return ({r["step"]: r["loss"] for r in found if "loss" in r}, [r["step"] for r in found if r.get("skipped")])


def skip_steps():
    """NaN and a spike are skipped (train.on_spike): on one rank, on two, and by a run that resumes between them."""
    faults = "debug.fault=[{kind: nan, phase: backward, step: 4}, {kind: spike, phase: backward, step: 19, factor: 1e6}]"
    settings = ["train.steps=24", "train.on_spike=skip", "train.spike_factor=20", faults]
    for run, more, ranks in (("skip-alone", [], 1), ("skip-straight", [], 2), ("skip-resumed", ["train.exit_interval=18"], 2),
                             ("skip-resumed", ["checkpoint.load=latest"], 2)):
        job = Job(run, *settings, *more, ranks=ranks)
        expect(job.end(60) == 0, f"{run} fails", job)
        if not more:
            expect(job.find("2 of 24 steps skipped"), "the closing lines do not count the skipped steps", job)
    (alone, skipped), straight, resumed = records("skip-alone"), records("skip-straight"), records("skip-resumed")
    if skipped != [4, 19] or straight != resumed or straight[1] != skipped:
        raise Failure(f"skipped steps: {skipped}, {straight[1]}, {resumed[1]}")
    far = [step for step in alone if abs(alone[step] - straight[0][step]) > 1e-5 * alone[step]]
    if far or alone == reference("long"):
        raise Failure(f"losses of steps {far} differ from those of a single rank, or skipping has no effect")


def reference(which):
    return losses(f"straight-{which}")


def number(seconds):
    return "" if seconds is None else f"{seconds:.2f}"


def write_table(cells, path):
    rows = ["# What a job does about each fault", "",
            "Output of `test/process/faults_test.py MTRAIN LAUNCH --nightly --table FILE`: jobs of two CPU ranks on one host, one",
            "after the other. A fault of `debug.fault` is made once, and the job restarts. Times are in seconds from the fault on: until",
            "the culprit is named, until all ranks are gone, and until the next step has ended. `lost`: steps that are computed",
            "again. The losses of each run are those of a run without a fault, bit for bit. Limits: 2 s for a step and a save, 6 s for",
            "`comm.timeout_s`. No times: the run goes on without a restart. `node` kills the launcher, so nobody is left to name a",
            "culprit: the table has what `mtrain status` says, and the job is started again by hand.", "",
            f"Machine: {cpu_name()}, {os.cpu_count()} cores, Linux {platform.release()}.", "",
            "| kind | phase | rank | named | gone | next step | lost | what is said |", "|---|---|---|---|---|---|---|---|"]
    for c in cells:
        said = re.sub(r"\(pid \d+\)", "(pid)", c["culprit"]).replace("|", "\\|").strip()
        said = re.sub(r"process \d+", "process N", said.replace(f" on {platform.node()}", " on host0"))[:110]
        rows.append(f"| {c['kind']} | {c['phase']} | {c['rank']} | {number(c['named_s'])} | {number(c.get('gone_s'))} | "
                    f"{number(c.get('next_step_s'))} | {c.get('lost', '')} | {said} |")
    pathlib.Path(path).write_text("\n".join(rows) + "\n")


def cpu_name():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def prepare():
    (WORK / "tmp").mkdir()
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "words").write_text("\n".join(f"the number {n} and its square {n * n}" for n in range(4000)))
    subprocess.run([MTRAIN, "data", "build", "--input", "words", "--output", "text", "--tokenizer", "byte"], cwd=WORK, check=True,
                   capture_output=True)
    for run, settings in (("straight-short", []), ("straight-long", ["train.steps=24"]), ("before", ["train.exit_interval=6"])):
        job = Job(run, *settings)
        expect(job.end(60) == 0, f"{run} fails", job)


def main():
    prepare()
    ranks = (0, 1) if options.nightly else (1,)
    cells = [(kind, phase, rank) for kind, phases in CELLS.items() for phase in phases for rank in ranks]
    if not options.nightly:
        cells = [(kind, phase, 1) for kind, phase in QUICK]
    cells = [cell for cell in cells if options.only in f"{cell[0]} {cell[1]} {cell[2]}"]
    failures, done = [], []

    def attempt(cell):
        try:
            done.append((cells.index(cell), run_cell(*cell)))
        except Failure as e:
            failures.append(f"{cell[0]} in {cell[1]} on rank {cell[2]}: {e}")
            print("FAILED: " + failures[-1], flush=True)

    began = time.monotonic()
    if not options.only:
        try:
            skip_steps()
        except Failure as e:
            failures.append(str(e))
            print(f"FAILED: skipped steps: {e}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(1 if options.table else options.jobs) as pool:
        list(pool.map(attempt, cells))
    if options.table:
        write_table([cell for _, cell in sorted(done, key=lambda item: item[0])], options.table)
    print(f"{len(done)} of {len(cells)} cells as they should be, in {time.monotonic() - began:.0f} s")
    shutil.rmtree(WORK)
    return 1 if failures or not cells else 0


if __name__ == "__main__":
    sys.exit(main())
