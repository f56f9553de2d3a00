#!/usr/bin/env python3
"""Writes a JSON and a Markdown report of the results of gpu_suite.sh.

  gpu_report.py --logs FOLDER --commit C --device cuda|cpu --output FILE

Reads parts.tsv (name, result, seconds), gpus (a line each), compare.{json,md}, layouts.{json,md} and the kernels' speed
from their log, each where it is there. Writes FILE.json and FILE.md.
"""
import argparse
import datetime
import json
import pathlib
import re

COPY_LEAST = 80  # per cent of a copy's bandwidth that memory-bound kernels should reach
SPEED = re.compile(r"^(.+?)\s+([\d.]+) us\s+([\d.]+) (GB/s|TFLOP/s)(?:\s+([\d.]+) % of a copy)?(?:\s+\((.+)\))?$")


def kernel_speeds(log):
    rows, about = [], ""
    for line in log.read_text().splitlines() if log.exists() else []:
        if line.startswith("--- "):
            about = line[4:]
        elif match := SPEED.match(line):
            rows.append(dict(about=about, kernel=match[1], us=float(match[2]), rate=float(match[3]), unit=match[4],
                             copy_percent=float(match[5]) if match[5] else None, by=match[6] or ""))
    return rows


def speed_table(rows):
    lines = ["", "## Speed of the kernels", "", "| shapes | kernel | us | rate | of a copy (>= 80 %) | by |", "|---|---|---|---|---|---|"]
    for r in rows:
        copy = "" if r["copy_percent"] is None else f"{r['copy_percent']:.1f} %" + ("" if r["copy_percent"] >= COPY_LEAST else ", short")
        lines.append(f"| {r['about']} | {r['kernel']} | {r['us']:.1f} | {r['rate']:.0f} {r['unit']} | {copy} | {r['by']} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    listing, gpus = args.logs / "parts.tsv", args.logs / "gpus"
    parts = [line.split("\t") for line in listing.read_text().splitlines()] if listing.exists() else []
    found = dict(date=datetime.date.today().isoformat(), commit=args.commit, device=args.device,
                 gpus=gpus.read_text().splitlines() if gpus.exists() else [], parts=[dict(name=n, result=r, seconds=int(s)) for n, r, s in parts])
    lines = [f"# GPU suite, {found['commit']}, {found['date']}", "", *(f"- GPU: {name}" for name in found["gpus"]),
             *(f"- {p['name']}: {p['result']}" + (f", {p['seconds']} s" if p["seconds"] else "") for p in found["parts"])]
    for name, title in (("compare", "Against PyTorch"), ("layouts", "Layouts")):
        if (args.logs / f"{name}.json").exists():
            found[name] = json.loads((args.logs / f"{name}.json").read_text())
            lines += ["", f"## {title}", "", (args.logs / f"{name}.md").read_text().rstrip()]
    if speeds := kernel_speeds(args.logs / "speed_of_the_kernels.log"):
        found["kernels"] = speeds
        lines += speed_table(speeds)
    args.output.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    args.output.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
