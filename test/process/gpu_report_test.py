#!/usr/bin/env python3
"""Tests scripts/bench/gpu_report.py and what it reads, with made-up results: of a full suite, of one that was ended early, of one in which parts failed and took too long, and of files that are half written."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))
import gpu_kernels  # noqa: E402
import gpu_ladder  # noqa: E402
import gpu_predictions  # noqa: E402
import gpu_train  # noqa: E402
from compare_gpu import Failed, OutOfMemory, OutOfTime  # noqa: E402

SHAPE = dict(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=512, init_std=0.02, rotary_base=10000, qkv_bias=True,
             tied=True, seq=64, global_batch=32, micro_batch=8, precision="bf16_mixed")


def run(rate, mfu=0.5, memory=1000, losses=(6.2, 6.1, 6.0)):
    return dict(tokens_per_s=rate, step_ms=[10.0], mfu=mfu, memory_mib=memory, allocated_mib=memory - 10, losses=list(losses),
                operations=[["matmul_fc1_fwd", 8.0, "matmul"], ["norm_fwd", 0.2, "other"]], operations_ms=8.2)


def trained(name, model, ours, **more):
    return dict(dict(name=name, model=model, what="train", settings=[], notes=[], result="passed", why="", shape=SHAPE, mtrain=ours), **more)


def compared(model, ours, theirs):
    return dict(rows=[dict(model=model, notes=[], shape=SHAPE, mtrain=ours, torch=dict(theirs, attention="cudnn"),
                           ratio=ours["tokens_per_s"] / theirs["tokens_per_s"], memory_ratio=ours["memory_mib"] / theirs["memory_mib"],
                           largest_other=[0.02, "norm_fwd"])])


FULL = {
    "gpus": "NVIDIA H200, 580.0, 143771 MiB\n",
    "parts.tsv": "smoke\trunning\t\t0\t10\t2026/11/22 10:00:00\t2026/11/22 10:00:00\n"
                 "smoke\tpassed\t0 missing\t4\t10\t2026/11/22 10:00:00\t2026/11/22 10:00:04\n"
                 "kernels against the CPU\tpassed\t81 test cases, 0 failed\t50\t90\t2026/11/22 10:00:04\t2026/11/22 10:00:54\n"
                 "training against the CPU\tpassed\t12 test cases, 0 failed\t5\t60\t2026/11/22 10:00:54\t2026/11/22 10:00:59\n"
                 "train 1.5B\tpassed\tpassed\t9\t20\t2026/11/22 10:01:00\t2026/11/22 10:01:09\n"
                 "train 7B\tnot run\tthe time is spent\t0\t0\t2026/11/22 10:01:05\t2026/11/22 10:01:05\n",
    "clocks.csv": "2026/11/22 10:00:59.100, 345, 80, 30, 0, 3201, 1\n2026/11/22 10:01:01.100, 1980, 640.5, 55, 99, 3201, 1\n"
                  "2026/11/22 10:01:05.600, 1700, 700, 60, 97, 3201, 1\n2026/11/22 10:01:06.000, [N/A], 700, 60, 97, 3201, 1\n",
    "speed_of_the_kernels.log": "NVIDIA H200\ncopy of 1 GiB  500.0 us  4295 GB/s\n--- 8B, bf16, 8192 tokens\n"
                                "norm, forward                 10.0 us  3700 GB/s   86.0 % of a copy\n"
                                "add                           10.0 us  3300 GB/s   79.0 % of a copy\n"
                                "attention S 4096, forward    100.0 us      520 TFLOP/s  (cuDNN)\n"
                                "up, forward                  100.0 us      710 TFLOP/s\n"
                                "up, of the weight            100.0 us      550 TFLOP/s\n--- 8B, f32, 8192 tokens\n"
                                "norm, forward                 10.0 us  2000 GB/s   40.0 % of a copy\n",
    "train_gpu_1b.json": trained("1.5B", "gpu_1b", run(58000)),
    "train_gpu_1b_fp8.json": trained("1.5B in fp8", "gpu_1b", run(70000), settings=["mixed_precision.fp8=hybrid"]),
    "train_gpu_1b_micro16.json": trained("1.5B at micro-batch 16", "gpu_1b", run(61000, mfu=0.59)),
    "train_gpu_7b.json": trained("7B", "gpu_7b", run(13000, mfu=0.57), notes=["no memory for micro-batches of 2"]),
    "compare_gpu_1b.json": compared("gpu_1b", run(58000), run(50000, memory=1100)),
    "compare_gpu_124m.json": compared("gpu_124m", run(600000, memory=1200), run(580000)),
    "kernels.json": dict(tool="ncu", rows=[dict(kernel="nvjet_x", kind="product on Hopper's tensor cores", launches=3, us=12.0)],
                         looked_for=[["products on Hopper's tensor cores", True, ["nvjet_x"]], ["attention by cuDNN", None, []]]),
}


class Report(unittest.TestCase):
    def report(self, files):
        """-> (summary.json, summary.md)"""
        with tempfile.TemporaryDirectory() as folder:
            logs = pathlib.Path(folder, "logs")
            logs.mkdir()
            for name, content in files.items():
                (logs / name).write_text(content if isinstance(content, str) else json.dumps(content))
            subprocess.run([sys.executable, ROOT / "scripts/bench/gpu_report.py", "--logs", logs, "--commit", "abc1234", "--device", "cuda",
                            "--output", f"{folder}/summary"], check=True)
            self.assertEqual(sorted(p.name for p in pathlib.Path(folder).glob("summary*")), ["summary.json", "summary.md"])
            return json.loads(pathlib.Path(folder, "summary.json").read_text()), pathlib.Path(folder, "summary.md").read_text()

    def says(self, text, *lines):
        for line in lines:
            self.assertIn(line, text)

    def test_full(self):
        found, text = self.report(FULL)
        self.says(text, "**5 parts: 4 passed, 0 failed, 0 timed out, 1 not run**",
                  "| smoke | passed | 4 | 10 | 0 missing |",
                  "| copy of 1 GiB, read and written | from 4.2 to 4.4 TB/s | 4.29 | as predicted |",
                  "| fc1 forward, the best shape | at least 700 TFLOP/s | 710 | as predicted |",
                  "| weight gradients, the best shape | at least 600 TFLOP/s | 550 | SHORT: 0.92 of the least |",
                  "| attention forward, S 4096 | from 550 to 600 TFLOP/s | 520 | SHORT: 0.95 of the least |",
                  "| norms, the slowest | at least 85 % of a copy | 86 | as predicted |",
                  "| memory-bound kernels, the slowest | at least 80 % of a copy | 79 | SHORT: 0.99 of the least |",
                  "| 1.5B | from 57000 to 60000 tokens/s | 58000 | as predicted |",
                  "| 7B | from 14000 to 15000 tokens/s | 13000 | SHORT: 0.93 of the least |",
                  "| 1.5B at micro-batch 16, causal MFU | at least 55 % | 59 | as predicted |",
                  "| 1.5B in fp8 beside bf16 | at least 1.12 x | 1.21 | as predicted |",
                  "| 1.5B beside torch.compile | at least 1.15 x | 1.16 | as predicted |",
                  "| 124M beside torch.compile | at least 1.15 x | 1.03 | SHORT: 0.90 of the least |",
                  "| 7B beside torch.compile | at least 1.15 x |  | not measured |",
                  "| 1.5B, GPU memory beside PyTorch's | at most 1 x | 0.909 | as predicted |",
                  "| 124M, GPU memory beside PyTorch's | at most 1 x | 1.2 | SHORT: 1.20 of the most |",
                  "| 7B | passed | 13000 | 57.0 % | 1000 | 6.200 to 6.000 | no memory for micro-batches of 2 |",
                  "- products on Hopper's tensor cores: yes (nvjet_x)", "- attention by cuDNN: not seen",
                  "| train 1.5B | 2 | 1840 | 1700 | 670 | 700 | 60 |",
                  "| 8B, bf16, 8192 tokens | add | 10.0 | 3300 GB/s | 79.0 %, short |  |",
                  "| 8B, bf16, 8192 tokens | attention S 4096, forward | 100.0 | 520 TFLOP/s |  | cuDNN |")
        self.assertEqual([c["part"] for c in found["clocks"]], ["train 1.5B"])

    def test_the_first_call_answers_its_questions(self):
        _, text = self.report(dict(FULL, **{"profile_gpu_1b.json": trained("1.5B", "gpu_1b", run(58000), what="profile")}))
        self.says(text, "| Do kernels and training agree with the CPU? | yes; kernels: 81 test cases, 0 failed; training: 12 test cases, 0 failed |",
                  "| Which engines run? | products on Hopper's tensor cores: yes (nvjet_x); attention by cuDNN: not seen |",
                  "| MFU of 1.5B in bf16, causal | 50.0 % at 58000 tokens/s |",
                  "| Where does its time go? | 8.2 ms of operations: matmul 97.6 %, attention 0.0 %, other 2.4 % (most of it `norm_fwd` 0.2 ms); "
                  "a step takes 10.0 ms without the profile |")
        self.assertLess(text.index("| question | answer |"), text.index("| part | result |"))
        # Neither a part that failed nor one that has not run shows agreement, and a training that failed has no MFU.
        parts = FULL["parts.tsv"].replace("kernels against the CPU\tpassed\t81 test cases, 0", "kernels against the CPU\tfailed\t81 test cases, 2")
        _, text = self.report({"parts.tsv": parts, "train_gpu_1b.json": trained("1.5B", "gpu_1b", {}, result="failed", why="no memory")})
        self.says(text, "| NO; kernels: 81 test cases, 2 failed; training:", "| Which engines run? | not known |",
                  "causal | not known: failed, no memory |", "| Where does its time go? | not known |")
        _, text = self.report({"parts.tsv": "\n".join(FULL["parts.tsv"].splitlines()[:3]) + "\n"})
        self.says(text, "| as far as it was seen; kernels: 81 test cases, 0 failed |")
        # The second call does not ask them.
        _, text = self.report({"parts.tsv": "layouts\tpassed\t\t4\t10\ta\tb\n"})
        self.assertNotIn("| question |", text)

    def test_predictions_on_another_gpu_are_named_as_such(self):
        found, text = self.report(dict(FULL, gpus="NVIDIA H100 80GB HBM3, 580.0, 81559 MiB\n"))
        self.says(text, "| 1.5B | from 57000 to 60000 tokens/s | 58000 | as predicted, predicted for an H200 |",
                  "| 7B beside torch.compile | at least 1.15 x |  | not measured |")

    def test_before_anything(self):
        found, text = self.report({})
        self.assertEqual({p["verdict"] for p in found["predictions"]}, {"not measured"})
        self.says(text, "**0 parts: 0 passed, 0 failed, 0 timed out, 0 not run**", "| 7B | from 14000 to 15000 tokens/s |  | not measured |")

    def test_ended_in_its_midst(self):
        """The part that ran is named, and a half-written file affects nothing else."""
        files = {name: FULL[name] for name in ("gpus", "speed_of_the_kernels.log", "train_gpu_1b.json")}
        files["parts.tsv"] = FULL["parts.tsv"] + "train 7B\trunning\t\t0\t30\t2026/11/22 10:01:10\t2026/11/22 10:01:10\n"
        files["train_gpu_7b.json"] = '{"name": "7B", "mtr'
        files["compare_gpu_1b.json"] = ""
        found, text = self.report(files)
        self.says(text, "**5 parts: 4 passed, 0 failed, 0 timed out, 0 not run, 1 running**", "| train 7B | running |  | 30 |  |",
                  "| 1.5B | from 57000 to 60000 tokens/s | 58000 | as predicted |")
        self.assertEqual(set(found["train"]), {"1b"})

    def test_failed_and_timed_out(self):
        """A part that did not pass is not a measurement, a time-out is not a failure, and the ladder is reported."""
        rungs = [dict(rung="as it is", settings=[], environment=[], result="failed", why="cudnnBackendExecute | failed", seconds=4.0),
                 dict(rung="own attention", settings=["debug.own_attention=true"], environment=[], result="passed", why="", seconds=5.0),
                 dict(rung="no CUDA graphs", settings=["train.enable_cuda_graph=false"], environment=[], result="timed out", why="longer")]
        failed = trained("1.5B", "gpu_1b", run(58000, losses=(6.2, float("nan"))), result="failed", why="not so: 2 losses are finite")
        late = trained("7B", "gpu_7b", run(14500), result="timed out", why="mtrain ended with the limit of 27 s", notes=["6 steps were done"])
        found, text = self.report({
            "parts.tsv": "train 1.5B\tfailed\tended with 1: failed\t9\t20\ta\tb\ntrain 7B\ttimed out\tlonger than 30 s\t30\t30\ta\tb\n"
                         "PyTorch 7B\tnot run\tthe time is spent\t0\t0\ta\tb\n",
            "train_gpu_1b.json": failed, "train_gpu_7b.json": late, "ladder.json": dict(name="1.5B", rungs=rungs, verdict=gpu_ladder.verdict(rungs)),
            "compare_gpu_1b.json": dict(rows=[dict(model="gpu_1b", notes=[], failed="FAILED: PyTorch | no such thing", mtrain=run(58000))])})
        self.says(text, "**3 parts: 0 passed, 1 failed, 1 timed out, 1 not run**", "| train 1.5B | FAILED | 9 | 20 | ended with 1: failed |",
                  "| train 7B | TIMED OUT | 30 | 30 | longer than 30 s |",
                  "**it passes with own attention: debug.own_attention=true**",
                  "| as it is | failed | 4.0 | cudnnBackendExecute / failed |", "| no CUDA graphs | timed out |  | longer |",
                  "| 1.5B | from 57000 to 60000 tokens/s |  | not measured |", "| 7B | from 14000 to 15000 tokens/s |  | not measured |",
                  "FAILED: PyTorch / no such thing")
        self.assertNotIn("NaN", text)
        self.assertEqual(found["parts"][1]["result"], "timed out")


class Ladder(unittest.TestCase):
    def climb(self, outcome, seconds=100):
        """outcome(settings, environment): returns, or throws as execute() does."""
        written = []
        rows = gpu_ladder.climb(lambda settings, environment, _: outcome(settings, environment), seconds, 10, lambda r: written.append(len(r)))
        return rows, written

    def test_names_the_rung_that_passes(self):
        def outcome(settings, environment):
            if gpu_ladder.NO_GRAPHS not in settings:
                raise Failed("a graph") if environment else OutOfTime("10 s")
        rows, written = self.climb(outcome)
        self.assertEqual([r["result"] for r in rows], ["timed out", "timed out", "passed", "failed", "passed"])
        self.assertEqual(gpu_ladder.chosen(rows)["rung"], "no CUDA graphs")
        self.assertEqual(gpu_ladder.verdict(rows), "it passes with no CUDA graphs: train.enable_cuda_graph=false")
        self.assertEqual(gpu_ladder.exit_code(rows), 0)
        self.assertEqual(written[:5], [1, 2, 3, 4, 5])  # after every rung

    def test_a_training_that_passes_now_ends_the_ladder(self):
        rows, _ = self.climb(lambda *_: None)
        self.assertEqual(len(rows), 1)
        self.assertIn("does not fail every time", gpu_ladder.verdict(rows))

    def test_no_rung_passes(self):
        def fails(*_):
            raise OutOfMemory()

        def hangs(*_):
            raise OutOfTime("10 s")
        self.assertEqual(gpu_ladder.exit_code(self.climb(fails)[0]), 1)
        self.assertEqual(gpu_ladder.exit_code(self.climb(hangs)[0]), 3)
        rows, _ = self.climb(fails, seconds=0)
        self.assertEqual({r["result"] for r in rows}, {"not run"})
        self.assertIsNone(gpu_ladder.chosen(rows))


class Checks(unittest.TestCase):
    def good(self, losses, **shape):
        return [good for _, good in gpu_train.checks_of(dict(SHAPE, **shape), losses)]

    def test_losses_of_two_trainings_differ_little(self):
        other = dict(result="passed", mtrain=dict(losses=[6.2, 6.1]))
        self.assertTrue(gpu_train.likeness([6.21, 6.08], other, "x")[1])
        self.assertFalse(gpu_train.likeness([6.2, 6.0], other, "x")[1])
        self.assertFalse(gpu_train.likeness([6.2, math.nan], other, "x")[1])
        self.assertFalse(gpu_train.likeness([6.2], other, "x")[1])  # a training that ended early
        self.assertFalse(gpu_train.likeness([6.2, 6.1], dict(other, result="failed"), "x")[1])
        self.assertFalse(gpu_train.likeness([6.2, 6.1], {}, "x")[1])

    def test_the_ladder_of_experts_has_their_own_rung(self):
        self.assertEqual(gpu_ladder.rungs_for(False), gpu_ladder.RUNGS)
        added = [rung for rung in gpu_ladder.rungs_for(True) if rung not in gpu_ladder.RUNGS]
        self.assertEqual([name for name, *_ in added], ["own GEMMs of experts", "all of them"])
        self.assertTrue(all(gpu_ladder.OWN_EXPERTS in settings for _, settings, _ in added))

    def test_losses(self):
        self.assertEqual(self.good([6.25, 6.2, 6.1]), [True, True, True])
        self.assertEqual(self.good([6.25, float("nan"), 6.1])[0], False)
        self.assertEqual(self.good([5.6, 5.5])[1], False)   # too low for untrained weights
        self.assertEqual(self.good([6.25, 6.3, 6.4])[2], False)
        self.assertEqual(self.good([]), [False])
        # Wide models' first logits are spread: ln 32000 is 10.37, and 4096 * 0.02^2 / 2 is 0.82.
        self.assertEqual(self.good([11.2, 10.9], vocab=32000, hidden=4096), [True, True, True])


class KernelNames(unittest.TestCase):
    NSYS = ("Generating SQLite file\n\nTime (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
            '60.0,3000,3,1000.0,1000.0,900,1100,1.0,"void sgemm_simt<float, 128>(Args)"\n40.0,2000,1,2000.0,2000.0,2000,2000,0.0,'
            "attention_forward_kernel\n")

    def test_nsys_and_what_is_looked_for(self):
        rows = gpu_kernels.summary(gpu_kernels.of_nsys(self.NSYS))
        self.assertEqual([(r["launches"], round(r["us"], 3)) for r in rows], [(3, 3.0), (1, 2.0)])
        self.assertEqual([good for _, good, _ in gpu_kernels.seen(rows)], [False, False])
        self.assertEqual([good for _, good, _ in gpu_kernels.seen([])], [None, None])

    def test_kinds(self):
        for name, kind in (("nvjet_sm90_tst_128x256", "product on Hopper's tensor cores"),
                           ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma", "attention by cuDNN"),
                           ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>", "product by earlier kernels"),
                           ("void mtrain::attention_tensor<bf16>(Args)", "attention, our own"),
                           ("void mtrain::swiglu_forward<bf16>(Args)", "other")):
            self.assertEqual(gpu_kernels.kind_of(name), kind, name)


class Predictions(unittest.TestCase):
    def test_each_is_named_once(self):
        names = [p.what for p in gpu_predictions.PREDICTIONS]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
