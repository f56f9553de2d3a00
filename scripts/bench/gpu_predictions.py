"""Predictions for one H200, made before anything was measured on one, and a comparison with measured figures.

The figures follow from sizes, datasheets and what other programs reach (gpu_step.py computes the step). A
prediction is a span, or a least or a most. `measured` takes the results that gpu_report.py has read and returns the
figure, or None if it was not measured.
"""
import dataclasses
import re
from typing import Callable, Optional

SPAN, LEAST, MOST = "from {low:.6g} to {high:.6g}", "at least {low:.6g}", "at most {high:.6g}"


@dataclasses.dataclass
class Prediction:
    what: str
    unit: str
    kind: str  # SPAN, LEAST or MOST
    low: float
    high: float
    measured: Callable[[dict], Optional[float]]

    def predicted(self):
        return f"{self.kind.format(low=self.low, high=self.high)} {self.unit}".strip()

    def verdict(self, value):
        if value is None:
            return "not measured"
        if self.kind == MOST:
            return "as predicted" if value <= self.high else f"SHORT: {value / self.high:.2f} of the most"
        if value < self.low:
            return f"SHORT: {value / self.low:.2f} of the least"
        return "better" if self.kind == SPAN and value > self.high else "as predicted"


def rates(found, kernel, shapes="bf16", field="rate"):
    """The figures of bench_cuda's rows whose kernel and shapes have these words."""
    return [row[field] for row in found.get("kernels", []) if re.search(kernel, row["kernel"]) and shapes in row["about"]
            and row[field] is not None]


def best(values):
    return max(values, default=None)


def worst(values):
    return min(values, default=None)


def train(found, name):
    """A figure of a training by mtrain alone that passed."""
    row = found.get("train", {}).get(name, {})
    return row["mtrain"] if row.get("result") == "passed" and "tokens_per_s" in row.get("mtrain", {}) else None


def of_training(name, field, scale=1.0):
    def measured(found):
        ours = train(found, name)
        return None if ours is None or ours[field] is None else scale * ours[field]
    return measured


def fp8_gain(found):
    wide, narrow = train(found, "1b"), train(found, "1b_fp8")
    return narrow["tokens_per_s"] / wide["tokens_per_s"] if wide and narrow else None


def slowest_by_cutlass(words):
    """bench_cuda's GEMMs of experts whose names have the words."""
    return lambda found: worst(rates(found, rf"^(gate_up|down){words}, .*, CUTLASS$"))


def graphs_gain(found):
    graphs, single = train(found, "moe"), train(found, "moe_single")
    return graphs["tokens_per_s"] / single["tokens_per_s"] if graphs and single else None


def compared(field, model):
    def measured(found):
        rows = [row for row in found.get("compare", []) if row["model"] == model and "failed" not in row]
        return rows[0].get(field) if rows else None
    return measured


PREDICTIONS = [
    Prediction("copy of 1 GiB, read and written", "TB/s", SPAN, 4.2, 4.4,
               lambda f: best([x / 1000 for x in rates(f, "^copy of", "")])),
    Prediction("fc1 forward, the best shape", "TFLOP/s", LEAST, 700, 0, lambda f: best(rates(f, r"^(fc1|up), forward(, chosen)?$"))),
    Prediction("weight gradients, the best shape", "TFLOP/s", LEAST, 600, 0, lambda f: best(rates(f, r", of the weight(, chosen)?$"))),
    # NVIDIA's benchmark of cuDNN 9.19 on an H200: 591 and 474 (128 dimensions, causal).
    Prediction("attention forward, S 4096", "TFLOP/s", SPAN, 550, 600,
               lambda f: best(rates(f, r"^attention S 4096, forward$"))),
    Prediction("attention backward, S 4096", "TFLOP/s", SPAN, 430, 480,
               lambda f: best(rates(f, r"^attention S 4096, backward$"))),
    Prediction("norms, the slowest", "% of a copy", LEAST, 85, 0, lambda f: worst(rates(f, "^norm", field="copy_percent"))),
    Prediction("memory-bound kernels, the slowest", "% of a copy", LEAST, 80, 0, lambda f: worst(rates(f, "", field="copy_percent"))),
    Prediction("1.5B", "tokens/s", SPAN, 57e3, 60e3, of_training("1b", "tokens_per_s")),
    Prediction("7B", "tokens/s", SPAN, 14e3, 15e3, of_training("7b", "tokens_per_s")),
    Prediction("1.5B at micro-batch 16, causal MFU", "%", LEAST, 55, 0, of_training("1b_micro16", "mfu", 100)),
    Prediction("7B, causal MFU", "%", LEAST, 59, 0, of_training("7b", "mfu", 100)),
    Prediction("1.5B in fp8 beside bf16", "x", LEAST, 1.12, 0, fp8_gain),
    # Estimates of CUTLASS's kernels, without a measurement of others' at these shapes.
    Prediction("GEMMs of experts by CUTLASS, the slowest in bf16", "TFLOP/s", LEAST, 500, 0, slowest_by_cutlass("")),
    Prediction("GEMMs of experts by CUTLASS, the slowest in 8 bits", "TFLOP/s", LEAST, 600, 0, slowest_by_cutlass(" 8 bits")),
    Prediction("2.6B with experts", "tokens/s", SPAN, 205e3, 225e3, of_training("moe", "tokens_per_s")),
    Prediction("2.6B with experts, causal MFU", "%", LEAST, 45, 0, of_training("moe", "mfu", 100)),
    Prediction("2.6B with experts, graphs beside single launches", "x", LEAST, 1.0, 0, graphs_gain),
    *(Prediction(f"{title} beside torch.compile", "x", LEAST, 1.15, 0, compared("ratio", model))
      for title, model in (("1.5B", "gpu_1b"), ("7B", "gpu_7b"), ("124M", "gpu_124m"))),
    *(Prediction(f"{title}, GPU memory beside PyTorch's", "x", MOST, 0, 1.0, compared("memory_ratio", model))
      for title, model in (("1.5B", "gpu_1b"), ("7B", "gpu_7b"), ("124M", "gpu_124m"))),
]


def compare(found):
    """[dict(what, predicted, measured, unit, verdict)]"""
    rows, other = [], any("H200" not in gpu for gpu in found.get("gpus", []))
    for p in PREDICTIONS:
        value = p.measured(found)
        rows.append(dict(what=p.what, predicted=p.predicted(), measured=value, unit=p.unit,
                         verdict=p.verdict(value) + (", predicted for an H200" if other and value is not None else "")))
    return rows
