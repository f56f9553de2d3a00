#!/usr/bin/env python3
"""Kills a rank, and a host, of a run with local copies (checkpoint.local). Requires that the run continues within seconds, loses
at most one step, and makes the losses of an uninterrupted run. Damaged, absent and small folders cost a warning, not the run.

  test/process/local_copies_test.py <mtrain> <mtrain-launch> <library that changes the host's name>
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH, HOST_NAMES = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:4])
WORK = pathlib.Path(tempfile.mkdtemp())
LOCAL = WORK / "local"
# The time of a restart is printed, and depends on the load of the machine: 1 to 3 s on two busy cores. The bound leaves room for
# slow machines.
SECONDS = float(os.environ.get("MTRAIN_TEST_RESTART_S", "10"))
STEPS, KILLED = 42, 37
RECIPE = f"""
model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 2}}
tokenizer: byte
dataset: {{train: {WORK}/set, seq_length: 64}}
train: {{steps: {STEPS}, global_batch_size: 4, micro_batch_size: 1, threads: 1, log_every: 1, device: cpu}}
distributed: {{strategy: fsdp2}}
checkpoint: {{local: {{dir: {LOCAL}, every_steps: 1}}}}
lr_scheduler: {{style: constant}}
mixed_precision: fp32
comm: {{timeout_s: 60}}
debug: {{compute_slowdown: 10}}
"""
PORT = random.randrange(20000, 32000)  # below the ports that the kernel hands out


def fail(what, *texts):
    raise SystemExit("\n".join([what, *texts]))


def records(run):
    file = WORK / run / "metrics.jsonl"
    found = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # a line that is being written
            continue
        if "loss" in record:
            found[record["step"]] = record
    return found


def losses(run):
    return {step: r["loss"] for step, r in records(run).items()}


def await_step(run, step, process):
    end = time.time() + 120
    while step not in records(run):
        if process.poll() is not None or time.time() > end:
            fail(f"{run} has not reached step {step}", output(run))
        time.sleep(0.002)


def await_text(name, text, process):
    end = time.time() + 60
    while text not in (WORK / f"{name}.out").read_text():
        if process.poll() is not None or time.time() > end:
            fail(f"{name} has not printed `{text}`", (WORK / f"{name}.out").read_text())
        time.sleep(0.01)


def start(run, *more, host=None, launcher=()):
    """Starts a launcher in a process group of its own; its output goes to <run>.out, or to <run>.<host>.out."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(WORK)}
    if host:
        environment |= {"LD_PRELOAD": HOST_NAMES, "MTRAIN_TEST_HOST": host}
    command = [LAUNCH, *launcher, "--recipe", f"{WORK}/r.yaml", f"train.run_dir={WORK}/{run}", *more]
    out = open(WORK / f"{run}{'.' + host if host else ''}.out", "a")
    return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)


def output(run):
    return "".join(p.read_text() for p in sorted(WORK.glob(f"{run}*.out")))


def finish(run, *processes):
    for p in processes:
        if p.wait(timeout=180) != 0:
            fail(f"{run}: exit code {p.returncode}", output(run))


def two_ranks(*more):
    return ["--nproc_per_node=2", *more]


def node(number, port):
    return ["--nnodes=2", "--nproc_per_node=1", f"--node_rank={number}", "--master_addr=127.0.0.1", "--local_addr=127.0.0.1",
            f"--master_port={port}", "--max_restarts=3"]


def continued_from(run):
    found = re.findall(r"continuing after step (\d+) of the local copies", output(run))
    if len(found) != 1:
        fail(f"{run} has continued from {len(found)} local copies", output(run))
    return int(found[0])


def expect_restart(what, run, reached, killed_at, expected):
    """`reached`: the last step before the kill."""
    seconds, step = records(run)[reached + 1]["time"] - killed_at, continued_from(run)
    if reached - step > 1:
        fail(f"{what}: step {reached} was done, and the run has continued after step {step}", output(run))
    if losses(run) != expected:
        fail(f"{what}: other losses", str(losses(run)), str(expected), output(run))
    print(f"{what}: continued after step {step} of {reached} that were done; the next step was done {seconds:.2f} s after the kill "
          f"(load {os.getloadavg()[0]:.1f})")
    if seconds > SECONDS:
        fail(f"{what}: more than {SECONDS} s", output(run))


def leftovers():
    return sorted(str(p.relative_to(LOCAL)) for p in LOCAL.rglob("*")) if LOCAL.exists() else []


def expect_removed(what):
    if leftovers():
        fail(f"{what}: local copies stay after the end of the run", *leftovers())


def lost_rank(expected):
    run = "rank"
    process = start(run, f"debug.fault={{at: adamw, rank: 1, step: {KILLED}}}", launcher=two_ranks("--max_restarts=1"))
    await_step(run, KILLED - 1, process)
    killed_at = time.time()  # shortly before
    finish(run, process)
    expect_restart("a rank is lost", run, KILLED - 1, killed_at, expected)
    expect_removed("a rank is lost")


def lost_host(expected):
    run, settings = "host", ["checkpoint.local.replicas=1"]
    first, second = (start(run, *settings, host=f"host{n}", launcher=node(n, PORT)) for n in (0, 1))
    await_step(run, KILLED - 1, first)
    while not list((LOCAL / "host0").glob(f"*/step-{KILLED - 2:08}.*.rank-00001")) and first.poll() is None:
        time.sleep(0.002)  # step 37 begins when the copy of step 35 is complete
    os.killpg(second.pid, signal.SIGKILL)  # the kernel ends its rank
    killed_at, reached = time.time(), max(records(run))
    second.wait()
    shutil.rmtree(LOCAL / "host1")
    await_text(f"{run}.host0", "restarting all ranks", first)  # the ranks of the earlier start are then gone
    third = start(run, *settings, host="host1", launcher=node(1, PORT))
    finish(run, first, third)
    expect_restart("a host is lost", run, reached, killed_at, expected)
    expect_removed("a host is lost")


def killed_run(run, *more):
    """Starts a run, and kills all of it in step 37. -> the last step that was done"""
    process = start(run, *more, launcher=two_ranks())
    await_step(run, KILLED - 1, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # the watchdog ends the ranks
    return max(records(run))


def newest_parts():
    parts = sorted(LOCAL.glob("*/*/step-*"))
    complete = [s for s in {p.name.split(".")[0] for p in parts} if len([p for p in parts if p.name.startswith(s)]) == 2]
    return [p for p in parts if p.name.startswith(max(complete))]


def damage(expected):
    """A part that was changed is not used: the step before it is."""
    run = "damage"
    finish(run, start(run, "train.exit_interval=20", "checkpoint.at_end=false", launcher=two_ranks()))
    part = newest_parts()[0]
    step = int(part.name.split(".")[0].removeprefix("step-"))
    file = next(part.glob("weights-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)
    finish(run, start(run, "checkpoint.load=latest", launcher=two_ranks()))
    if "is damaged, and is not used" not in output(run) or continued_from(run) >= step or losses(run) != expected:
        fail("a damaged part", output(run))
    print(f"a part of step {step} is damaged: continued after step {continued_from(run)}")
    expect_removed("a damaged part")


def other_layout(expected):
    """Another number of ranks reads the copies."""
    run = "layout"
    killed_run(run)
    finish(run, start(run, "checkpoint.load=latest", launcher=["--nproc_per_node=4"]))
    worst = max(abs(loss / expected[step] - 1) for step, loss in losses(run).items())
    if continued_from(run) < KILLED - 3 or worst > 1e-4:
        fail(f"another layout: losses differ by {worst}", output(run))


def fresh_start(expected):
    """A run in a folder that was deleted uses no copies of the earlier run."""
    run = "fresh"
    killed_run(run)
    shutil.rmtree(WORK / run)
    (WORK / f"{run}.out").unlink()
    finish(run, start(run, launcher=two_ranks()))
    if "continuing" in output(run) or losses(run) != expected:
        fail("a run in a folder that was deleted", output(run))


def bad_folders(expected):
    """A folder that cannot be used costs one warning."""
    for run, setting, text in (("absent", f"checkpoint.local.dir={WORK}/no/such/local", "cannot make"),
                               ("small", "checkpoint.local.max_gib=0.0001", "max_gib allows"),
                               ("alone", "checkpoint.local.replicas=1", "")):
        finish(run, start(run, setting, launcher=two_ranks()))
        warnings = output(run).count("warning: no local copies are made")
        if warnings != (1 if text else 0) or text not in output(run) or losses(run) != expected:
            fail(f"{run}: {warnings} warnings", output(run))


def lost_folder(expected):
    """A folder that vanishes during the run costs one warning, and a metric."""
    run = "vanished"
    process = start(run, launcher=two_ranks())
    await_step(run, 10, process)
    LOCAL.rename(WORK / "gone")
    finish(run, process)
    if output(run).count("warning: a local copy is not complete") != 1 or losses(run) != expected:
        fail(run, output(run))
    if records(run)[STEPS].get("checkpoint.local_failures", 0) < 2:
        fail(f"{run}: no metric", str(records(run)[STEPS]))


def main():
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(20000))))
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True,
                   stdout=subprocess.DEVNULL)
    finish("expected", start("expected", "checkpoint.local.dir=", launcher=two_ranks()))
    expected = losses("expected")
    if sorted(expected) != list(range(1, STEPS + 1)):
        fail("the uninterrupted run", output("expected"))
    cases = [lost_rank, lost_host, damage, other_layout, fresh_start, bad_folders, lost_folder]
    for case in cases:
        if len(sys.argv) == 4 or case.__name__ in sys.argv[4:]:
            case(expected)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
