#!/usr/bin/env python3
"""Tests that a trouble around a run is one clear line, and changes nothing in the training: a folder for TensorBoard that cannot be written,
no memory for a rank, and a rank that does not end although it is killed.

  test/process/troubles_test.py <mtrain> <mtrain-launch>
"""
import ctypes
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, seq_length: 32}
train: {steps: 40, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
mixed_precision: fp32
comm: {timeout_s: 20, link: {latency_us: 2000}}
"""
PTRACE_SEIZE = 0x4206


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


class Job:
    def __init__(self, run, *settings):
        self.run, self.out = WORK / run, open(WORK / f"{run}.out", "w")
        self.process = subprocess.Popen([LAUNCH, "--nproc_per_node=2", "--recipe", "r.yaml", f"train.run_dir={run}", *settings],
                                        stdout=self.out, stderr=self.out, cwd=WORK)

    def output(self):
        return pathlib.Path(self.out.name).read_text()

    def end(self, seconds=90):
        return self.process.wait(seconds)

    def losses(self):
        path = self.run / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
        return {r["step"]: r["loss"] for r in records if "loss" in r}

    def await_step(self, step):
        end = time.monotonic() + 60
        while max(self.losses(), default=0) < step:
            expect(self.process.poll() is None and time.monotonic() < end, f"step {step} is not reached:\n{self.output()}")
            time.sleep(0.02)

    def rank(self, number):
        """The pid of a rank."""
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                if b"MTRAIN_LAUNCHER_PID=%d" % self.process.pid in words and b"RANK=%d" % number in words:
                    return int(path.name)
            except OSError:
                continue
        raise Failure(f"rank {number} is not found")


def lines_with(text, *words):
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_unwritable_tensorboard():
    straight = Job("straight")
    expect(straight.end() == 0, straight.output())
    (WORK / "file").write_text("")
    for name, folder in (("file", "file/tb"), ("proc", "/proc/none/tb")):
        job = Job(f"tb-{name}", f"train.tensorboard_dir={folder}")
        expect(job.end() == 0, f"{folder}: {job.output()}")
        lines = lines_with(job.output(), "train.tensorboard_dir")
        expect(len(lines) == 1 and "the training continues" in lines[0], f"{folder}: {lines}\n{job.output()}")
        expect(job.losses() == straight.losses() and len(job.losses()) == 40, f"{folder} changes losses")


def test_no_memory():
    """A rank whose memory is limited while it trains: its next large allocation is refused."""
    job = Job("memory", "train.steps=100000", "checkpoint.every_steps=50")
    job.await_step(10)
    pid = job.rank(1)
    kib = int(re.search(r"VmSize:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
    resource.prlimit(pid, resource.RLIMIT_AS, (kib << 10, kib << 10))
    code = job.end()
    out = job.output()
    cause = lines_with(out, "mtrain-launch: error: rank 1 failed:")
    expect(code == 1 and len(cause) == 1, f"exit code {code}: {out}")
    expect(re.search(r"out of memory.* in (step|save of step) \d+ of 100000: (\d+ bytes were|a thread was) refused", cause[0])
           or "the system refused" in cause[0], f"the cause: {cause}\n{out}")


def test_unkillable():
    """A rank is killed, and its tracer never looks: the kernel keeps it, as it keeps one that waits for a device. The launcher ends."""
    job = Job("held", "train.steps=100000")
    job.await_step(3)
    pid = job.rank(1)
    tracer = os.fork()  # the tracer must not be this process, which waits for others
    if tracer == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        ok = libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0
        os.write(2, b"" if ok else b"no ptrace\n")
        while True:
            time.sleep(60)
    try:
        time.sleep(0.5)
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        expect(re.search(rf"TracerPid:\s+{tracer}\b", status), "the rank is not traced: this test needs the right to trace processes")
        os.kill(job.rank(0), signal.SIGKILL)
        began = time.monotonic()
        code = job.end(60)
        took = time.monotonic() - began
        out = job.output()
        expect(code == 1 and took < 30, f"exit code {code} after {took:.1f} s: {out}")
        held = lines_with(out, f"rank 1 (pid {pid}) does not end although it was killed")
        expect(len(held) == 1, f"the rank is not named once: {out}")
        expect(lines_with(out, "mtrain-launch: error: rank 0"), f"the first cause is not named: {out}")
    finally:
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
    for _ in range(100):  # without its tracer the rank is gone
        if not pathlib.Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    raise Failure("the rank is still there")


def main():
    (WORK / "text").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    subprocess.run([MTRAIN, "data", "build", "--input", WORK / "text", "--output", WORK / "set"], check=True, capture_output=True)
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "set"))
    failed = 0
    for test in (test_unwritable_tensorboard, test_no_memory, test_unkillable):
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
