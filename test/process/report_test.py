#!/usr/bin/env python3
"""Opens pages of `mtrain report` in headless Chromium (scripts/check_report.py): three runs with NaN, an empty and a torn file, a trace of
a pipeline, and a million steps.

  test/process/report_test.py <mtrain> <mtrain-launch>
"""
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
CHECK = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_report.py"
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, seq_length: 32}
train: {steps: 8, global_batch_size: 8, micro_batch_size: 1, threads: 1}
distributed: {pp_size: 2, pipeline: {}}
mixed_precision: fp32
"""
# A machine that also runs other tests may be this many times slower.
SECONDS = 2 * 4


def run(*command, code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=WORK, timeout=400, check=False)
    if done.returncode != code:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def page_data(page):
    text = (WORK / page).read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def expect(condition, what):
    if not condition:
        sys.exit(f"{what} (kept: {WORK})")


def check_trace():
    """What the page says about a step are the times of the trace."""
    run(MTRAIN, "report", "pipe", "--trace", "t.json", "--step", "6", "-o", "p.html")
    data = page_data("p.html")
    titles = [lanes["title"] for lanes in data["lanes"]]
    expect(titles == ["Work of each stream in step 6", "Pipeline as run", "Pipeline as drawn"], f"{titles}")
    streams, as_run, drawn = data["lanes"]
    steps = [e for e in json.loads((WORK / "t.json").read_text())["traceEvents"] if e["ph"] == "X" and e["name"] == "step 6"]
    expect(math.isclose(streams["ms"], min(steps, key=lambda e: e["pid"])["dur"] / 1e3, rel_tol=1e-9), "the time of the step")
    expect(all(len(lane["cells"]) == 1200 for lane in streams["lanes"]), "the letters of a lane")
    for lanes in (as_run, drawn):
        expect(len(lanes["lanes"]) == 2, f"{lanes['title']} has {len(lanes['lanes'])} ranks")
        for lane in lanes["lanes"]:
            count = {kind: sum(box[2] == kind for box in lane["boxes"]) for kind in "FB"}
            expect(count == {"F": 8, "B": 8}, f"{lanes['title']}, {lane['name']}: {count}")
            expect({box[3] for box in lane["boxes"]} == {str(m) for m in range(8)}, f"micro-batches of {lane}")
            expect(all(0 <= box[0] <= box[1] <= lanes["ms"] * 1.000001 for box in lane["boxes"]), f"times of {lane['name']}")
    order = [[box[2:] for box in sorted(lane["boxes"])] for lane in as_run["lanes"]]
    expect(order == [[box[2:] for box in sorted(lane["boxes"])] for lane in drawn["lanes"]], "the order as run is not the order as drawn")
    bars = data["bars"][0]
    expect(bars["title"] == "Step times by rank" and bars["labels"] == ["0", "1"], f"{bars}")
    for label, mean in zip(bars["labels"], bars["sets"][0]["values"]):
        durations = [e["dur"] / 1e3 for e in json.loads((WORK / "t.json").read_text())["traceEvents"]
                     if e["ph"] == "X" and e["name"].startswith("step ") and e["pid"] == int(label)]
        expect(math.isclose(mean, sum(durations) / len(durations), rel_tol=1e-6), f"the mean step of rank {label} is {mean}")
    print(run(sys.executable, "-B", CHECK, MTRAIN, "pipe", "--trace", "t.json", "--seconds", SECONDS))
    expect("no step 60" in run(MTRAIN, "report", "pipe", "--trace", "t.json", "--step", "60", code=2), "a step that the trace lacks")
    (WORK / "torn.json").write_text((WORK / "t.json").read_text()[:5000])
    expect("not JSON" in run(MTRAIN, "report", "pipe", "--trace", "torn.json", code=2), "a torn trace")
    (WORK / "other/recipe.yaml").write_text("model: [")
    run(MTRAIN, "report", "other", "--trace", "t.json", "-o", "o.html")
    expect("is not shown" in page_data("o.html")["lanes"][2]["note"], "a recipe that cannot be read")


def check_odd_files():
    lines = (WORK / "pipe/metrics.jsonl").read_text().splitlines()
    for name, text in (("nan", "\n".join(line.replace('"grad_norm":', '"grad_norm":null,"x":') for line in lines[:5]) + "\n"),
                       ("empty", ""), ("torn", "\n".join(lines)[:-40])):
        (WORK / name).mkdir()
        (WORK / name / "metrics.jsonl").write_text(text)
    print(run(sys.executable, "-B", CHECK, MTRAIN, "pipe", "nan", "empty", "torn", "--seconds", SECONDS))


def check_long():
    (WORK / "long").mkdir()
    with open(WORK / "long/metrics.jsonl", "w") as out:
        for step in range(1, 1_000_001):
            out.write(f'{{"step":{step},"loss":{2 + 1 / step:.6f},"lr":0.001,"grad_norm":{1 + step % 7 * 0.1:.2f},"step_ms":{10 + step % 5},'
                      f'"tokens_per_s":{1000 + step % 11},"memory_peak":123456789,"step_ms.max":{12 + step % 5}}}\n')
    print(run(sys.executable, "-B", CHECK, MTRAIN, "long", "--seconds", SECONDS))


def main():
    (WORK / "text").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    run(MTRAIN, "data", "build", "--input", "text", "--output", "set")
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "set"))
    run(LAUNCH, "--nproc_per_node=2", "--recipe", "r.yaml", "train.run_dir=pipe", "--trace", "t.json", "--trace-steps", "4:8")
    shutil.copytree(WORK / "pipe", WORK / "other")
    check_trace()
    check_odd_files()
    check_long()
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
