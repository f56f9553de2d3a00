#!/usr/bin/env python3
"""Tests that a wrong clock is named in one clear line and changes nothing: on one of two hosts, and set back an hour while a run lasts.

  test/process/clocks_test.py <mtrain> <mtrain-launch> <library that changes the clock> <library that changes the host's name>
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH, CLOCK, HOST_NAME = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:5])
WORK = pathlib.Path(tempfile.mkdtemp())
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, seq_length: 32}
train: {steps: 200, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
checkpoint: {every_steps: 50}
mixed_precision: fp32
comm: {timeout_s: 30, link: {latency_us: 2000}}
"""
HOUR = 3600
PORTS = iter(random.sample(range(20000, 32000), 10))  # below the ports that the kernel hands out


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def shifted(seconds, name):
    """The environment of processes whose clock differs by `seconds`, and the file that sets this."""
    file = WORK / f"{name}.clock"
    file.write_text(str(seconds))
    return {"LD_PRELOAD": f"{CLOCK}:{HOST_NAME}", "MTRAIN_TEST_CLOCK": str(file)}, file


def start(run, words, environment, node=None):
    out = open(WORK / f"{run}.out", "w")
    hosts = [] if node is None else ["--nnodes=2", f"--node_rank={node[0]}", "--master_addr=127.0.0.1", "--local_addr=127.0.0.1", f"--master_port={node[1]}",
                                     f"--token_file={WORK}/token"]
    return subprocess.Popen([LAUNCH, "--nproc_per_node=1" if node else "--nproc_per_node=2", *hosts, *words],
                            stdout=out, stderr=out, cwd=WORK, env={**os.environ, "XDG_CACHE_HOME": str(WORK), **environment})


def output(run):
    return (WORK / f"{run}.out").read_text()


def losses(run):
    records = [json.loads(line) for line in (WORK / run / "metrics.jsonl").read_text().splitlines()]
    return {r["step"]: r["loss"] for r in records if "loss" in r}


def two_hosts(name, words, seconds, may_fail=False):
    """Runs `words` on two hosts, of which the second has another clock. Returns what both print."""
    port = next(PORTS)
    processes = []
    for host, by in ((0, 0), (1, seconds)):
        environment, _ = shifted(by, f"{name}{host}")
        processes.append(start(f"{name}-{host}", words, {**environment, "MTRAIN_TEST_HOST": f"host{host}"}, node=(host, port)))
    codes = [process.wait(120) for process in processes]
    text = "".join(output(f"{name}-{host}") for host in (0, 1))
    expect(codes == [0, 0] or may_fail, f"{name}: exit codes {codes}\n{text}")
    return text


def train(run):
    return ["--recipe", "r.yaml", f"train.run_dir={run}"]


def test_skew():
    for seconds, words in ((-HOUR, "earlier than that of host0"), (90, "later than that of host0"), (0, None)):
        run = f"skew{seconds}"
        out = two_hosts(run, [*train(run), "train.steps=20"], seconds)
        lines = [line for line in out.splitlines() if "clock" in line]
        if words is None:
            expect(not lines, f"equal clocks: {lines}")
            continue
        expect(len(lines) == 1, f"a clock that differs by {seconds} s: {lines}\n{out}")
        found = re.search(r"the clock of host1 is ([\d.]+) s " + words, lines[0])
        expect(found and abs(float(found[1]) - abs(seconds)) < 2, f"{seconds} s: {lines[0]}")
        expect("time service" in out, f"no hint: {lines}")
        expect(losses(run) == losses("skew-3600"), "a clock changes losses")


def test_doctor():
    out = two_hosts("doctor", ["mtrain", "doctor", "--hosts", "--json"], -HOUR, may_fail=True)  # other rows may have faults
    hosts = json.loads(out[out.index("[\n"):out.rindex("]") + 1])
    rows = [[row for row in host["rows"] if row["check"] == "clock, hosts"] for host in hosts]
    expect([len(r) for r in rows] == [0, 1], f"rows: {rows}")
    row = rows[1][0]
    expect(row["verdict"] == "warning" and "earlier than that of host0" in row["value"] and "time service" in row["hint"], row)


def test_set_back():
    """The clock goes back an hour, and forward again, while a run trains, saves and serves metrics."""
    environment, file = shifted(0, "back")
    process = start("back", ["--metrics_port=0", *train("back")], environment)
    def await_step(step):
        end = time.monotonic() + 60
        while not ((WORK / "back/metrics.jsonl").exists() and f'"step":{step},' in (WORK / "back/metrics.jsonl").read_text()):
            expect(process.poll() is None and time.monotonic() < end, f"step {step} is not reached\n{output('back')}")
            time.sleep(0.01)
    await_step(20)
    file.write_text(str(-HOUR))
    await_step(60)
    watched = subprocess.run([MTRAIN, "status", "back"], capture_output=True, text=True, cwd=WORK, timeout=30, check=False)
    expect(watched.returncode == 0 and "running" in watched.stdout, f"status: {watched.stdout}{watched.stderr}")
    await_step(120)
    file.write_text("0")
    expect(process.wait(120) == 0, output("back"))
    lines = [line for line in output("back").splitlines() if "clock" in line]
    expect(len(lines) == 2 and "set back by 3600 s" in lines[0] and "set forward by 3600 s" in lines[1], f"{lines}")

    straight, _ = shifted(0, "straight")
    expect(start("straight", train("straight"), straight).wait(120) == 0, output("straight"))
    expect(losses("back") == losses("straight") and len(losses("back")) == 200, "a clock changes losses")
    shutil.copytree(WORK / "back", WORK / "again")
    ended = start("continued", [*train("again"), "checkpoint.load=latest", "train.steps=210"], shifted(-HOUR, "again")[0])
    expect(ended.wait(60) == 0 and max(losses("again")) == 210, f"a run that continues an hour earlier:\n{output('continued')}")
    for command in (["watch", "--once"], ["report", "-o", WORK / "r.html"]):
        done = subprocess.run([MTRAIN, command[0], "again", *command[1:]], capture_output=True, text=True, cwd=WORK, timeout=60,
                              stdin=subprocess.DEVNULL, check=False)
        expect(done.returncode == 0, f"{command}: {done.stdout}{done.stderr}")


def main():
    (WORK / "text").write_text("".join(f"line {i} of the text\n" for i in range(400)))
    subprocess.run([MTRAIN, "data", "build", "--input", WORK / "text", "--output", WORK / "set"], check=True, capture_output=True)
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "set"))
    (WORK / "token").write_text("%064x" % random.getrandbits(256))
    (WORK / "token").chmod(0o600)
    failed = 0
    for test in (test_skew, test_doctor, test_set_back):
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
