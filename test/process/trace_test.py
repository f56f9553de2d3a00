#!/usr/bin/env python3
"""Tests the traces of --trace: arrows between ranks, spans of the host, memory, and the steps of --trace-steps.

  test/process/trace_test.py <mtrain> <mtrain-launch>
"""
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, validation: %s, seq_length: 32}
train: {steps: 6, global_batch_size: 4, micro_batch_size: 1, threads: 1}
validation: {every_steps: 3, steps: 1}
checkpoint: {every_steps: 3}
mixed_precision: fp32
"""
# The ranks of this host share a clock, and their origins differ by how exactly each reads it.
TOLERANCE_US = 100
PIPELINE = ["distributed.pp_size=2", "distributed.pipeline={}"]


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def train(run, *settings, ranks=2, code=0):
    """Returns the output of a training."""
    done = subprocess.run([LAUNCH, f"--nproc_per_node={ranks}", "--recipe", "r.yaml", f"train.run_dir={run}", *settings],
                          capture_output=True, text=True, cwd=WORK, timeout=120, check=False)
    expect(done.returncode == code, f"{run}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def trace_of(run):
    """The events by their phase, and the names of tracks."""
    events, tracks = collections.defaultdict(list), {}
    for event in json.loads((WORK / f"{run}.json").read_text())["traceEvents"]:
        events[event["ph"]].append(event)
        if event["name"] == "thread_name":
            tracks[event["pid"], event["tid"]] = event["args"]["name"]
    return events, tracks


def spans_around(spans, event):
    place = event["pid"], event["tid"]
    return [s for s in spans if (s["pid"], s["tid"]) == place and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]


def check_arrows(events):
    """Each arrow leads from a send to a later receive of another rank. Returns how many there are."""
    sent, received = ({e["id"]: e for e in events[phase]} for phase in "sf")
    expect(len(sent) == len(events["s"]) and len(received) == len(events["f"]), "two messages have the same id")
    expect(sent.keys() == received.keys(), f"ends without another: {sent.keys() ^ received.keys()}")
    for key, begin in sent.items():
        end = received[key]
        expect(begin["pid"] != end["pid"], f"{key} leads from rank {begin['pid']} to itself")
        expect(begin["ts"] <= end["ts"] + TOLERANCE_US, f"{key} arrives {begin['ts'] - end['ts']} us before it is sent")
        for what, event in (("send", begin), ("receive", end)):
            names = {span["name"] for span in spans_around(events["X"], event)}
            expect(names & {what, "exchange"}, f"the arrow at {event} is on {names}, not on a {what}")
        expect(end.get("bp") == "e", "a viewer would attach the end to the next span")
    return len(sent)


def check_nesting(events):
    """Two spans of a track are apart, or one is within the other."""
    tracks = collections.defaultdict(list)
    for span in events["X"]:
        tracks[span["pid"], span["tid"]].append((span["ts"], -span["dur"], span["name"]))
    for track, spans in tracks.items():
        open_until = []
        for begin, negative, name in sorted(spans):
            end = begin - negative
            while open_until and open_until[-1][0] <= begin + 0.0011:
                open_until.pop()
            expect(not open_until or end <= open_until[-1][0] + 0.0011,
                   f"track {track}: {name} ends at {end}, after {open_until[-1:]}, within which it begins")
            open_until.append((end, name))


def host_spans(events, tracks):
    """The names of the host's spans by rank."""
    found = collections.defaultdict(list)
    for span in sorted(events["X"], key=lambda span: span["ts"]):
        if tracks[span["pid"], span["tid"]] == "steps":
            found[span["pid"]].append(span["name"])
    return found


def test_arrows():
    for run, ranks, settings in [("pipeline", 2, PIPELINE), ("interleaved", 2, [*PIPELINE, "distributed.vpp_size=2"]),
                                 ("ring", 2, ["distributed.cp_size=2", "distributed.cp_comm_type=p2p"]),
                                 ("both", 4, [*PIPELINE, "distributed.cp_size=2", "distributed.cp_comm_type=p2p"])]:
        train(run, *settings, "--trace", f"{run}.json", ranks=ranks)
        events, _ = trace_of(run)
        check_nesting(events)
        count, sends = check_arrows(events), sum(span["name"] in ("send", "exchange") for span in events["X"])
        expect(count >= sends > 0, f"{run}: {count} arrows of {sends} sends")
        # A forward and a backward message of each of 4 micro-batches, and what evaluations send.
        if run == "pipeline":
            expect(count >= 6 * 8, f"{count} arrows")


def test_host_spans():
    events, tracks = trace_of("pipeline")
    for rank, names in host_spans(events, tracks).items():
        expect(names[:2] == ["rendezvous", "start"], f"rank {rank} begins with {names[:3]}")
        counts = collections.Counter(names)
        # The batch of the first step, and during each step that of the next one.
        expect(counts["load data"] == 6, f"rank {rank} loads data {counts['load data']} times in 6 steps")
        expect(counts["save"] == 2 and counts["evaluation"] == 2, f"rank {rank}: {counts}")
        expect([n for n in names if n.startswith("step ")] == [f"step {i}" for i in range(1, 7)], f"steps: {names}")
        steps = [s for s in events["X"] if s["pid"] == rank and s["name"].startswith("step ")]
        for load in (s for s in events["X"] if s["pid"] == rank and s["name"] == "load data"):
            around = [s for s in steps if s["ts"] <= load["ts"] and load["ts"] + load["dur"] <= s["ts"] + s["dur"]]
            expect(len(around) == 1, f"data is loaded outside of the steps: {load}")
        memory = [e["args"]["bytes"] for e in events["C"] if e["pid"] == rank and e["name"] == "memory"]
        expect(len(memory) > 12 and len(set(memory)) > 2 and min(memory) > 0, f"memory of rank {rank}: {memory[:20]}")


def test_steps():
    """A range of steps alone, whose file is written before the run ends; the losses are those of any run."""
    out = train("range", *PIPELINE, "--trace", "range.json", "--trace-steps", "3:4")
    events, tracks = trace_of("range")
    check_nesting(events)
    expect(check_arrows(events) >= 16, f"{len(events['s'])} arrows")
    for names in host_spans(events, tracks).values():
        expect([n for n in names if n.startswith("step ")] == ["step 3", "step 4"] and "rendezvous" not in names, names)
    written = re.search(r"trace of 2 ranks written", out)
    expect(written and written.start() < out.rindex("step "), f"the trace is not written after its last step:\n{out}")
    losses = [[json.loads(line).get("loss") for line in (WORK / run / "metrics.jsonl").read_text().splitlines()]
              for run in ("pipeline", "range")]
    expect(losses[0] == losses[1], f"a trace changes losses: {losses}")

    for number, (words, steps) in enumerate(((["--trace-steps", "6"], ["step 6"]), (["--trace-steps=5:"], ["step 5", "step 6"]),
                         (["--trace_steps", ":1"], ["step 1"]), (["debug.trace_steps=2:3"], ["step 2", "step 3"]))):
        train(f"one{number}", "--trace", f"one{number}.json", *words, ranks=1)
        events, tracks = trace_of(f"one{number}")
        found = [n for n in host_spans(events, tracks)[0] if n.startswith("step ")]
        expect(found == steps, f"{words}: {found}")

    out = train("late", "--trace", "late.json", "--trace-steps", "7:9")
    expect("no trace" in out and "step 7" in out and not list(WORK.glob("late.json*")), f"steps that never come:\n{out}")
    earlier = (WORK / "one0.json").read_bytes()
    out = train("late_alone", "--trace", "one0.json", "--trace-steps", "7:9", ranks=1)
    expect("no trace" in out and (WORK / "one0.json").read_bytes() == earlier, "a start without a trace loses an earlier one")


def test_mistakes():
    for words, text in ((["--trace-steps", "2:3"], "add --trace t.json"),
                        (["--trace", "x.json", "--trace-steps", "20:10"], "is not a range of steps"),
                        (["--trace", "x.json", "--trace-steps", "0:3"], "steps count from 1"),
                        (["--trace", "x.json", "--trace-steps", "a"], "is not a range of steps"),
                        (["--trace", "x.json", "--trace-steps", "1:2:3"], "is not a range of steps"),
                        (["--trace", "no/x.json"], "debug.trace: no/x.json")):
        out = train("wrong", *words, code=2)
        expect(text in out, f"{words}: {out}")


def main():
    (WORK / "text").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    subprocess.run([MTRAIN, "data", "build", "--input", WORK / "text", "--output", WORK / "corpus"], check=True,
                   capture_output=True)
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "corpus", WORK / "corpus"))
    failed = 0
    for test in (test_arrows, test_host_spans, test_steps, test_mistakes):
        try:
            test()
            print(f"ok      {test.__name__}", flush=True)
        except Failure as e:
            failed += 1
            print(f"FAILED  {test.__name__}: {e}", flush=True)
    if failed:
        sys.exit(f"kept: {WORK}")
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
