#!/usr/bin/env python3
"""Trains a model of recipes/bench by mtrain alone on one GPU, checks its losses, and measures its speed.

  scripts/bench/gpu_train.py MODEL [--what train|profile|ladder] [--name NAME] [--build build/release] [--output FILE]
    [--seconds 60] [--like FILE] [path=value ...]

--what train checks that every loss is finite, that the losses fall, and that the first one is that of untrained weights
within 0.5: ln V, and hidden_size * init_method_std^2 / 2 for the spread of the first logits. Tokens/s, MFU and memory
are measured as in compare_gpu.py, whose --alone reads this row. --like names the FILE.json of another training of the
same model, whose losses must differ by 0.05 at most: the two may choose other algorithms of GEMMs. --what profile times every operation. --what ladder
runs gpu_ladder.py's rungs on a training that has failed. Writes FILE.json and a log beside it in every case. The exit
code is 1 if the training or a check failed, 3 if it took too long, and 4 if a micro-batch of 1 has no memory.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys
import tempfile

import gpu_ladder
from compare_gpu import ROOT, Comparison, Failed, OutOfMemory, OutOfTime, execute, gpu_name, measured, parse_with_settings, write_data

FIRST_LOSS_WITHIN, LIKE_WITHIN = 0.5, 0.05
TIMED_OUT, NO_MEMORY = 3, 4  # exit codes


def checks_of(shape, losses):
    """-> [[what, whether it holds]]"""
    if not losses:
        return [["there are losses", False]]
    expected = math.log(shape["vocab"]) + shape["hidden"] * shape["init_std"] ** 2 / 2
    first, last = losses[0], statistics.mean(losses[-2:])
    return [
        [f"{len(losses)} losses are finite", all(map(math.isfinite, losses))],
        [f"the first loss {first:.3f} is within {FIRST_LOSS_WITHIN} of {expected:.3f}", abs(first - expected) < FIRST_LOSS_WITHIN],
        [f"the losses fall, to {last:.3f}", last < first],
    ]


def likeness(losses, other, file):
    """-> [what, whether it holds]; `other` is the row of another training."""
    theirs = other.get("mtrain", {}).get("losses", [])
    if other.get("result") != "passed" or len(theirs) != len(losses):
        return [f"there are losses of {file} to compare with", False]
    apart = [abs(a - b) for a, b in zip(losses, theirs)]  # with NaN, which max() may pass over
    return [f"losses differ from those of {file} by {max(apart):.2g}, at most {LIKE_WITHIN}", all(x <= LIKE_WITHIN for x in apart)]


class Alone:
    def __init__(self, args, work, row):
        self.args, self.work, self.row = args, work, row
        self.comparison = Comparison(args, work)
        self.shape = row["shape"] = self.comparison.shape(args.model)
        tokens = self.shape["global_batch"] * self.shape["seq"]
        write_data(work / args.model.partition(":")[0], self.shape["vocab"], max(1 << 19, 4 * tokens))

    def train(self):
        while True:
            try:
                return self.row.update(mtrain=self.comparison.run_mtrain(self.args.model, self.shape))
            except OutOfMemory:
                micro = self.shape["micro_batch"]
                self.row["notes"].append(f"no memory for micro-batches of {micro}")
                if micro == 1:
                    raise
                self.shape["micro_batch"] = micro // 2

    def check(self):
        losses = self.row["mtrain"]["losses"]
        self.row["checks"] = checks_of(self.shape, losses)
        if like := self.args.like:
            self.row["checks"].append(likeness(losses, json.loads(like.read_text()) if like.exists() else {}, like.name))
        self.require(self.row["checks"])

    def require(self, checks):
        if wrong := [what for what, good in checks if not good]:
            raise Failed("not so: " + "; ".join(wrong))

    def salvage(self):
        """Measures the steps that were done before the time ended."""
        for metrics in self.work.glob("*/run/metrics.jsonl"):
            lines = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
            lines = [line for line in lines if "step_ms" in line]
            self.row["notes"].append(f"{len(lines)} steps were done")
            if len(lines) > self.args.warmup:
                self.row["mtrain"] = measured(self.shape, [line["step_ms"] for line in lines[self.args.warmup:]], None,
                                              lines[-1]["memory_peak"], self.comparison.peak, losses=[x["loss"] for x in lines],
                                              operations=[], operations_ms=0)

    def ladder(self):
        def run(settings, environment, seconds):
            folder = tempfile.mkdtemp(dir=self.work)
            command = self.comparison.command(self.args.model, f"train.run_dir={folder}/run", "train.steps=3", *settings)
            execute(["env", *environment, *command], seconds)
            lines = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
            self.require(checks_of(self.shape, [line["loss"] for line in lines if "step_ms" in line]))

        def wrote(rows):
            self.row.update(rungs=rows, verdict=gpu_ladder.verdict(rows))
            write(self.args, self.row)

        rows = gpu_ladder.climb(run, self.comparison.left(), max(10.0, self.comparison.left() / 3), wrote,
                                gpu_ladder.rungs_for(bool(self.shape["experts"])))
        code = gpu_ladder.exit_code(rows)
        self.row.update(result={0: "passed", 1: "failed", TIMED_OUT: "timed out"}[code], why="")
        return code


def write(args, row):
    args.output.with_suffix(".json").write_text(json.dumps(row, indent=1) + "\n")


def perform(args, work, row):
    """-> the exit code."""
    alone = None
    try:
        alone = Alone(args, work, row)
        if args.what == "ladder":
            return alone.ladder()
        if args.what == "profile":
            row["mtrain"] = alone.comparison.profile_mtrain(args.model, alone.shape)
        else:
            alone.train()
            alone.check()
        row.update(result="passed", why="")
        return 0
    except OutOfTime as e:
        row.update(result="timed out", why=str(e))
        if alone and args.what == "train":
            alone.salvage()
        return TIMED_OUT
    except OutOfMemory:
        row.update(result="failed", why="no memory")
        return NO_MEMORY
    except Failed as e:
        row.update(result="failed", why=str(e))
        args.output.with_name(args.output.name + "_failed.log").write_text(e.said)
    return 1


def tell(row):
    """The last line is the one that the suite's report has."""
    ours, said = row.get("mtrain", {}), [row["result"]]
    for what, good in row.get("checks", []):
        print(f"{'ok    ' if good else 'FAILED'} {what}")
    for operation, ms, _ in sorted(ours.get("operations", []), key=lambda x: -x[1])[:12]:
        print(f"{ms:9.2f} ms a step  {operation}")
    if "tokens_per_s" in ours:
        said.append(f"{ours['tokens_per_s']:.0f} tokens/s" + ("" if ours["mfu"] is None else f", MFU {100 * ours['mfu']:.1f} %"))
        said.append(f"{ours['memory_mib']} MiB in use" if ours["memory_mib"] else "")
    print("; ".join(filter(None, [*said, row.get("verdict"), row["why"], *row["notes"]])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--what", choices=["train", "profile", "ladder"], default="train")
    parser.add_argument("--name", help="in reports; default: the model")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/gpu/train")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--like", type=pathlib.Path, help="the .json of another training of the model, with the same losses")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parse_with_settings(parser)
    args.gpu = gpu_name()
    row = dict(name=args.name or args.model, model=args.model, what=args.what, settings=args.settings, notes=[],
               result="failed", why="ended from outside")
    with tempfile.TemporaryDirectory() as work:
        try:
            code = perform(args, pathlib.Path(work), row)
        except Exception as e:  # a program's output is not as expected
            row.update(result="failed", why=f"{type(e).__name__}: {e}")
            code = 1
        finally:
            write(args, row)
    tell(row)
    sys.exit(code)


if __name__ == "__main__":
    main()
