#!/usr/bin/env python3
"""Compares a run's files for TensorBoard with its metrics.jsonl, as TensorBoard's own reader sees them.

  scripts/check_tensorboard.py RUN...

Every number of metrics.jsonl must be there once, rounded to 32 bits, and nothing else: also in runs that were resumed.
The recipe must be a text. Needs TensorBoard: pip install tensorboard.
"""
import json
import math
import pathlib
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

NOT_WRITTEN = {"step", "time", "elapsed_s"}


def rounded(value):
    return math.nan if value is None else struct.unpack("f", struct.pack("f", value))[0]


def of_metrics(run):
    found = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if key not in NOT_WRITTEN:
                found[key.replace(".", "/"), record["step"]] = rounded(value)
    return found


def main():
    runs = [pathlib.Path(run) for run in sys.argv[1:]]
    if not runs or runs[0].name in ("-h", "--help"):
        sys.exit(__doc__)
    failed = 0
    for run in runs:
        reader = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
        reader.Reload()
        events = [((tag, event.step), event.value) for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag)]
        scalars, expected = dict(events), of_metrics(run)
        differ = [key for key in scalars.keys() | expected.keys()
                  if key not in scalars or key not in expected
                  or not (scalars[key] == expected[key] or (math.isnan(scalars[key]) and math.isnan(expected[key])))]
        recipe = tensor_util.make_ndarray(reader.Tensors("recipe")[-1].tensor_proto).item().decode()
        lines = [line[4:] for line in recipe.splitlines()]
        text = (run / "recipe.yaml").read_text().splitlines()
        bad = differ or len(events) != len(scalars) or lines[:len(text)] != text
        print(f"{run}: {len(scalars)} numbers of {len(reader.Tags()['scalars'])} tags, {len(differ)} differ;"
              f" histograms: {reader.Tags()['histograms']}")
        for key in sorted(differ)[:10]:
            print("  ", key, scalars.get(key), expected.get(key))
        failed += bool(bad)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
