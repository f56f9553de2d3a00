#!/usr/bin/env python3
"""Three launchers of two ranks each are three hosts: each has its own number, host name and folder. Hosts are killed and join again, ranks
are killed, launchers get signals. Requires the curve of an undisturbed run, one cause that all launchers print once, and that nothing is
left: no process, no port, no shared memory.

  test/process/elastic_test.py <mtrain> <mtrain-launch> <library that changes the host's name> [--nightly | case...]
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH, HOST_NAMES = (str(pathlib.Path(p).resolve()) for p in sys.argv[1:4])
WORK = pathlib.Path(tempfile.mkdtemp(prefix="mtrain-elastic-"))
STEPS, KILLED, BACK, TOLERANCE = 120, 20, 32, 1e-5
RECIPE = f"""
model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 2}}
tokenizer: byte
dataset: {{train: {WORK}/set, seq_length: 64}}
train: {{steps: {STEPS}, global_batch_size: 12, micro_batch_size: 1, threads: 1, log_every: 1, device: cpu}}
checkpoint: {{every_steps: 10, async: false}}
lr_scheduler: {{style: constant}}
mixed_precision: fp32
comm: {{timeout_s: 60}}
debug: {{compute_slowdown: 10}}
"""
PORTS = iter(random.sample(range(20000, 32000), 200))  # below the ports that the kernel hands out


# Cases that need root, take long, or whose kills may meet another step on a busy machine.
NIGHTLY = ["networks", "stranger", "alike", "hung", "stop"]


def fail(what, *texts):
    raise SystemExit("\n".join([what, *texts]))


class Job:
    """Launchers of one run."""

    def __init__(self, run, nodes, *settings, launcher=(), networks=None):
        self.run, self.nodes, self.settings, self.launcher, self.port = run, nodes, settings, launcher, next(PORTS)
        self.processes, self.networks = {}, networks
        self.token = [f"--token_file={WORK}/token"]

    def meeting(self):
        """-> the words that say how the launchers meet"""
        address = self.networks.address(0) if self.networks else "127.0.0.1"
        return ["--rdzv_backend=store", "--rdzv_id=elastic", f"--rdzv_endpoint={address}:{self.port}"]

    def start(self, host, ranks=2, node=None, settings=()):
        """`node`: the number, if it is not that of the host."""
        folder = WORK / self.run / f"folder{host}"
        folder.mkdir(parents=True, exist_ok=True)
        within = self.networks.within(host) if self.networks else []
        command = [*within, LAUNCH, f"--nnodes={self.nodes}", f"--nproc_per_node={ranks}", f"--node_rank={host if node is None else node}",
                   *self.meeting(), *self.token,
                   *([] if self.networks else ["--local_addr=127.0.0.1"]),
                   *self.launcher, "--recipe", f"{WORK}/r.yaml", f"train.run_dir={WORK}/{self.run}/run", *self.settings, *settings]
        environment = {**os.environ, "XDG_CACHE_HOME": str(WORK), "LD_PRELOAD": HOST_NAMES, "MTRAIN_TEST_HOST": f"host{host}"}
        out = open(WORK / self.run / f"host{host}.out", "a")
        self.processes[host] = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True)
        return self

    def start_all(self, *hosts):
        for host in hosts:
            self.start(host)
        return self

    def output(self, host=None):
        files = [WORK / self.run / f"host{host}.out"] if host is not None else sorted((WORK / self.run).glob("host*.out"))
        return "".join(f"--- {f.name}\n{f.read_text()}" for f in files)

    def records(self):
        file = WORK / self.run / "run/metrics.jsonl"
        found = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # a line that is being written
                continue
            if "loss" in record:
                found[record["step"]] = record
        return found

    def await_step(self, step, after=0.0):
        """`after`: the record must be newer than this time."""
        end = time.time() + 180
        while not any(s >= step and r["time"] > after for s, r in self.records().items()):
            if all(p.poll() is not None for p in self.processes.values()) or time.time() > end:
                self.fail(f"step {step} is not reached")
            time.sleep(0.01)

    def await_text(self, host, text, seconds=60):
        end = time.time() + seconds
        while text not in self.output(host):
            if time.time() > end:
                self.fail(f"host {host} has not printed `{text}` within {seconds} s")
            time.sleep(0.01)

    def await_state(self, state, seconds=10):
        """of run.json"""
        end = time.time() + seconds
        while (seen := json.loads((WORK / self.run / "run/run.json").read_text())["state"]) != state:
            if time.time() > end:
                self.fail(f"run.json is `{seen}` instead of `{state}`")
            time.sleep(0.002)

    def expect_end(self, host, code, seconds=60):
        if (got := self.processes.pop(host).wait(timeout=seconds)) != code:
            self.fail(f"host {host}: exit code {got} instead of {code}")

    def kill(self, host):
        os.killpg(self.processes[host].pid, signal.SIGKILL)
        self.processes.pop(host).wait()

    def finish(self, code=0, seconds=180):
        for host, process in self.processes.items():
            try:
                got = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                self.fail(f"host {host} does not end")
            if got != code:
                self.fail(f"host {host}: exit code {got} instead of {code}")
        self.expect_nothing_left()

    def fail(self, what):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        fail(f"{self.run}: {what}", self.output())

    def expect_nothing_left(self):
        end = time.time() + 10
        while left := processes_of(self.run):
            if time.time() > end:
                self.fail(f"processes are left: {left}")
            time.sleep(0.05)
        if self.networks:
            for host in range(3):
                if listens := self.networks.listening(host):
                    self.fail(f"host {host} still listens: {listens}")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", self.port))
            except OSError as e:
                self.fail(f"the port is still taken: {e}")
        if shared := sorted(set(os.listdir("/dev/shm")) - SHARED):
            self.fail(f"shared memory is left: {shared}")

    def expect_curve(self, expected):
        got = {step: r["loss"] for step, r in self.records().items()}
        if sorted(got) != sorted(expected):
            self.fail(f"{len(got)} steps instead of {len(expected)}")
        worst = max(abs(got[step] / expected[step] - 1) for step in expected)
        if worst > TOLERANCE:
            self.fail(f"losses differ by {worst:.2e}")
        return worst

    def expect_once(self, hosts, pattern):
        """Every host prints it once, and all the same. -> what they print"""
        found = {host: re.findall(pattern, self.output(host)) for host in hosts}
        texts = {text for lines in found.values() for text in lines}
        if any(len(lines) != 1 for lines in found.values()) or len(texts) != 1:
            self.fail(f"`{pattern}` is printed so: {found}")
        return texts.pop()


class Networks:
    """A network namespace for each of three hosts, and one with the switch between them. Needs root."""

    def __init__(self):
        self.names = [f"mtrain-{os.getpid()}-{host}" for host in range(3)]
        self.switch = f"mtrain-{os.getpid()}-switch"

    def __enter__(self):
        for name in [*self.names, self.switch]:
            self.ip("netns", "add", name)
        self.ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "br0", "up")
        for host, name in enumerate(self.names):
            self.ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{host}", "netns", self.switch)
            self.ip("-n", self.switch, "link", "set", f"port{host}", "master", "br0", "up")
            self.ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], check=False)

    @staticmethod
    def ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"ip {' '.join(words)}: {done.stderr}", "network namespaces need root")

    @staticmethod
    def address(host):
        return f"10.9.1.{host + 1}"

    def within(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def cut_off(self, host):
        self.ip("-n", self.switch, "link", "set", f"port{host}", "down")

    def listening(self, host):
        done = subprocess.run([*self.within(host), "ss", "-Hltn"], capture_output=True, text=True, check=True)
        return done.stdout.strip()


def processes_of(run):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if f"{WORK}/{run}/" in words:
            found.append(f"{process.name}: {words}")
    return found


def ranks_of(run):
    """-> the process numbers of the ranks"""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/mtrain") and any(f"{WORK}/{run}/".encode() in word for word in words):
            found |= {int(v[5:]): int(process.name) for v in variables if v.startswith(b"RANK=")}
    return found


def starts(job, host):
    return re.findall(r"start (\d+): (\d+) ranks on hosts? ([\d, ]+), dp_size (\d+)", job.output(host))


def straight():
    job = Job("straight", "1")
    folder = WORK / "straight"
    folder.mkdir()
    result = subprocess.run([LAUNCH, "--nproc_per_node=2", "--recipe", f"{WORK}/r.yaml", f"train.run_dir={folder}/run",
                             "debug.compute_slowdown=1"], env={**os.environ, "XDG_CACHE_HOME": str(WORK)}, capture_output=True, text=True)
    if result.returncode != 0:
        fail("the straight run", result.stdout, result.stderr)
    return {step: r["loss"] for step, r in job.records().items()}


def rank_of_another_host(expected):
    """A rank of host 1 is killed. Both hosts restart together, and both print why. run.json and events show the restart."""
    events = WORK / "rank/events"
    job = Job("rank", "2", f'launch.on_event=[sh, -c, "cat >>{events}.$MTRAIN_TEST_HOST"]', launcher=["--max_restarts=1"]).start_all(0, 1)
    job.await_step(KILLED)
    killed_at = time.time()
    os.kill(ranks_of("rank")[3], signal.SIGKILL)
    job.await_text(0, "restarting all ranks (1 of 1) now")
    noticed = time.time() - killed_at
    job.await_state("restarting")
    job.await_step(1, killed_at + 0.2)
    again = time.time() - killed_at
    seen = subprocess.run([MTRAIN, "status", str(WORK / "rank/run"), "--json"], capture_output=True, text=True,
                          env={**os.environ, "LD_PRELOAD": HOST_NAMES, "MTRAIN_TEST_HOST": "host1"})
    if seen.returncode != 0 or not {2, 3} <= {pulse["rank"] for pulse in json.loads(seen.stdout)["pulses"]}:
        job.fail(f"host 1 does not see its ranks: {seen.stdout}{seen.stderr}")
    job.finish()
    job.expect_once([0, 1], r"mtrain-launch: error: (rank 3 .* was killed by signal 9) ")
    for host in (0, 1):
        sent = [json.loads(line) for line in pathlib.Path(f"{events}.host{host}").read_text().splitlines()]
        if [e["event"] for e in sent] != ["start", "failure", "restart", "start", "end"] or sent[2]["start"] != 1 or sent[2]["delay_s"] != 0:
            job.fail(f"the events are {sent}")
    worst = job.expect_curve(expected)
    print(f"a rank of host 1 is killed: {noticed:.2f} s to the restart, {again:.2f} s to the next step; losses differ by {worst:.1e}")


def rank_before_the_meeting(expected):
    """A rank of host 1 dies before the ranks have met. The hosts begin the next start together, long before comm.timeout_s."""
    job = Job("early", "2", "train.steps=10", launcher=["--max_restarts=2"]).start(1)
    time.sleep(0.5)
    job.start(0)
    end = time.time() + 60
    while 3 not in (ranks := ranks_of("early")) and time.time() < end:
        time.sleep(0.001)
    os.kill(ranks[3], signal.SIGKILL)
    began = time.time()
    job.finish(seconds=50)
    job.expect_once([0, 1], r"mtrain-launch: error: (rank 3 .* was killed by signal 9) ")
    job.expect_curve({step: loss for step, loss in expected.items() if step <= 10})
    print(f"a rank of host 1 is killed before the meeting: the job ends {time.time() - began:.1f} s later")


def lost_and_back(expected):
    """Host 2 is killed at step 20, and starts again after step 32: it joins after the checkpoint of step 40."""
    job = Job("lost", "1:3").start_all(0, 1, 2)
    job.await_step(KILLED)
    job.kill(2)
    killed_at = time.time()
    job.await_text(0, "restarting all ranks")
    detected = time.time() - killed_at
    job.await_step(KILLED - 9, killed_at + 0.5)
    again = time.time() - killed_at
    job.await_step(BACK, killed_at + detected)
    job.start(2)
    job.finish()
    for host in (0, 1):
        job.expect_once([host], r"mtrain-launch: error: (host 2 \(host2\) is gone)")
    job.expect_once([0, 1], r"mtrain-launch: (host 2 \(host2\) joins after the checkpoint of step \d+)")
    if (got := starts(job, 0)) != (want := [("0", "6", "0, 1, 2", "6"), ("1", "4", "0, 1", "4"), ("2", "6", "0, 1, 2", "6")]):
        job.fail(f"the starts are {got} instead of {want}")
    worst = job.expect_curve(expected)
    print(f"host 2 is killed: {detected:.2f} s to the restart, {again:.2f} s to the next step; it joined again; losses differ by "
          f"{worst:.1e}")


def networks(expected):
    """Each host has a network of its own: host 2 is killed at step 20, host 1 is cut off at 40, host 2 comes back at 60."""
    with Networks() as hosts:
        job = Job("networks", "1:3", networks=hosts).start_all(0, 1, 2)
        job.await_step(20)
        job.kill(2)
        job.await_text(0, "start 1: 4 ranks on hosts 0, 1")
        job.await_step(40)
        hosts.cut_off(1)
        cut_at = time.time()
        job.await_text(0, "start 2: 2 ranks on host 0")
        again = time.time() - cut_at
        if (code := job.processes.pop(1).wait(timeout=60)) != 1:
            job.fail(f"the host that was cut off ends with {code}")
        job.expect_once([1], r"mtrain-launch: error: (host 0 is gone)")
        job.await_step(60)
        job.start(2)
        job.finish()
        if "start 3: 4 ranks on hosts 0, 2" not in job.output(0):
            job.fail("host 2 has not joined")
        worst = job.expect_curve(expected)
        print(f"three networks: one host killed, one cut off ({again:.1f} s to the next start), one back; losses differ by {worst:.1e}")


def spares(expected):
    """A global batch of 8 cannot be divided by 6 ranks: host 2 is a spare, and takes the place of host 1."""
    job = Job("spares", "2:3", "train.global_batch_size=8", "train.steps=40").start_all(0, 1, 2)
    job.await_step(KILLED)
    job.kill(1)
    job.finish()
    if (got := starts(job, 0)) != (want := [("0", "4", "0, 1", "4"), ("1", "4", "0, 2", "4")]):
        job.fail(f"the starts are {got} instead of {want}")
    if "2 spare ranks wait" not in job.output(2):
        job.fail("the spares are not mentioned")
    print("a spare host takes the place of a lost one")


def slow_host():
    """Rank 2 on host 1 is stopped for most of the time. Host 2, a spare, takes the place of host 1 at a checkpoint."""
    job = Job("slow", "1:3", "train.global_batch_size=8", "train.straggler=replace", "train.time_every=1").start_all(0, 1, 2)
    job.await_step(3)
    pid = ranks_of("slow")[2]
    while "is too slow" not in job.output(0) and job.processes[0].poll() is None:
        for number, seconds in ((signal.SIGSTOP, 0.04), (signal.SIGCONT, 0.01)):
            os.kill(pid, number)
            time.sleep(seconds)
    job.finish()
    job.expect_once([0, 1, 2], r"mtrain-launch: (rank 2 on host 1 \(host1\) is too slow): spare ranks replace this host")
    if (got := starts(job, 0)) != (want := [("0", "4", "0, 1", "4"), ("1", "4", "0, 2", "4")]):
        job.fail(f"the starts are {got} instead of {want}")
    if (steps := sorted(job.records())) != list(range(1, STEPS + 1)):
        job.fail(f"the steps are {steps}")
    print("a host with a slow rank is replaced by a spare one at a checkpoint")


def one_host(run, *settings):
    """Two ranks of one host. -> the exit code, and what they print"""
    (WORK / run).mkdir()
    result = subprocess.run([LAUNCH, "--nproc_per_node=2", "--recipe", f"{WORK}/r.yaml", f"train.run_dir={WORK}/{run}/run", "train.steps=35",
                             "debug.compute_slowdown=1", *settings], env={**os.environ, "XDG_CACHE_HOME": str(WORK)}, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def spike_event():
    """A step that is left out is an event. Both faults of the step happen: one alone would not be a spike."""
    fault = "{kind: spike, phase: backward, factor: 30, step: 30}"
    code, output = one_host("spike", "train.on_spike=skip", "train.spike_factor=10", f"debug.fault=[{fault}, {fault}]",
                            f'launch.on_event=[sh, -c, "cat >>{WORK}/spike/events"]')
    sent = [json.loads(line) for line in (WORK / "spike/events").read_text().splitlines()]
    if code != 0 or [e["event"] for e in sent] != ["start", "spike", "end"] or sent[1]["step"] != 30:
        fail(f"spike: {sent}", output)
    print("a spike is an event")


def several_faults():
    """Faults of the same step do not hide each other."""
    for name, faults in (("launch", "[{kind: nan, phase: forward, step: 5}, {kind: exception, phase: forward, step: 5}]"),
                         ("save", "[{kind: io_error, phase: commit, step: 10}, {kind: exception, phase: write, step: 10}]")):
        code, output = one_host(f"faults-{name}", f"debug.fault={faults}", "checkpoint.on_error=stop")
        if code != 1 or "debug.fault: exception on rank 0" not in output:
            fail(f"{name}: exit code {code}", output)
    print("faults of one step all happen")


def stopped_leader(expected):
    """The launcher of host 0 is stopped for 12 s, and no host is lost."""
    job = Job("stopped", "1:2", "debug.compute_slowdown=30").start_all(0, 1)
    job.await_step(KILLED)
    job.processes[0].send_signal(signal.SIGSTOP)
    time.sleep(12)
    job.processes[0].send_signal(signal.SIGCONT)
    job.finish()
    if "gone" in job.output() or len(got := starts(job, 0)) != 1:
        job.fail("a host was lost")
    worst = job.expect_curve(expected)
    print(f"the launcher of host 0 is stopped for 12 s: all hosts stay; losses differ by {worst:.1e}")


def stopped_rank(expected):
    """A rank of host 1 is stopped. Host 0 notices first that its ranks wait, and all name the rank that is stopped."""
    job = Job("stop", "2", "launch.step_timeout_s=2", launcher=["--max_restarts=1"]).start_all(0, 1)
    job.await_step(KILLED + 3)
    os.kill(ranks_of("stop")[3], signal.SIGSTOP)
    began = time.time()
    job.processes[1].send_signal(signal.SIGSTOP)  # the launcher of host 1 is late
    time.sleep(2.7)
    job.processes[1].send_signal(signal.SIGCONT)
    job.await_text(0, "restarting all ranks")
    noticed = time.time() - began
    job.finish()
    job.expect_once([0, 1], r"mtrain-launch: error: (rank 3 on host1 is stopped)")
    worst = job.expect_curve(expected)
    print(f"a rank of host 1 is stopped: {noticed:.1f} s to the restart with a limit of 2 s; losses differ by {worst:.1e}")


def hung_host(expected):
    """All processes of host 2 are stopped for 20 s: the others continue without it, and it joins again."""
    job = Job("hung", "1:3", "debug.compute_slowdown=60").start_all(0, 1, 2)
    job.await_step(KILLED)
    ranks = ranks_of("hung")
    stopped = [job.processes[2].pid, ranks[4], ranks[5]]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    began = time.time()
    job.await_text(0, "start 1: 4 ranks on hosts 0, 1")
    noticed = time.time() - began
    time.sleep(max(0.0, 20 - noticed))
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    job.await_text(0, "start 2: 6 ranks on hosts 0, 1, 2")
    job.finish()
    job.expect_once([0, 1], r"mtrain-launch: error: (host 2 \(host2\) is gone)")
    worst = job.expect_curve(expected)
    print(f"host 2 is stopped for 20 s: {noticed:.1f} s to the next start; it joined again; losses differ by {worst:.1e}")


def bad_joiner(expected):
    """A host that joins with another recipe is refused, and the job continues without it."""
    job = Job("joiner", "1:3").start_all(0, 1)
    job.await_step(KILLED)
    job.start(2, settings=["optimizer.lr=0.5"])
    job.expect_end(2, 1)
    refusal = re.findall(r"error: host 2 \(host2\) cannot join: (.*)", job.output(2))
    if len(refusal) != 1 or "lr" not in refusal[0]:
        job.fail(f"host 2 is refused so: {refusal}")
    job.finish()
    job.expect_once([0, 1], r"mtrain-launch: (host 2 \(host2\) is refused): the job continues without it")
    if (got := starts(job, 0)) != (want := [("0", "4", "0, 1", "4"), ("1", "6", "0, 1, 2", "6"), ("2", "4", "0, 1", "4")]):
        job.fail(f"the starts are {got} instead of {want}")
    worst = job.expect_curve(expected)
    print(f"a host with another recipe is refused: {refusal[0]}; losses differ by {worst:.1e}")


def stranger(expected):
    """A second launcher with the number of host 1 is refused, and the job continues."""
    with Networks() as hosts:
        job = Job("stranger", "2", networks=hosts).start_all(0, 1)
        job.await_step(KILLED)
        job.start(2, node=1)
        job.expect_end(2, 2)
        if "error: host 1 (host2) cannot join: another launcher has --node_rank=1" not in job.output(2):
            job.fail("the refusal has no reason")
        job.finish()
        if "restarting" in job.output():
            job.fail("the job has restarted")
        worst = job.expect_curve(expected)
        print(f"a second launcher with the number of host 1 is refused; losses differ by {worst:.1e}")


def signals():
    """The first signal to any launcher saves and ends all hosts; a second one kills."""
    job = Job("signal", "1:3").start_all(0, 1, 2)
    job.await_step(5)
    job.processes[1].send_signal(signal.SIGTERM)
    job.finish()
    last = max(job.records())
    if not (WORK / f"signal/run/checkpoints/step-{last:08}/index.json").exists():
        job.fail(f"step {last} is not saved")
    job = Job("second", "2", "debug.compute_slowdown=1000").start_all(0, 1)
    while len(ranks_of("second")) < 4:
        time.sleep(0.05)
    time.sleep(4)  # a step takes longer
    job.processes[1].send_signal(signal.SIGTERM)
    time.sleep(1.2)
    job.processes[1].send_signal(signal.SIGTERM)
    job.finish(128 + signal.SIGTERM, seconds=20)
    print("a signal to one launcher ends all hosts")


def host_0():
    """The job cannot survive the loss of host 0: the others end, and print why."""
    job = Job("host0", "1:3").start_all(0, 1, 2)
    job.await_step(5)
    job.kill(0)
    killed_at = time.time()
    job.finish(1, seconds=30)
    job.expect_once([1, 2], r"mtrain-launch: error: (host 0 is gone)")
    print(f"host 0 is killed: the others end after {time.time() - killed_at:.1f} s")


def alike():
    """A rank that is killed at the same step twice ends the job, whatever --max_restarts allows."""
    job = Job("alike", "2", "checkpoint.every_steps=1000", "debug.compute_slowdown=100", launcher=["--max_restarts=9"]).start_all(0, 1)
    for start in range(1, 8):  # a kill that is late meets another step, and does not count
        began, rank = time.time(), None
        while not any(s >= 5 and r["time"] > began for s, r in job.records().items()):
            rank = rank or ranks_of("alike").get(1)
            if time.time() - began > 60:
                job.fail("step 5 is not reached")
            time.sleep(0.002)
        os.kill(rank, signal.SIGKILL)
        end = time.time() + 30
        while f"({start} of 9)" not in job.output(0) and job.processes[0].poll() is None:
            if time.time() > end:
                job.fail("the ranks are neither restarted nor ended")
            time.sleep(0.01)
        if job.processes[0].poll() is not None:
            break
    job.finish(1)
    job.expect_once([0, 1], r"(rank 1 has failed twice in the same way at step \d+)")
    print(f"a rank that fails alike twice ends the job: {start} kills")


def too_few(expected):
    """No layout fits: the job waits for --rdzv_timeout, and names the nearest numbers of ranks."""
    job = Job("few", "1:2", "distributed.tp_size=2", launcher=["--rdzv_timeout=3"])
    job.start(0, ranks=1)
    job.finish(1, seconds=40)
    if "the recipe needs at least 2 ranks" not in job.output(0):
        job.fail("the nearest numbers are not named")
    print("too few ranks: a clear end")


def ranks_of_events():
    """The second host never comes: an event has the ranks that the job has, not the most that it may have."""
    job = Job("events", "1:2", "train.steps=4", f'launch.on_event=[sh, -c, "cat >>{WORK}/events/sent"]').start(0)
    job.finish()
    sent = [json.loads(line) for line in (WORK / "events/sent").read_text().splitlines()]
    if [(e["event"], e["ranks"]) for e in sent] != [("start", 2), ("end", 2)]:
        job.fail(f"the events are {sent}")
    print("an event has the ranks of its start")


def bound_ranks():
    """A global batch of 20 is for 5 ranks, or 4. Host 2 has one of 5 ranks, then two of 4, and divides its CPUs again."""
    siblings = [pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in os.sched_getaffinity(0)]
    cores = {file.read_text() if file.exists() else file for file in siblings}
    mode = "exclusive" if len(cores) > 1 else "node"
    job = Job("bound", "2:3", "train.global_batch_size=20", "train.steps=8", launcher=[f"--numa_binding={mode}"]).start_all(0, 1, 2)
    job.await_step(4)
    job.kill(1)
    job.finish()
    bindings = re.findall(r"mtrain-launch: binding: (?:rank|ranks) (.*)", job.output(2))
    if len(bindings) != 2 or not re.fullmatch(r"4 on CPUs? [0-9,-]+", bindings[0]) or \
            not re.fullmatch(r"2 on CPUs? [0-9,-]+, rank 3 on CPUs? [0-9,-]+|2-3 on CPUs? [0-9,-]+", bindings[1]):
        job.fail(f"host 2 has the bindings {bindings}")
    if len(re.findall("binding:", job.output(0))) != 1:
        job.fail("host 0 does not keep its binding")
    print(f"a host with another number of ranks binds them again: {'; then '.join(bindings)}")


def make_files():
    global SHARED
    SHARED = set(os.listdir("/dev/shm"))
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(40000))))
    (WORK / "token").write_text(os.urandom(32).hex() + "\n")
    (WORK / "token").chmod(0o600)
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True, stdout=subprocess.DEVNULL)


def main():
    make_files()
    nightly = "--nightly" in sys.argv[4:]
    only = [name for name in sys.argv[4:] if name != "--nightly"]
    expected = straight()
    cases = {"rank": lambda: rank_of_another_host(expected), "early": lambda: rank_before_the_meeting(expected),
             "lost": lambda: lost_and_back(expected), "networks": lambda: networks(expected), "spares": lambda: spares(expected), "slow": slow_host,
             "stopped": lambda: stopped_leader(expected), "hung": lambda: hung_host(expected), "stop": lambda: stopped_rank(expected), "joiner": lambda: bad_joiner(expected), "stranger": lambda: stranger(expected), "spike": spike_event, "faults": several_faults, "signals": signals, "host0": host_0,
             "events": ranks_of_events, "alike": alike, "few": lambda: too_few(expected), "bound": bound_ranks}
    try:
        for name, case in cases.items():
            if name in only or (not only and (nightly or name not in NIGHTLY)):
                case()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
