#!/usr/bin/env python3
"""Compares training speed, MFU, memory and time per operation of mtrain with PyTorch's: same models, same GPU.

  scripts/bench/compare_gpu.py [--models gpu_124m gpu_1b gpu_7b gpu_1b:fp8 ...] [--build build/release] [--output build/gpu/compare]
    [--seconds 270] [--python python3] [--alone FOLDER] [path=value ...]

The models are those of recipes/bench; settings after the options change both programs' model. PyTorch is torch_train.py
beside this file (torch.compile, fused AdamW, the fastest of SDPA's backends), with the same rules of precision: GEMMs
in bf16, fp32 weights to be updated, fp32 gradients and moments. (compare_torch.py measures on a CPU, where the two must
take turns on an idle machine.)

A model with ":fp8" after its name is mtrain's training with 8-bit GEMMs in the layers (fp8: hybrid, tensorwise scales),
beside PyTorch in bf16: a row without a target. PyTorch's figures of the same model and micro-batch are those of the row
before it, where there is one.

--alone names the folder with train_MODEL.json and profile_MODEL.json of gpu_train.py: their figures for a model of the
same shape are used, and only PyTorch is run.

Tokens/s are of the median step, by the wall clock. MFU counts 6 FLOPs per token and weight of a matmul, and attention's
of a causal mask (the half of a full one's), over the datasheet's dense bf16. Memory is the largest that nvidia-smi saw
in use above what was before, the same for both; beside it stands what each allocator had handed out. If one of the two
has no memory for a micro-batch, both use half of it, and the table says so. A model for which the seconds do not
suffice is listed as not measured. Writes FILE.json and FILE.md after every model, and the output of mtrain and of
failed programs into logs beside them. The exit code is 1 if a model fails, and 3 if none fails and one is not measured.
"""
import argparse
import array
import json
import math
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from process_groups import GROUP, kill_group

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEAK = {name.upper(): float(flops)   # of dense GEMMs in bf16
        for name, flops in re.findall(r"GpuFacts\{Gpu::(\w+), \d+, \d+, ([\d.e]+),", (ROOT / "lib/base/gpu_facts.h").read_text())}
assert "H100" in PEAK, "lib/base/gpu_facts.h is read by its rows"
VARIANTS = {"fp8": ["mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=tensorwise"]}
TARGET_SPEED, TARGET_MFU = 1.15, {"gpu_1b": 0.55, "gpu_7b": 0.62}
TARGET_OPERATION = 0.05  # the share of a step, for operations other than matmuls and attention
RULES = """Both programs: GEMMs in bf16, fp32 weights that are updated, fp32 gradients and moments. mtrain keeps bf16 copies of the
weights (18 bytes a parameter), PyTorch makes them by autocast (16 bytes); PyTorch compiles blocks and loss, with fused AdamW and the fastest
of SDPA's backends. Median step by the wall clock; FLOPs of MFU count attention as causal, over the datasheet's dense bf16.

"""
TIMED_OUT = 3            # exit code
SECONDS_LEAST = 30       # for a model: less is not begun
SECONDS_MOST = 110       # for one program: one that hangs leaves time to the others
OPERATION = re.compile(r"^(\S.*?)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+(?:([\d.]+) %|-)$", re.M)
PROFILED = re.compile(r"steps profiled: (\d+)")
OUT_OF_MEMORY = re.compile(r"out of (?:GPU )?memory|OutOfMemoryError|no memory for", re.I)


class Failed(Exception):
    said = ""  # all of it


class OutOfTime(Failed):
    """An error of the comparison, not of a program."""


class OutOfMemory(Exception):
    pass


def write_data(prefix, vocab, tokens):
    """Token files as `mtrain data build` makes them; ids of a natural text's frequencies (log-uniform), i32."""
    draw = random.Random(1)
    ids = array.array("i", (min(vocab - 1, int(vocab ** draw.random()) - 1) for _ in range(tokens)))
    pathlib.Path(f"{prefix}.bin").write_bytes(ids.tobytes())
    pathlib.Path(f"{prefix}.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2) +
                                              struct.pack("<iqqq", tokens, 0, 0, 1))


def settings_of(printed):
    """{path: value} from the output of --print-recipe."""
    found, scopes = {}, []
    for line in printed.splitlines():
        match = re.match(r"^( *)([\w.]+):(?: +(.*?))?(?: +#.*)?$", line)
        if match:
            depth = len(match[1]) // 2
            scopes[depth:] = [match[2]]
            if match[3]:
                found[".".join(scopes)] = match[3]
    return found


def shape_of(settings):
    number = lambda path: float(settings[path]) if "." in settings[path] or "e" in settings[path] else int(settings[path])
    yes = lambda path: settings[path] == "true"
    model = lambda name: number(f"model.{name}")
    latent = {}
    if settings.get("model.multi_latent_attention") == "true":
        latent = dict(kv_heads=model("num_attention_heads"), kv_rank=model("kv_lora_rank"), nope_dim=model("qk_nope_head_dim"),
                      head_dim=model("qk_nope_head_dim") + model("qk_rope_head_dim"), value_dim=model("v_head_dim"),
                      q_rank=0 if settings["model.q_lora_rank"] == "none" else model("q_lora_rank"))
    return dict(dict(
        layers=model("num_layers"), hidden=model("hidden_size"), heads=model("num_attention_heads"),
        kv_heads=model("num_query_groups"), head_dim=model("kv_channels"), ffn=model("ffn_hidden_size"), vocab=model("vocab_size"),
        init_std=model("init_method_std"), rotary_base=model("rotary_base"),
        experts=model("moe.num_experts"), per_token=model("moe.router_topk"),
        expert_ffn=number("model.moe.ffn_hidden_size") if settings["model.moe.num_experts"] != "0" else 0,
        qkv_bias=yes("model.add_qkv_bias"), tied=yes("model.share_embeddings_and_output_weights"),
        seq=number("dataset.seq_length"), global_batch=number("train.global_batch_size"),
        micro_batch=number("train.micro_batch_size"), precision=settings["mixed_precision.name"]),
        **latent)


def flops_per_token(s):
    """Training, causal attention."""
    qkv, attention = (s["heads"] + 2 * s["kv_heads"]) * s["head_dim"], s["heads"] * s["head_dim"]
    mlp = 3 * s["hidden"] * (s["per_token"] * s["expert_ffn"] if s["experts"] else s["ffn"]) + s["experts"] * s["hidden"]
    weights = s["layers"] * (s["hidden"] * (qkv + attention) + mlp) + s["vocab"] * s["hidden"]
    return 6 * weights + 6 * s["layers"] * attention * s["seq"]


class GpuMemory:
    """The most memory in use on the GPU, beyond what was before, as nvidia-smi sees it ten times a second."""

    def __enter__(self):
        self.seen, self.process = [], None
        try:
            self.process = subprocess.Popen(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                                             "-lms", "100"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except FileNotFoundError:
            return self
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        end = time.monotonic() + 3
        while not self.seen and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return self

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.seen.append(int(line))

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.reader.join()

    def most_mib(self):
        return max(self.seen) - min(self.seen) if self.seen else None  # the earlier program may still have been ending


def execute(command, seconds, cwd=ROOT):
    """-> (stdout, GPU's memory in MiB). Throws OutOfMemory, OutOfTime, or Failed with the end of the output."""
    if seconds <= 1:
        raise OutOfTime("no time was left")
    left, seconds = seconds, min(seconds, SECONDS_MOST)
    with GpuMemory() as memory, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(c) for c in command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, **GROUP)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"the limit of {seconds:.0f} s"
        finally:
            if process.poll() is None:
                kill_group(process)
                process.wait()
        out.seek(0), err.seek(0)
        said, complained = out.read(), err.read()
    if code == 0:
        return said, memory.most_mib()
    if OUT_OF_MEMORY.search(complained + said):
        raise OutOfMemory()
    failure = (OutOfTime if isinstance(code, str) and left < SECONDS_MOST else Failed)(f"{pathlib.Path(command[0]).name} ended with {code}: {' '.join((complained or said).split())[-400:]}")
    failure.said = said + complained
    raise failure


def measured(s, step_ms, memory, allocated, peak, **more):
    ms = statistics.median(step_ms)
    rate = s["global_batch"] * s["seq"] / ms * 1e3
    return dict(tokens_per_s=rate, step_ms=[round(x, 2) for x in step_ms], mfu=rate * flops_per_token(s) / peak if peak else None,
                memory_mib=memory, allocated_mib=round(allocated / 2**20), **more)


class Comparison:
    def __init__(self, args, work):
        self.args, self.work = args, work
        self.mtrain = (ROOT / args.build / "bin/mtrain").resolve()
        if not self.mtrain.exists():
            sys.exit(f"{self.mtrain} is not built")
        self.deadline = time.monotonic() + args.seconds
        self.torch_runs = []  # (shape, result)
        self.peak = next((flops for name, flops in PEAK.items() if re.search(rf"\b{name}\b", args.gpu)), None)

    def left(self):
        return self.deadline - time.monotonic()

    def command(self, model, *settings):
        recipe, _, variant = model.partition(":")
        return [self.mtrain, "--recipe", ROOT / f"recipes/bench/{recipe}.yaml", f"dataset.train={self.work}/{recipe}",
                f"train.device={self.args.device}", *VARIANTS.get(variant, []), *self.args.settings, *settings]

    def shape(self, model):
        printed = subprocess.run([*self.command(model), "--print-recipe"], capture_output=True, text=True, cwd=ROOT)
        if printed.returncode != 0:
            raise Failed(printed.stderr.strip())
        return shape_of(settings_of(printed.stdout))

    def run_mtrain(self, model, s):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work)) / "run"
        settings = [f"train.run_dir={folder}", f"train.micro_batch_size={s['micro_batch']}"]
        said, memory = execute(self.command(model, *settings, f"train.steps={self.args.warmup + self.args.steps}"), self.left())
        self.log(model, "mtrain", said)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "step_ms" in line]
        if len(lines) <= self.args.warmup:
            raise Failed(f"{len(lines)} steps in {folder}/metrics.jsonl")
        return measured(s, [line["step_ms"] for line in lines[self.args.warmup:]], memory, lines[-1]["memory_peak"], self.peak,
                        losses=[line["loss"] for line in lines], operations=[], operations_ms=0)

    def measured_alone(self, model, s):
        """The figures of mtrain that gpu_train.py has measured, or None."""
        found = {}
        for what in ("train", "profile"):
            file = self.args.alone / f"{what}_{model.replace(':', '_')}.json" if self.args.alone else None
            row = json.loads(file.read_text()) if file and file.exists() else {}
            if row.get("shape") == s and row.get("settings") == self.args.settings:
                found.update(row.get("mtrain", {}))
                if what == "train" and row.get("result") != "passed":
                    return None
        return found if "tokens_per_s" in found else None

    def profile_mtrain(self, model, s):
        """By itself: events around every launch, and no graphs."""
        folder = tempfile.mkdtemp(dir=self.work)
        said, _ = execute([*self.command(model, f"train.run_dir={folder}/run", f"train.micro_batch_size={s['micro_batch']}",
                                         "train.steps=5"), "--profile"], self.left())
        profiled = PROFILED.search(said)
        if not profiled:
            raise Failed("mtrain printed no profile")
        steps = int(profiled[1])
        rows = [[m[0], float(m[2]) / steps, "attention" if "attention" in m[0] else "matmul" if "matmul" in m[0] else "other"]
                for m in OPERATION.findall(said, profiled.end()) if m[4]]
        return dict(operations=rows, operations_ms=sum(row[1] for row in rows))

    def run_torch(self, model, s):
        if known := next((result for shape, result in self.torch_runs if shape == s), None):
            return known
        said, memory = execute(
            [self.args.python, ROOT / "scripts/bench/torch_train.py", "--shape", json.dumps(s), "--data", self.work / model.partition(":")[0],
             "--steps", self.args.steps, "--warmup", self.args.warmup, "--profile", 2, "--device", self.args.device,
             "--compile", int(self.args.compile)], self.left(), cwd=self.work)
        result = json.loads(said.splitlines()[-1])
        result = measured(s, result.pop("step_ms"), memory, result.pop("memory_allocated"), self.peak, **result)
        self.torch_runs.append((dict(s), result))
        return result

    def log(self, name, side, said):
        self.args.output.with_name(f"{self.args.output.name}_{name.replace(':', '_')}_{side}.log").write_text(said)

    def model(self, row):
        """Fills `row` until something fails."""
        name = row["model"]
        s = row["shape"] = self.shape(name)
        if ":" in name:
            row["notes"].append("mtrain in fp8, PyTorch in bf16")
        write_data(self.work / name.partition(":")[0], s["vocab"], max(1 << 19, 4 * s["global_batch"] * s["seq"]))
        while True:
            try:
                side = "mtrain"
                row["mtrain"] = self.measured_alone(name, s) or self.run_mtrain(name, s)
                side = "PyTorch"
                row["torch"] = self.run_torch(name, s)
                break
            except OutOfMemory:
                row.pop("mtrain", None)  # belongs to another micro-batch
                row["notes"].append(f"{side} has no memory for micro-batches of {s['micro_batch']}")
                if s["micro_batch"] == 1:
                    raise Failed("; ".join(row["notes"])) from None
                s["micro_batch"] //= 2
            except Failed as e:
                self.log(name, side, e.said)
                raise
        ours, theirs = row["mtrain"], row["torch"]
        row["ratio"] = ours["tokens_per_s"] / theirs["tokens_per_s"]
        if not all(map(math.isfinite, ours["losses"] + theirs["losses"])):
            raise Failed("a loss is not finite")
        if ours["memory_mib"] and theirs["memory_mib"]:
            row["memory_ratio"] = ours["memory_mib"] / theirs["memory_mib"]
        try:
            if not ours["operations"]:
                ours.update(self.profile_mtrain(name, s))
        except (Failed, OutOfMemory) as e:
            row["notes"].append(f"no profile of mtrain: {str(e) or 'no memory'}")
            if isinstance(e, Failed):
                self.log(name, "profile", e.said)
        row["largest_other"] = max(([ms / ours["operations_ms"], op] for op, ms, kind in ours["operations"] if kind == "other"),
                                   default=[0, ""])


def percent(x):
    return "" if x is None else f"{100 * x:.1f} %"


def verdict(good):
    return "" if good else ", short"


def table(rows):
    lines = ["| model | batch x S, micro | mtrain tok/s | PyTorch tok/s | ratio (>= 1.15) | MFU | PyTorch's | GPU memory MiB, mtrain / PyTorch "
             "| handed out MiB | largest operation but matmul and attention (<= 5 %) | notes |", "|---" * 11 + "|"]
    for r in rows:
        if "failed" in r:
            alone = f" {r['mtrain']['tokens_per_s']:.0f}, MFU {percent(r['mtrain']['mfu'])}" if "mtrain" in r else ""
            lines.append(f"| {r['model']} | |{alone} | {r['failed'].replace('|', '/')} |" + " |" * 7)
            continue
        s, ours, theirs = r["shape"], r["mtrain"], r["torch"]
        share, operation = r["largest_other"]
        target = TARGET_MFU.get(r["model"])
        judge = verdict if ":" not in r["model"] else lambda good: ""  # targets require equal precision
        lines.append("| {} | {} x {}, {} | {:.0f} | {:.0f} | **{:.2f}**{} | {}{} | {} | {} / {}{} | {} / {} | {} {}{} | {} |".format(
            r["model"], s["global_batch"], s["seq"], s["micro_batch"], ours["tokens_per_s"], theirs["tokens_per_s"], r["ratio"],
            judge(r["ratio"] >= TARGET_SPEED), percent(ours["mfu"]),
            "" if target is None or ours["mfu"] is None else f" (>= {percent(target)}){judge(ours['mfu'] >= target)}",
            percent(theirs["mfu"]), ours["memory_mib"], theirs["memory_mib"], judge(r.get("memory_ratio", 1) <= 1),
            ours["allocated_mib"], theirs["allocated_mib"], operation, percent(share), judge(share <= TARGET_OPERATION),
            "; ".join([f"SDPA {theirs['attention']}", *r["notes"]])))
    return "\n".join(lines) + "\n"


def operations_table(rows):
    lines = []
    for r in (r for r in rows if "failed" not in r):
        for side in ("mtrain", "torch"):
            run = r[side]
            if not run["operations"]:
                continue
            sums = {kind: sum(ms for _, ms, k in run["operations"] if k == kind) for kind in ("matmul", "attention", "other")}
            lines += ["", f"{r['model']}, {'PyTorch' if side == 'torch' else side}: {run['operations_ms']:.1f} ms of operations a step; "
                      + ", ".join(f"{kind} {ms:.1f} ms" for kind, ms in sums.items()), "", "| operation | ms a step | share |", "|---|---|---|"]
            lines += [f"| `{name}` | {ms:.2f} | {percent(ms / run['operations_ms'])} |" for name, ms, _ in run["operations"][:12]]
    return "\n".join(lines) + "\n"


def gpu_name():
    try:
        found = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return found.stdout.splitlines()[0].strip() if found.returncode == 0 and found.stdout else ""


def write(args, rows):
    args.output.with_suffix(".json").write_text(json.dumps(dict(gpu=args.gpu, rows=rows), indent=1) + "\n")
    args.output.with_suffix(".md").write_text(RULES + table(rows) + operations_table(rows))


def parse_with_settings(parser):
    """-> the arguments, those of the form path=value as `settings`. Makes the folder of --output, whose path is absolute,
    since programs run elsewhere. A signal to end then ends what execute() runs."""
    args, args.settings = parser.parse_known_args()
    if wrong := [x for x in args.settings if "=" not in x or x.startswith("-")]:
        parser.error(f"what is {wrong[0]}?")
    args.output = args.output.absolute()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return args


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpu_124m", "gpu_1b", "gpu_7b"], metavar="MODEL[:fp8]")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/gpu/compare")
    parser.add_argument("--seconds", type=float, default=270)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--python", default="python3", help="with PyTorch")
    parser.add_argument("--alone", type=pathlib.Path, help="the folder with gpu_train.py's results")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: that the comparison itself works")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parse_with_settings(parser)
    # argparse takes settings that follow the models for models.
    args.settings += [word for word in args.models if "=" in word]
    args.models = [word for word in args.models if "=" not in word]
    if wrong := [name for name in args.models if ":" in name and name.partition(":")[2] not in VARIANTS]:
        parser.error(f"{wrong[0]}: the variants of a model are {', '.join(VARIANTS)}")
    args.gpu = gpu_name()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(args, pathlib.Path(work))
        for name in args.models:
            began = time.monotonic()
            row = dict(model=name, notes=[])
            rows.append(row)
            try:
                if comparison.left() < SECONDS_LEAST:
                    row.update(failed="not measured: the time is spent", skipped=True)
                else:
                    comparison.model(row)
            except OutOfTime as e:
                row.update(failed=f"not measured: the time is spent: {e}", skipped=True)
            except Failed as e:
                row["failed"] = f"FAILED: {e}"
            except Exception as e:  # a program's output is not as expected: continue with the next model
                row["failed"] = f"FAILED: {type(e).__name__}: {e}"
            finally:  # the suite's time may end any of them
                if "largest_other" not in row:
                    row.setdefault("failed", "FAILED: ended from outside")
                write(args, rows)
            print(f"{name:10} {time.monotonic() - began:4.0f} s  " + (row.get("failed") or "mtrain {:.0f} tokens/s, PyTorch {:.0f}: {:.2f} x".format(
                row["mtrain"]["tokens_per_s"], row["torch"]["tokens_per_s"], row["ratio"])), flush=True)
    skipped = sum("skipped" in r for r in rows)
    failed = sum("failed" in r for r in rows) - skipped
    print(f"{len(rows)} models, {failed} failed, {skipped} not measured in time")
    sys.exit(1 if failed else TIMED_OUT if skipped else 0)


if __name__ == "__main__":
    main()
