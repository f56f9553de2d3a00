#!/usr/bin/env python3
"""Tests the endpoint for Prometheus: what it serves, and that strangers at its port do not disturb the training.

  test/process/metrics_endpoint_test.py <mtrain> <mtrain-launch>

Where promtool is installed (Debian's package prometheus), it checks the page, too.
"""
import http.client
import json
import math
import os
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
WORK = pathlib.Path(tempfile.mkdtemp())
# A step takes some milliseconds, since the emulated link is slow; it takes little time of the CPU.
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, seq_length: 32}
train: {steps: 100000, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 20}
distributed: {strategy: ddp}
checkpoint: {every_steps: 20, keep: 2}
mixed_precision: fp32
comm: {timeout_s: 20, link: {latency_us: 4000}}
"""
RANKS = 2
random.seed(38)


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


class Job:
    """A running mtrain-launch with a metrics port."""

    def __init__(self, run, *options, port=0, settings=()):
        self.run = WORK / run
        self.log = open(WORK / f"{run}.log", "w+")
        self.process = subprocess.Popen(
            [LAUNCH, f"--nproc_per_node={RANKS}", f"--metrics_port={port}", *options, "--recipe", WORK / "r.yaml",
             f"train.run_dir={self.run}", *settings], stdout=self.log, stderr=subprocess.STDOUT, cwd=WORK)

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def await_line(self, pattern):
        for _ in range(600):
            found = re.search(pattern, self.output())
            if found:
                return found
            expect(self.process.poll() is None, f"the job has ended:\n{self.output()}")
            time.sleep(0.05)
        raise Failure(f"nothing says {pattern}:\n{self.output()}")

    def port(self):
        return int(self.await_line(r"metrics are at http://127\.0\.0\.1:(\d+)/metrics").group(1))

    def losses(self):
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["loss"] for line in lines if line.endswith("}") and '"loss"' in line]

    def await_steps(self, count):
        for _ in range(1200):
            if len(self.losses()) >= count:
                return
            expect(self.process.poll() is None, f"the job has ended:\n{self.output()}")
            time.sleep(0.05)
        raise Failure(f"not {count} steps:\n{self.output()}")

    def end(self):
        self.process.terminate()
        code = self.process.wait(30)
        expect(code == 0, f"exit code {code}:\n{self.output()}")


def get(port, path="/metrics", method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(%s(?:,%s)*)\})? (\S+)" % (LABEL, LABEL))


def parse(text):
    """Parses the text format 0.0.4 strictly. Returns the samples by name and labels."""
    expect(text.endswith("\n"), "the page has no last line feed")
    samples, types, helps, done, current = {}, {}, set(), set(), None
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            expect(len(words) == 4 and words[2] not in helps, f"a second or empty help: {line}")
            helps.add(words[2])
            continue
        if line.startswith("# TYPE "):
            name = words[2]
            expect(len(words) == 4 and words[3] in ("gauge", "counter"), f"a type: {line}")
            expect(name not in types and name in helps, f"a type: {line}")
            expect((words[3] == "counter") == name.endswith("_total"), f"the name of a counter: {line}")
            types[name] = words[3]
            done.add(current)
            expect(name not in done, f"the samples of {name} do not stand together")
            current = name
            continue
        found = SAMPLE.fullmatch(line)
        expect(found, f"not a sample: {line}")
        name, labels, value = found.groups()
        expect(name == current, f"{name} stands below {current}")
        float(value.replace("+Inf", "inf"))
        expect((name, labels) not in samples, f"a second sample: {line}")
        samples[(name, labels)] = float(value)
    return samples


def check_page(job, port):
    status, kind, text = get(port)
    expect(status == 200 and kind.startswith("text/plain; version=0.0.4"), f"{status} {kind}")
    samples = parse(text)
    records = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
    step = int(samples[("mtrain_step", None)])
    record = next(r for r in records if r["step"] == step and "loss" in r)
    for name, key, factor in (("mtrain_loss", "loss", 1), ("mtrain_tokens_per_second", "tokens_per_s", 1),
                              ("mtrain_step_seconds", "step_ms", 1e-3), ("mtrain_tokens", "tokens", 1)):
        value = samples[(name, None)]
        expect(math.isclose(value, record[key] * factor, rel_tol=1e-9), f"{name} {value} is not {record[key]}")
    # Few steps are timed: the figures of the last one remain until the next one.
    timed = [r for r in records if r["step"] <= step and "comm.exposed_ms.max" in r][-1]
    value = samples[("mtrain_exposed_longest_seconds", None)]
    expect(math.isclose(value, timed["comm.exposed_ms.max"] * 1e-3, rel_tol=1e-9), f"exposed {value}, not that of {timed}")
    expect(("mtrain_mfu_ratio", None) in samples, "there is no MFU")
    for rank in range(RANKS):
        label = f'rank="{rank}"'
        for name in ("mtrain_rank_step", "mtrain_rank_step_seconds", "mtrain_rank_memory_bytes",
                     "mtrain_rank_memory_peak_bytes", "mtrain_rank_launches_total"):
            expect(samples[(name, label)] > 0, f"{name} of rank {rank}")
        phases = [value for (name, labels), value in samples.items() if name == "mtrain_rank_phase" and
                  labels.startswith(label)]
        expect(sorted(phases) == [0] * (len(phases) - 1) + [1], f"phases {phases}")
    expect(samples[("mtrain_restarts_total", None)] == 0, "restarts")
    expect(0 <= samples[("mtrain_checkpoint_age_seconds", None)] < 600, "the age of the newest checkpoint")
    expect(samples[("mtrain_checkpoint_step", None)] % 20 == 0, "the step of the newest checkpoint")
    promtool = shutil.which("promtool")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        expect(done.returncode == 0, f"promtool: {done.stdout}{done.stderr}")
    print("promtool accepts the page" if promtool else "promtool is not installed: the checker of this test alone")


def raw(port, data, seconds=5.0):
    """Sends bytes, and returns what the server answers until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as s:
        answer = b""
        try:
            s.sendall(data)
            while True:
                part = s.recv(65536)
                if not part:
                    return answer
                answer += part
        except socket.timeout:
            raise Failure(f"a connection stays open after {data[:40]!r}") from None
        except OSError:
            return answer


def attack(port):
    for data, status in ((b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
                         (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405"), (b"PUT /healthz HTTP/1.0\r\n\r\n", b"405"),
                         (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
                         (b"GET /metrics/%2e%2e HTTP/1.1\r\n\r\n", b"404"), (b"GET / HTTP/1.1\r\n\r\n", b"404"),
                         (b"GET /metrics?a=b HTTP/1.1\r\nRange: bytes=" + b"1-2," * 900 + b"1-2\r\n\r\n", b"200"),
                         (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 100000 + b"\r\n", b"431"),
                         (b"GET /" + b"a" * 1000000 + b" HTTP/1.1\r\n\r\n", b"431"),
                         (b"GET /metrics\r\n\r\n", b"400"), (b"\r\n\r\n", b"400"),
                         (b"\0" * 20 + b"\r\n\r\n", b"400")):
        answer = raw(port, data)
        # The server may have closed the connection while bytes were on their way.
        expect(answer.startswith(b"HTTP/1.1 " + status) or (len(data) > 4096 and not answer),
               f"{data[:40]!r}: {answer[:80]!r}")
        expect(b"root:" not in answer, "a file is served")
    for _ in range(200):
        raw(port, random.randbytes(random.choice([1, 7, 40, 3000, 80000])) + b"\r\n\r\n")
    for _ in range(50):  # ended by a reset
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    # One byte at a time: the connection ends after two seconds all the same.
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        try:
            while time.monotonic() - began < 20:
                s.sendall(b"G")
                time.sleep(0.1)
        except OSError:
            pass
    expect(time.monotonic() - began < 6, f"a slow request lasts {time.monotonic() - began:.1f} s")


def hold_connections(port, over):
    """Holds connections that say nothing, and opens new ones for those that were closed."""
    held = []
    while not over.is_set():
        held = [s for s in held if not closed(s)]
        while len(held) < 64:
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
            held.append(s)
        time.sleep(0.01)
    for s in held:
        s.close()


def closed(s):
    try:
        if s.recv(1):
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass
    s.close()
    return True


def memory_kib(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def test_strangers(undisturbed):
    job = Job("strangers")
    port = job.port()
    job.await_steps(45)
    check_page(job, port)
    expect(get(port, "/healthz")[::2] == (200, "ok\n"), "the health of a running job")
    before = memory_kib(job.process.pid)
    threads = len(os.listdir(f"/proc/{job.process.pid}/task"))
    attack(port)
    over = threading.Event()
    holder = threading.Thread(target=hold_connections, args=(port, over))
    holder.start()
    try:
        time.sleep(1)
        open_files = len(os.listdir(f"/proc/{job.process.pid}/fd"))
        expect(open_files < 100, f"{open_files} open files among strangers")
        answered = 0
        for _ in range(10):
            try:
                answered += get(port, "/healthz")[0] == 200
            except OSError:
                pass
        expect(answered >= 1, "nobody is answered among strangers who hold connections")
    finally:
        over.set()
        holder.join()
    expect(len(os.listdir(f"/proc/{job.process.pid}/task")) == threads, "threads for strangers")
    grown = memory_kib(job.process.pid) - before
    expect(grown < 10 * 1024, f"the launcher took {grown} KiB more")
    job.await_steps(len(job.losses()) + 20)
    check_page(job, port)
    job.end()
    losses = job.losses()
    count = min(len(losses), len(undisturbed))
    expect(losses[:count] == undisturbed[:count], "the losses are others")


def test_restart():
    job = Job("restart", "--max_restarts=1", settings=["debug.fault.at=adamw", "debug.fault.step=30"])
    port = job.port()
    job.await_line("restarting all ranks")
    for _ in range(200):
        samples = parse(get(port)[2])
        if samples[("mtrain_restarts_total", None)] == 1 and samples[("mtrain_job_running", None)] == 1:
            break
        time.sleep(0.05)
    else:
        raise Failure("the page does not count the restart")
    job.await_steps(40)
    job.end()


def test_taken_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        job = Job("taken", port=s.getsockname()[1], settings=["train.exit_interval=20"])
        expect(job.process.wait(60) == 0, f"a taken port ends the job:\n{job.output()}")
    said = re.findall(r"^mtrain-launch: warning: --metrics_port: cannot listen at 127\.0\.0\.1:\d+: .*", job.output(), re.M)
    expect(len(said) == 1, f"{len(said)} warnings of a taken port:\n{job.output()}")
    # Two launchers do not share a port.
    job = Job("first")
    port = job.port()
    other = Job("second", port=port, settings=["train.exit_interval=20"])
    expect(other.process.wait(60) == 0 and "--metrics_port: cannot listen" in other.output(), other.output())
    job.end()


def main():
    (WORK / "text").write_text("\n".join(map(str, range(20000))))
    subprocess.run([MTRAIN, "data", "build", "--input", WORK / "text", "--output", WORK / "set"], check=True,
                   stdout=subprocess.DEVNULL)
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "set"))
    undisturbed = Job("undisturbed", settings=["train.exit_interval=200"])
    expect(undisturbed.process.wait(120) == 0, undisturbed.output())
    test_strangers(undisturbed.losses())
    test_restart()
    test_taken_port()


try:
    main()
    code = 0
except Failure as e:
    print(f"FAILED: {e}")
    code = 1
finally:
    shutil.rmtree(WORK, ignore_errors=True)
sys.exit(code)
