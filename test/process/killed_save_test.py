#!/usr/bin/env python3
"""Kills trainings with SIGKILL in the middle of a save. The next start must continue from the newest complete checkpoint, the one of this save or the one before it, with the losses of an uninterrupted run. It must leave nothing of the killed one.

  test/process/killed_save_test.py <mtrain> <mtrain-launch> [--nightly]

Saves in the background are killed at their moments (debug.fault): one rank, or all processes of the job at once. --nightly kills at every moment, and a save for which training waits at each of its system calls, which needs strace and takes minutes.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
NIGHTLY = "--nightly" in sys.argv[3:]
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: ../set, seq_length: 32}
train: {steps: 2, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1, device: cpu}
checkpoint: {every_steps: 1, keep: 3, async: false}
lr_scheduler: {style: constant}
mixed_precision: fp32
"""
# All system calls that open, write, name or remove a file.
CALLS = ["openat", "write", "pwrite64", "pwritev", "writev", "fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink",
         "unlinkat", "mkdir", "mkdirat", "ftruncate", "symlink", "symlinkat", "link", "linkat", "rmdir", "fallocate"]
# The moments of a save in the background, in their order. The last ones are rank 0's alone.
OF_RANK = ["stage", "write", "block", "block 3"]
OF_RANK_0 = ["manifest", "sync", "rename", "sync root", "latest", "delete old", "delete one", "done"]
BACKGROUND = ["train.steps=9", "checkpoint.every_steps=3", "checkpoint.keep=1", "checkpoint.async=true"]


def command(ranks, *more):
    program = [MTRAIN] if ranks == 1 else [LAUNCH, f"--nproc_per_node={ranks}"]
    return [*program, "--recipe", "../r.yaml", "train.run_dir=run", *more]


def start(run, *more, under=(), ranks=1):
    folder = WORK / run
    folder.mkdir(exist_ok=True)
    return subprocess.run([*under, *command(ranks, *more)], cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(WORK)},
                          capture_output=True, text=True)


def losses(run):
    records = map(json.loads, (WORK / run / "run/metrics.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in records if "step" in r and "loss" in r}


def require_continues(run, what, steps, expected, *more, ranks=1):
    """Starts the run again. -> the step from which it continues, one of `steps`"""
    again = start(run, "checkpoint.load=latest", *more, ranks=ranks)
    text = again.stdout + again.stderr
    continued = re.search(r"continuing after step (\d+)", text)
    left = [path.name for path in (WORK / run / "run").rglob("*") if ".tmp" in path.name or path.name == ".lock"]
    if again.returncode != 0 or not continued or int(continued[1]) not in steps or losses(run) != expected or left:
        raise SystemExit(f"{what}: exit code {again.returncode}, not from one of {steps}, losses {losses(run)} instead of "
                         f"{expected}, or left: {left}\n{text}")
    shutil.rmtree(WORK / run)
    return int(continued[1])


def points_of_second_save():
    """-> (name of a system call, how many of that name the run has made with it), from the save's first to the run's last."""
    trace = WORK / "trace"
    start("whole", under=["strace", "-f", "-o", str(trace), "-e", "trace=" + ",".join(CALLS)])
    calls = [(m[1], line) for line in trace.read_text().splitlines() if (m := re.match(r"\d+ +(\w+)\(", line))]
    first = next(i for i, (_, line) in enumerate(calls) if "step-00000002" in line)
    count, points = {}, []
    for i, (name, _) in enumerate(calls):
        count[name] = count.get(name, 0) + 1
        if i >= first:
            points.append((name, count[name]))
    return points


def kill_at_calls():
    if not shutil.which("strace"):
        raise SystemExit("strace is missing")
    start("expected", "train.steps=4")
    expected, points = losses("expected"), points_of_second_save()
    if len(points) < 35 or sorted(expected) != [1, 2, 3, 4]:
        raise SystemExit(f"{len(points)} system calls, losses {expected}")
    from_steps = []
    for i, (name, count) in enumerate(points):
        run = f"killed{i}"
        start(run, under=["strace", "-f", "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={count}"])
        newest = 2 if (WORK / run / "run/checkpoints/step-00000002").is_dir() else 1
        from_steps.append(require_continues(run, f"killed at {name} number {count}", [newest], expected, "train.steps=4"))
    print(f"killed at {len(points)} system calls; continued {from_steps.count(1)} times after step 1, "
          f"{from_steps.count(2)} times after step 2")


def processes(folder):
    """-> the pids whose working folder this is"""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
        except OSError:  # it has ended
            pass
    return found


def stopped(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def kill_all_at(run, ranks, fault):
    """Starts the run with a rank that stops at the moment, and kills all processes then."""
    folder = WORK / run
    folder.mkdir()
    job = subprocess.Popen(command(ranks, *BACKGROUND, fault), cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(WORK)},
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    while not any(map(stopped, processes(folder))):
        if job.poll() is not None or time.monotonic() - began > 60:
            raise SystemExit(f"{run}: {fault}: no rank stops")
        time.sleep(0.01)
    while pids := processes(folder):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        job.poll()
    job.wait()


def kill_at_moments():
    """The second of three saves is killed. The first is complete, and is deleted when the second one is."""
    cases = [(ranks, rank, moment, everything)
             for ranks in (1, 2) for rank in range(ranks)
             for moment in OF_RANK + (OF_RANK_0 if rank == 0 else ["report"]) for everything in (False, True)]
    if not NIGHTLY:
        cases = [(1, 0, "block 3", False), (1, 0, "rename", False), (1, 0, "latest", False), (2, 1, "report", False),
                 (2, 0, "manifest", False), (2, 1, "block", True)]
    expected = {}
    for ranks in (1, 2):
        start(f"expected{ranks}", *BACKGROUND, ranks=ranks)
        expected[ranks] = losses(f"expected{ranks}")
        if sorted(expected[ranks]) != list(range(1, 10)):
            raise SystemExit(f"{ranks} ranks without a fault: losses {expected[ranks]}")
    from_steps = []
    for i, (ranks, rank, moment, everything) in enumerate(cases):
        run = f"moment{i}"
        what = f"{ranks} ranks, {'all' if everything else f'rank {rank}'} killed at {moment}"
        fault = f"debug.fault={{at: 'save:{moment}', rank: {rank}, step: 6, kill: {str(not everything).lower()}}}"
        if everything:
            kill_all_at(run, ranks, fault)
        elif start(run, *BACKGROUND, fault, ranks=ranks).returncode not in (1, -signal.SIGKILL):
            raise SystemExit(f"{what}: the run does not end by it")
        whole = (WORK / run / "run/checkpoints/step-00000006/index.json").exists()
        after = OF_RANK_0.index(moment) > OF_RANK_0.index("rename") if moment in OF_RANK_0 else False
        if whole != after:
            raise SystemExit(f"{what}: step 6 is {'' if whole else 'not '}complete")
        from_steps.append(require_continues(run, what, [6 if whole else 3], expected[ranks], *BACKGROUND, ranks=ranks))
    print(f"killed at {len(cases)} moments of saves in the background; continued {from_steps.count(3)} times after step 3, "
          f"{from_steps.count(6)} times after step 6")


def main():
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(20000))))
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True,
                   stdout=subprocess.DEVNULL)
    try:
        kill_at_moments()
        if NIGHTLY:
            kill_at_calls()
    finally:
        shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
