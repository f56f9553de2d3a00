#!/usr/bin/env python3
"""Writes a JSON and a Markdown report of the results of gpu_suite.sh.

  gpu_report.py --logs FOLDER --commit C --device cuda|cpu --output FILE

Reads from FOLDER: parts.tsv (name, result, why, seconds, seconds allowed, begin, end), gpus (a line each), clocks.csv
of nvidia-smi, and the kernels' speed from their log. Of the scripts it reads train_NAME.json, profile_NAME.json and
ladder.json (gpu_train.py), compare_MODEL.json (compare_gpu.py), kernels.json (gpu_kernels.py) and layouts.{json,md}.
Missing and half-written files are left out. The report has the predictions from its first part on. Writes FILE.json and
FILE.md.
"""
import argparse
import csv
import datetime
import json
import pathlib
import re
import statistics

import compare_gpu
import gpu_predictions

COPY_LEAST = 80  # per cent of a copy's bandwidth that memory-bound kernels should reach
SPEED = re.compile(r"^(.+?)\s+([\d.]+) us\s+([\d.]+) (GB/s|TFLOP/s)(?:\s+([\d.]+) % of a copy)?(?:\s+\((.+)\))?$")
RESULTS = ("passed", "failed", "timed out", "not run", "running")


def read_json(file):
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):  # ended while it wrote
        return None


def kernel_speeds(log):
    rows, about = [], ""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("--- "):
            about = line[4:]
        elif match := SPEED.match(line):
            rows.append(dict(about=about, kernel=match[1], us=float(match[2]), rate=float(match[3]), unit=match[4],
                             copy_percent=float(match[5]) if match[5] else None, by=match[6] or ""))
    return rows


def read_parts(listing):
    fields = ("name", "result", "why", "seconds", "allowed", "began", "ended")
    parts = {}
    for line in listing.read_text().splitlines() if listing.exists() else []:
        part = dict(zip(fields, line.split("\t")))
        part["seconds"], part["allowed"] = int(part["seconds"]), int(part["allowed"])
        parts[part["name"]] = part  # its result replaces "running"
    return list(parts.values())


def read_clocks(file):
    """[(time, SM MHz, watts, degrees, per cent in use)]"""
    rows = []
    for row in csv.reader(file.read_text().splitlines() if file.exists() else []):
        try:
            rows.append((row[0].split(".")[0], *(float(x) for x in row[1:5])))
        except (ValueError, IndexError):
            pass  # the head, or a figure that this GPU does not report
    return rows


def read(args):
    logs = args.logs
    found = dict(date=datetime.date.today().isoformat(), commit=args.commit, device=args.device,
                 gpus=(logs / "gpus").read_text().splitlines() if (logs / "gpus").exists() else [], parts=read_parts(logs / "parts.tsv"))
    found["train"] = {f.stem.removeprefix("train_gpu_"): row for f in sorted(logs.glob("train_*.json")) if (row := read_json(f))}
    found["profile"] = {f.stem.removeprefix("profile_gpu_"): row for f in sorted(logs.glob("profile_*.json")) if (row := read_json(f))}
    found["compare"] = [row for f in sorted(logs.glob("compare_*.json")) if (whole := read_json(f)) for row in whole["rows"]]
    for name in ("ladder", "layouts", "names"):
        if whole := read_json(logs / f"{'kernels' if name == 'names' else name}.json"):
            found[name] = whole
    found["kernels"] = [row for log in sorted(logs.glob("speed_*.log")) for row in kernel_speeds(log)]
    clocks = read_clocks(logs / "clocks.csv")
    found["clocks"] = [dict(part=p["name"], **c) for p in found["parts"] if (c := clocks_of(p, clocks))]
    found["predictions"] = gpu_predictions.compare(found)
    # Only the first call has the parts that answer them.
    found["answers"] = answers(found) if any(p["name"].startswith(("kernels against", "train 1.5B", "names of")) for p in found["parts"]) else []
    return found


def clocks_of(part, clocks):
    busy = [c for c in clocks if part.get("began", "") <= c[0] <= part.get("ended", "") and c[4] >= 50]
    if not busy or part["result"] == "not run":
        return None
    mhz, watts, degrees = ([c[i] for c in busy] for i in (1, 2, 3))
    return dict(samples=len(busy), mhz_least=min(mhz), mhz=statistics.median(mhz), watts=statistics.median(watts),
                watts_most=max(watts), degrees_most=max(degrees))


def cells(*values):
    return "| " + " | ".join(str(v).replace("|", "/").replace("\n", " ") for v in values) + " |"


def agreement(found):
    """Whether CUDA's kernels and trainings agree with the CPU's: of parts that ended, with their last lines."""
    parts = [p for p in found["parts"] if p["name"].endswith("against the CPU") and p["result"] in ("passed", "failed", "timed out")]
    verdict = "not known" if not parts else "NO" if any(p["result"] == "failed" for p in parts) else \
        "yes" if len(parts) == 2 and all(p["result"] == "passed" for p in parts) else "as far as it was seen"
    return "; ".join([verdict, *(f"{p['name'].removesuffix(' against the CPU')}: {p['why']}" for p in parts)])


def looked_for(names, most):
    """A line for each kind of kernel that was looked for, with the names of up to `most`."""
    return [f"{what}: {'yes' if good else 'not seen' if good is None else 'NO'}" + (f" ({', '.join(which[:most])})" if which else "")
            for what, good, which in names["looked_for"]]


def engines(found):
    return "; ".join(looked_for(found["names"], 2)) if "names" in found else "not known"


def speed_of_1b(found):
    row = found["train"].get("1b", {})
    ours = row.get("mtrain", {})
    if row.get("result") != "passed" or ours.get("mfu") is None:
        return "not known" + (f": {row['result']}, {row['why']}" if row.get("why") else "")
    return f"{compare_gpu.percent(ours['mfu'])} at {ours['tokens_per_s']:.0f} tokens/s"


def where_time_goes(found):
    """The shares of a profiled step by kind, and the largest operations that are neither GEMMs nor attention."""
    ours = found["profile"].get("1b", {}).get("mtrain", {})
    if not ours.get("operations_ms"):
        return "not known"
    share = lambda ms: compare_gpu.percent(ms / ours["operations_ms"])
    kinds = [f"{kind} {share(sum(ms for _, ms, k in ours['operations'] if k == kind))}" for kind in ("matmul", "attention", "other")]
    largest = sorted((row for row in ours["operations"] if row[2] == "other"), key=lambda row: -row[1])[:3]
    said = f"{ours['operations_ms']:.1f} ms of operations: {', '.join(kinds)}"
    if largest:
        said += f" (most of it {', '.join(f'`{name}` {ms:.1f} ms' for name, ms, _ in largest)})"
    step = found["train"].get("1b", {}).get("mtrain", {}).get("step_ms")
    return said + (f"; a step takes {statistics.median(step):.1f} ms without the profile" if step else "")


def answers(found):
    """[(question, answer)] of the first call."""
    return [("Do kernels and training agree with the CPU?", agreement(found)), ("Which engines run?", engines(found)),
            ("MFU of 1.5B in bf16, causal", speed_of_1b(found)), ("Where does its time go?", where_time_goes(found))]


def answers_table(rows):
    return ["", "| question | answer |", "|---|---|", *(cells(*row) for row in rows)]


def parts_table(parts):
    counts = [f"{sum(p['result'] == r for p in parts)} {r}" for r in RESULTS if r != "running" or any(p["result"] == r for p in parts)]
    lines = ["", f"**{len(parts)} parts: {', '.join(counts)}**", "", "| part | result | seconds | allowed | about |", "|---|---|---|---|---|"]
    return lines + [cells(p["name"], p["result"].upper() if p["result"] in ("failed", "timed out") else p["result"],
                          p["seconds"] or "", p["allowed"] or "", p["why"]) for p in parts]


def predictions_table(rows):
    lines = ["", "## Predicted and measured", "", "| what | predicted | measured | verdict |", "|---|---|---|---|"]
    for r in rows:
        value = "" if r["measured"] is None else f"{r['measured']:.0f}" if r["measured"] >= 1000 else f"{r['measured']:.3g}"
        lines.append(cells(r["what"], r["predicted"], value, r["verdict"]))
    return lines


def train_table(found):
    lines = ["", "## mtrain alone", "", "| training | result | tokens/s | MFU, causal | GPU memory MiB | losses | about |", "|---|---|---|---|---|---|---|"]
    for row in found["train"].values():
        ours = row.get("mtrain", {})
        losses = ours.get("losses", [])
        about = "; ".join(filter(None, [row.get("why"), *row["notes"], " ".join(row["settings"])]))
        lines.append(cells(row["name"], row["result"], f"{ours['tokens_per_s']:.0f}" if "tokens_per_s" in ours else "",
                           compare_gpu.percent(ours.get("mfu")), ours.get("memory_mib") or "",
                           f"{losses[0]:.3f} to {losses[-1]:.3f}" if losses else "", about))
    for row in found["profile"].values():
        ours = row.get("mtrain", {})
        if not ours.get("operations"):
            continue
        lines += ["", f"{row['name']}: {ours['operations_ms']:.1f} ms of operations a step", "", "| operation | ms a step | share |", "|---|---|---|"]
        lines += [cells(f"`{name}`", f"{ms:.2f}", compare_gpu.percent(ms / ours["operations_ms"])) for name, ms, _ in ours["operations"][:15]]
    return lines


def ladder_table(ladder):
    lines = ["", f"## What was left out after {ladder['name']} did not pass", "", f"**{ladder.get('verdict', 'no rung was tried')}**", "",
             "| rung | result | seconds | about |", "|---|---|---|---|"]
    return lines + [cells(r["rung"], r["result"], r.get("seconds", ""), r["why"][-300:]) for r in ladder.get("rungs", [])]


def names_table(names):
    lines = ["", f"## Kernels by name ({names['tool']})", ""]
    lines += [f"- {said}" for said in looked_for(names, 4)]
    lines += ["", "| kernel | does | launches | us |", "|---|---|---|---|"]
    return lines + [cells(f"`{r['kernel'][:90]}`", r["kind"], r["launches"], f"{r['us']:.1f}") for r in names["rows"][:25]]


def speed_table(rows):
    lines = ["", "## Speed of the kernels", "", "| shapes | kernel | us | rate | of a copy (>= 80 %) | by |", "|---|---|---|---|---|---|"]
    for r in rows:
        copy = "" if r["copy_percent"] is None else f"{r['copy_percent']:.1f} %" + ("" if r["copy_percent"] >= COPY_LEAST else ", short")
        lines.append(f"| {r['about']} | {r['kernel']} | {r['us']:.1f} | {r['rate']:.0f} {r['unit']} | {copy} | {r['by']} |")
    return lines


def clocks_table(rows):
    lines = ["", "## Clocks and power, while the GPU was in use", "",
             "| part | samples | SM MHz, median | least | W, median | most | most degrees |", "|---|---|---|---|---|---|---|"]
    return lines + [cells(r["part"], r["samples"], *(f"{r[k]:.0f}" for k in ("mhz", "mhz_least", "watts", "watts_most", "degrees_most")))
                    for r in rows]


def report(found, logs):
    lines = [f"# GPU suite, {found['commit']}, {found['date']}", "", *(f"- GPU: {name}" for name in found["gpus"])]
    if found["answers"]:
        lines += answers_table(found["answers"])
    lines += parts_table(found["parts"])
    if found["device"] == "cuda":
        lines += predictions_table(found["predictions"])
    if found["train"] or found["profile"]:
        lines += train_table(found)
    if "ladder" in found:
        lines += ladder_table(found["ladder"])
    if found["compare"]:
        lines += ["", "## Against PyTorch", "", compare_gpu.RULES.rstrip(), "", compare_gpu.table(found["compare"]).rstrip(),
                  compare_gpu.operations_table(found["compare"]).rstrip()]
    if "names" in found:
        lines += names_table(found["names"])
    if (logs / "layouts.md").exists():
        lines += ["", "## Layouts", "", (logs / "layouts.md").read_text().rstrip()]
    if found["kernels"]:
        lines += speed_table(found["kernels"])
    if found["clocks"]:
        lines += clocks_table(found["clocks"])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=pathlib.Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    found = read(args)
    # Each file is replaced atomically: if the suite is ended, the report of the part before stays.
    for suffix, text in ((".json", json.dumps(found, indent=1) + "\n"), (".md", report(found, args.logs))):
        fresh = args.output.with_suffix(suffix + ".new")
        fresh.write_text(text)
        fresh.replace(args.output.with_suffix(suffix))


if __name__ == "__main__":
    main()
