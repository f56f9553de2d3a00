#!/usr/bin/env python3
"""Lists the GPU kernels that a training of two layers runs, by name: what cuBLASLt and cuDNN chose, and what is our own.

  scripts/bench/gpu_kernels.py [--model gpu_1b] [--build build/release] [--output FILE] [--seconds 30] [path=value ...]

The names come from ncu, or from nsys where ncu is missing or cannot read the GPU; neither changes the clocks. Two
things are checked: that GEMMs run on Hopper's tensor cores, not on kernels of earlier chips or of plain fp32
arithmetic, and that attention is cuDNN's. They are reported, and never fail. The exit code is 1 if no kernel was seen,
and 3 if that took too long. Writes FILE.json, and the tool's output to FILE.txt.
"""
import argparse
import csv
import io
import json
import pathlib
import re
import shutil
import sys
import tempfile

from compare_gpu import ROOT, Comparison, Failed, OutOfMemory, OutOfTime, execute, parse_with_settings, write_data

TIMED_OUT = 3  # exit code
# A single step: with several, a run measures algorithms of GEMMs after the first, and those kernels do not belong
# to a step.
SMALL = ["model.num_layers=2", "train.steps=1", "train.global_batch_size=8", "train.micro_batch_size=8"]
LAUNCHES_MOST = 600
# What a kernel does: the first of these words in its name decides.
KINDS = [
    ("attention by cuDNN", re.compile(r"cudnn|fmha_|flash_(f|b)prop", re.I)),
    ("attention, our own", re.compile(r"attention", re.I)),
    ("product on Hopper's tensor cores", re.compile(r"nvjet|sm90|wgmma|hgmma|gmma", re.I)),
    ("product by earlier kernels", re.compile(r"sm80|ampere|cutlass|gemm|simt|cublas|splitk", re.I)),
]


def kind_of(name):
    return next((kind for kind, words in KINDS if words.search(name)), "other")


def ncu_command(tool, log, command):
    return [tool, "--clock-control", "none", "--target-processes", "all", "--csv", "--print-units", "base", "--metrics",
            "gpu__time_duration.sum", "--launch-count", LAUNCHES_MOST, "--log-file", log, *command]


def number(text):
    return float(text.replace(",", ""))


def of_ncu(text):
    """[(name, ns)] of ncu's CSV, which follows lines of its own."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return [(row["Kernel Name"], number(row["Metric Value"])) for row in csv.DictReader(io.StringIO("\n".join(lines)))
            if row.get("Metric Name") == "gpu__time_duration.sum"]


def of_nsys(text):
    """[(name, ns)] of `nsys stats --report cuda_gpu_kern_sum --format csv`: a row for each name."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith("Time (%)")), len(lines))
    found = []
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if row.get("Name"):
            count = int(number(row["Instances"]))
            found += [(row["Name"], number(row["Total Time (ns)"]) / count)] * count
    return found


def summary(launches):
    rows = {}
    for name, ns in launches:
        row = rows.setdefault(name, dict(kernel=name, kind=kind_of(name), launches=0, us=0.0))
        row["launches"] += 1
        row["us"] += ns * 1e-3
    return sorted(rows.values(), key=lambda r: -r["us"])


def seen(rows):
    """[[the check, whether it holds, the names that show it]]; None if no kernel of the kind ran."""
    names = {kind: [r["kernel"][:60] for r in rows if r["kind"] == kind] for kind, _ in KINDS}
    new, old = names["product on Hopper's tensor cores"], names["product by earlier kernels"]
    theirs, own = names["attention by cuDNN"], names["attention, our own"]
    return [["products on Hopper's tensor cores", not old if new or old else None, old or new],
            ["attention by cuDNN", not own if theirs or own else None, own or theirs]]


def seen_by_ncu(args, work, command, seconds):
    log = work / "ncu.csv"
    try:
        execute(ncu_command("ncu", log, command), seconds)
    finally:
        text = log.read_text() if log.exists() else ""
        args.output.with_suffix(".txt").write_text(text)
    return of_ncu(text)


def seen_by_nsys(args, work, command, seconds):
    report = work / "nsys"
    execute(["nsys", "profile", "--trace", "cuda", "--sample", "none", "--cpuctxsw", "none", "--output", report, *command], seconds)
    said, _ = execute(["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", f"{report}.nsys-rep"], seconds)
    args.output.with_suffix(".txt").write_text(said)
    return of_nsys(said)


def launches_of(args, work, command, comparison):
    """-> (the tool, its launches). If a tool fails or sees nothing, the next one is tried."""
    problem = Failed("there is neither ncu nor nsys")
    for tool, seen_by in (("ncu", seen_by_ncu), ("nsys", seen_by_nsys)):
        if not shutil.which(tool):
            continue
        try:
            folder = tempfile.mkdtemp(dir=work)
            if launches := seen_by(args, work, [*command, f"train.run_dir={folder}/run"], comparison.left()):
                return tool, launches
            problem = Failed(f"{tool} saw no kernel")
        except OutOfTime:
            raise
        except Failed as e:
            problem = e
            print(f"{tool}: {e}", flush=True)
    raise problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpu_1b")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/gpu/kernels")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parse_with_settings(parser)
    args.gpu = ""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        try:
            comparison = Comparison(args, work)
            shape = comparison.shape(args.model)
            write_data(work / args.model, shape["vocab"], 1 << 19)
            tool, launches = launches_of(args, work, comparison.command(args.model, *SMALL), comparison)
        except OutOfTime as e:
            print(e)
            sys.exit(TIMED_OUT)
        except OutOfMemory:
            sys.exit("no memory")
        except Failed as e:
            args.output.with_name(args.output.name + "_failed.txt").write_text(e.said)
            sys.exit(str(e))
    rows = summary(launches)
    looked_for = seen(rows)
    args.output.with_suffix(".json").write_text(json.dumps(dict(tool=tool, rows=rows, looked_for=looked_for), indent=1) + "\n")
    for what, good, names in looked_for:
        print(f"{'yes' if good else 'NOT SEEN' if good is None else 'NO'}: {what}: {', '.join(names[:3])}")
    for row in rows[:25]:
        print(f"{row['us']:9.1f} us {row['launches']:5} launches  {row['kind']}: {row['kernel'][:90]}")
    print(f"{len(launches)} launches of {len(rows)} kernels, seen by {tool}")
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
