#!/usr/bin/env python3
"""Finds which part of a GPU training fails or hangs: repeats it with one suspect after another left out.

  scripts/bench/gpu_ladder.py [--seconds 120] [--each 40] [--steps 3] [--output FILE] -- MTRAIN --recipe R [path=value ...]
  scripts/bench/gpu_ladder.py --found FILE.json      what the first rung that passed leaves out, one setting per line

The rungs are the training as it is, mtrain's own attention instead of cuDNN's, single launches instead of CUDA graphs,
launches that the host waits for, and all of these together. A model with experts has one more: mtrain's own GEMMs of
experts instead of CUTLASS's. Each trains --steps steps in a run folder of its own. If
the training passes with one rung alone, and not as it is, it fails in the part that this rung leaves out. With launches
that the host waits for, the error names the launch. Writes FILE.json after every rung. The exit code is 0 if a rung
passed, 1 if all failed, and 3 if none passed and one took too long.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

from compare_gpu import Failed, OutOfMemory, OutOfTime, execute

OWN_ATTENTION, NO_GRAPHS = "debug.own_attention=true", "train.enable_cuda_graph=false"
OWN_EXPERTS = "debug.own_grouped_gemm=true"
BLOCKING = "CUDA_LAUNCH_BLOCKING=1"
# Name, settings and environment.
RUNGS = [
    ("as it is", [], []),
    ("own attention", [OWN_ATTENTION], []),
    ("no CUDA graphs", [NO_GRAPHS], []),
    ("blocking launches", [], [BLOCKING]),
    ("all of them", [OWN_ATTENTION, NO_GRAPHS], [BLOCKING]),
]


def rungs_for(experts):
    """A model with experts has another suspect: CUTLASS."""
    if not experts:
        return RUNGS
    last, settings, environment = RUNGS[-1]
    return [*RUNGS[:-1], ("own GEMMs of experts", [OWN_EXPERTS], []), (last, [*settings, OWN_EXPERTS], environment)]


SECONDS_LEAST = 5
TIMED_OUT = 3  # exit code


def climb(run, seconds, each, wrote=lambda rows: None, rungs=RUNGS):
    """Calls run(settings, environment, seconds) for every rung; it throws if the training fails. -> the rows, which
    wrote() gets after every rung. The rungs after the first that passes are tried, too: two may pass."""
    deadline, rows = time.monotonic() + seconds, []
    for name, settings, environment in rungs:
        row = dict(rung=name, settings=settings, environment=environment, result="passed", why="")
        rows.append(row)
        began = time.monotonic()
        left = deadline - began
        if left < SECONDS_LEAST:
            row.update(result="not run", why="the time is spent")
            continue
        try:
            run(settings, environment, min(left, each))
        except OutOfTime as e:
            row.update(result="timed out", why=str(e))
        except OutOfMemory:
            row.update(result="failed", why="no memory")
        except Failed as e:
            row.update(result="failed", why=str(e))
        row["seconds"] = round(time.monotonic() - began, 1)
        wrote(rows)
        print(f"{name:20} {row['result']:10} {row['seconds']:6.1f} s  {row['why'][-200:]}", flush=True)
        if name == "as it is" and row["result"] == "passed":
            break  # it passes now, so no rung would find anything
    wrote(rows)
    return rows


def chosen(rows):
    """The first rung that passed, or None."""
    return next((row for row in rows if row["result"] == "passed"), None)


def verdict(rows):
    best = chosen(rows)
    if best is None:
        return "no rung passed"
    if best["rung"] == "as it is":
        return "it passes as it is: what failed does not fail every time"
    return f"it passes with {best['rung']}: {' '.join(best['environment'] + best['settings'])}"


def exit_code(rows):
    results = [row["result"] for row in rows]
    return 0 if "passed" in results else 1 if "failed" in results else TIMED_OUT


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="for all rungs")
    parser.add_argument("--each", type=float, default=40, help="for one rung")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--found", type=pathlib.Path)
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()
    if args.found:
        best = chosen(json.loads(args.found.read_text()).get("rungs", [])) if args.found.exists() else None
        print("".join(f"{x}\n" for x in (best["environment"] + best["settings"] if best else [])), end="")
        return
    if not args.command:
        parser.error("which training? -- MTRAIN --recipe R")
    with tempfile.TemporaryDirectory() as work:
        def run(settings, environment, seconds):
            folder = tempfile.mkdtemp(dir=work)
            execute(["env", *environment, *args.command, f"train.steps={args.steps}", f"train.run_dir={folder}/run", *settings],
                    seconds, cwd=pathlib.Path.cwd())

        def write(rows):
            if args.output:
                args.output.with_suffix(".json").write_text(json.dumps(dict(name="the training", rungs=rows, verdict=verdict(rows)), indent=1) + "\n")

        rows = climb(run, args.seconds, args.each, write)
    print(verdict(rows))
    sys.exit(exit_code(rows))


if __name__ == "__main__":
    main()
