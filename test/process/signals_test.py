#!/usr/bin/env python3
"""Tests how a job ends when it gets signals, when its launcher is killed, and when nobody reads its output.

  test/process/signals_test.py <mtrain> <mtrain-launch>

MTRAIN_SIGNAL_PAIRS is the number of random pairs of signals to trainings; 6 by default, 200 in the nightly tests.
"""
import concurrent.futures
import ctypes
import errno
import glob
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
PAIRS = int(os.environ.get("MTRAIN_SIGNAL_PAIRS", "6"))
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
WORK = pathlib.Path(tempfile.mkdtemp())
ENVIRONMENT = {**os.environ, "TMPDIR": str(WORK / "tmp")}
# The launcher does not know whether other programs than mtrain use GPUs. It would bind them near the GPUs of this machine.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
# A step takes a tenth of a second, since the emulated link is slow; it takes no time of the CPU.
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: %s, seq_length: 32}
train: {steps: 100000, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 1}
distributed: {strategy: ddp}
optimizer: {lr: 1e-3}
mixed_precision: fp32
comm: {timeout_s: 20, link: {latency_us: 20000}}
"""


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def await_that(condition, what, seconds=30.0):
    """Waits until condition() is true, and returns how long that took."""
    began = time.monotonic()
    while not condition():
        expect(time.monotonic() - began < seconds, f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return time.monotonic() - began


class Job:
    """A running mtrain-launch, whose output goes into a file."""

    def __init__(self, *command, env=None, **options):
        self.log = tempfile.NamedTemporaryFile(dir=WORK, delete=False)
        options = {"stdout": self.log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **options}
        self.process = subprocess.Popen([LAUNCH, *map(str, command)], env={**ENVIRONMENT, **(env or {})}, cwd=WORK,
                                        start_new_session=True, **options)
        self.pid = self.process.pid

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def says(self, text):
        expect(re.search(text, self.output()), f"nothing says: {text}\n{self.output()}")

    def ends(self, code, seconds):
        try:
            got = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"does not end within {seconds} s\n{self.output()}") from None
        codes = code if isinstance(code, tuple) else (code,)
        expect(got in codes, f"ends with {got} instead of {codes}\n{self.output()}")
        return got

    def ranks(self):
        """The pids of the ranks: processes of this job that run mtrain."""
        found = []
        for path in glob.glob("/proc/[0-9]*"):
            try:
                variables = pathlib.Path(path, "environ").read_bytes().split(b"\0")
                program = os.readlink(f"{path}/exe")
            except OSError:
                continue
            if b"MTRAIN_LAUNCHER_PID=%d" % self.pid in variables and program == MTRAIN:
                found.append(int(path[6:]))
        return found


def processes(marker):
    """The pids of processes that have this word on their command line."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if marker.encode() in pathlib.Path(path).read_bytes():
                found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


def sleeps(marker):
    """The pids of `sleep` itself, not of a shell or launcher that starts it."""
    found = []
    for pid in processes(marker):
        try:
            if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] == b"sleep":
                found.append(pid)
        except OSError:
            pass
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def steps(run):
    path = WORK / run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last one may be incomplete
    return [json.loads(line)["step"] for line in lines if '"loss"' in line]


def newest_checkpoint(run):
    found = [p for p in (WORK / run / "checkpoints").glob("step-" + 8 * "[0-9]") if (p / "index.json").exists()]
    return max((int(p.name[5:]) for p in found), default=0)


def train(run, *options, launch=()):
    return Job("--nproc_per_node=2", *launch, "--recipe", WORK / "r.yaml", f"train.run_dir={WORK / run}", *options)


def expect_saved(job, run):
    job.ends(0, 30)
    job.says(r"(signal \d+|Ctrl-.|another rank ends the run): (saving and )?ending")
    last = max(steps(run))
    expect(newest_checkpoint(run) == last, f"step {last} is not saved\n{job.output()}")


def signal_pair(number):
    """Sends two random signals to random processes, some time apart."""
    rng = random.Random(number)
    run = f"pair{number}"
    job = train(run, "checkpoint.every_steps=2")
    await_that(lambda: newest_checkpoint(run), "the first checkpoint")
    ranks = job.ranks()
    whom = {"launcher": [job.pid], "everybody": [job.pid, *ranks], "ranks": ranks, "one rank": [rng.choice(ranks)]}
    first, second = rng.choice(SIGNALS), rng.choice(SIGNALS)
    to_first, to_second = rng.choice(list(whom)), rng.choice(list(whom))
    near = rng.random() < 0.5
    apart = rng.uniform(0, 0.9) if near else rng.uniform(1.1, 1.6)
    what = f"{first.name} to {to_first}, after {apart:.2f} s {second.name} to {to_second}"
    time.sleep(rng.uniform(0, 0.3))
    held = ranks[:1] if rng.random() < 0.7 else []  # the job cannot end before the second signal
    try:
        send(held, signal.SIGSTOP)
        began = time.monotonic()
        send(whom[to_first], first)
        time.sleep(apart)
        send(whom[to_second], second)
        near = near and time.monotonic() - began <= 0.95  # a busy machine may have stretched the time
        send(held, signal.SIGCONT)
        if near:
            expect_saved(job, run)
            return
        code = job.process.wait(30)
        if code == 0:
            expect_saved(job, run)
        else:
            job.says(r"the last complete checkpoint is .*step-\d+; later steps are not saved")
            expect(newest_checkpoint(run) > 0, "the checkpoint is gone")
    except Failure as failure:
        raise Failure(f"{what}: {failure}") from None
    finally:
        send([job.pid, *job.ranks()], signal.SIGKILL)
        shutil.rmtree(WORK / run, ignore_errors=True)


def test_pairs_of_signals():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(signal_pair, range(PAIRS)))


def test_a_signal_removes_the_token_file():
    """Ranks that no launcher has started: Ctrl-C while rank 0 waits for the other, and twice while both train."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    token = WORK / "unlaunched/.token"

    def rank(number):
        variables = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return subprocess.Popen([MTRAIN, "--recipe", WORK / "r.yaml", f"train.run_dir={WORK}/unlaunched"],
                                env={**ENVIRONMENT, **variables}, cwd=WORK, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    first = rank(0)
    await_that(token.exists, "the token file")
    first.send_signal(signal.SIGINT)
    expect(first.wait(10) == -signal.SIGINT, f"rank 0 ends with {first.returncode}")
    expect(not token.exists(), "the token file is left by a rank that waited")
    both = [rank(0), rank(1)]
    try:
        await_that(lambda: steps("unlaunched"), "the first step")
        both[1].send_signal(signal.SIGSTOP)  # rank 0 cannot save
        for _ in range(2):
            both[0].send_signal(signal.SIGINT)
            time.sleep(1.2)
        expect(both[0].wait(10) == 128 + signal.SIGINT, f"rank 0 ends with {both[0].returncode}")
        expect(not token.exists(), "the token file is left by a rank that trained")
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_every_signal_saves():
    def one(number):
        run = f"one{number}"
        job = train(run)
        await_that(lambda: steps(run), "the first step")
        send([job.pid], number)
        expect_saved(job, run)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(one, SIGNALS))


def test_what_timeout_and_a_closed_terminal_send_is_one_request():
    run = "twice"
    job = train(run)
    await_that(lambda: steps(run), "the first step")
    send([job.pid, *job.ranks()], signal.SIGHUP)
    send([job.pid, *job.ranks()], signal.SIGTERM)
    expect_saved(job, run)


def test_a_signal_to_the_launcher_long_after_one_to_the_ranks_is_no_second_request():
    run = "late"
    job = train(run)
    await_that(lambda: steps(run), "the first step")
    ranks = job.ranks()
    send(ranks[:1], signal.SIGSTOP)  # the other one waits for it
    send(ranks, signal.SIGUSR1)
    time.sleep(1.1)
    send([job.pid], signal.SIGTERM)
    send(ranks[:1], signal.SIGCONT)
    expect_saved(job, run)


def test_a_second_request_ends_at_once_and_says_what_is_lost():
    run = "at_once"
    job = train(run)
    await_that(lambda: steps(run), "the first step")
    send(job.ranks()[:1], signal.SIGSTOP)  # the other one waits for it
    send([job.pid], signal.SIGTERM)
    time.sleep(1.1)
    send([job.pid], signal.SIGTERM)
    job.ends(143, 3)
    job.says("has no complete checkpoint: no step is saved")


def test_a_signal_before_training_ends_the_job():
    def one(number):
        job = train(f"early{number}")
        time.sleep(0.05 + 0.15 * number)
        send([job.pid], signal.SIGTERM)
        job.ends((0, 143, -signal.SIGTERM), 10)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(one, range(6)))


def test_ranks_under_a_shell_save():
    for i, wrapper in enumerate(["{}; echo over", "trap 'exit 143' TERM; {} & wait", "trap 'exit 0' TERM; {} & wait"]):
        run = f"shell{i}"
        command = wrapper.format(f"{MTRAIN} --recipe {WORK}/r.yaml train.run_dir={WORK}/{run}")
        job = Job("--nproc_per_node=2", "bash", "-c", command)
        await_that(lambda r=run: steps(r), "the first step")
        send([job.pid], signal.SIGTERM)
        job.ends((0, 143), 20)
        expect(newest_checkpoint(run) == max(steps(run)), f"`{wrapper}`: the last step is not saved\n{job.output()}")


def test_a_hang_up_under_nohup_is_ignored():
    job = Job("bash", "-c", "sleep 1", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    time.sleep(0.3)
    send([job.pid], signal.SIGHUP)
    job.ends(0, 5)


def test_ranks_end_within_two_seconds_of_a_killed_launcher():
    wrappers = ["sleep {}", "sleep {}; true", "(sleep {}; true); true", "timeout 3000 sleep {}; true",
                "setsid sleep {}; true", "env -i sleep {}; true", "nohup sleep {}; true"]
    for i, wrapper in enumerate(wrappers):
        marker = f"3000.{os.getpid()}{i}"
        job = Job("--nproc_per_node=2", "bash", "-c", wrapper.format(marker))
        await_that(lambda m=marker: len(sleeps(m)) >= 2, "the ranks")
        os.killpg(job.pid, signal.SIGKILL)
        job.process.wait()
        await_that(lambda m=marker: not processes(m), f"the end of `{wrapper}`", 2)


def test_the_next_launch_removes_what_a_killed_one_left():
    (WORK / "tmp").mkdir(exist_ok=True)
    folders = lambda: list((WORK / "tmp").glob("mtrain-launch*"))
    job = Job("sleep", "1000")
    await_that(folders, "a folder")
    living = Job("sleep", "1000")
    await_that(lambda: len(folders()) == 2, "another folder")
    job.process.kill()
    job.process.wait()
    Job("true").ends(0, 5)
    expect(len(folders()) == 1, f"left: {folders()}")
    send([living.pid], signal.SIGTERM)
    living.ends(143, 10)
    expect(not folders(), f"left: {folders()}")


NOISE = "head -c 3000000 /dev/zero | tr '\\0' 'x' | fold -w 99; touch {}; exec sleep 1000"


def test_output_that_nobody_reads_stops_neither_ranks_nor_signals():
    def ends_after_noise(name, reader, **streams):
        done = WORK / name
        job = Job("--nproc_per_node=2", "bash", "-c", NOISE.format(f"{done}$RANK"), **streams)
        await_that(lambda: all((WORK / f"{name}{r}").exists() for r in (0, 1)), f"{name}: the ranks go on", 20)
        send([job.pid], signal.SIGTERM)
        job.ends(143, 5)
        os.close(reader)

    reader, writer = os.pipe()
    ends_after_noise("pipe", reader, stdout=writer, stderr=writer)
    os.close(writer)
    reader, writer = pty.openpty()
    ends_after_noise("terminal", reader, stdout=writer, stderr=writer)
    os.close(writer)


def test_a_reader_that_comes_late_learns_how_many_lines_are_left_out():
    reader, writer = os.pipe()
    job = Job("bash", "-c", f"seq 1 900000; touch {WORK}/counted", stdout=writer)
    os.close(writer)
    await_that(lambda: (WORK / "counted").exists(), "the rank goes on", 20)
    text = b"".join(iter(lambda: os.read(reader, 65536), b"")).decode()
    job.ends(0, 10)
    left_out = re.search(r"mtrain-launch: (\d+) lines are left out", text)
    expect(left_out, "nothing says what is left out")
    numbers = [int(n) for n in re.findall(r"^\d+$", text, re.M)]
    expect(numbers[-1] == 900000 and len(numbers) + int(left_out[1]) == 900000,
           f"{len(numbers)} lines and {left_out[1]} left out")


def test_a_reader_that_is_gone_ends_no_rank():
    reader, writer = os.pipe()
    os.close(reader)
    job = Job("--nproc_per_node=2", "bash", "-c", f"for i in 1 2 3; do echo $i || exit 1; sleep 0.1; done; "
              f"touch {WORK}/gone$RANK", stdout=writer, stderr=writer)
    job.ends(0, 10)
    expect((WORK / "gone0").exists() and (WORK / "gone1").exists(), "a rank has ended")


def test_the_first_rank_has_a_terminal_where_the_launcher_has_one():
    reader, writer = pty.openpty()
    job = Job("--nproc_per_node=2", "bash", "-c", "test -t 1 && echo $RANK: terminal || echo $RANK: none", stdout=writer)
    job.ends(0, 10)
    wanted = ["0: terminal\r\n", "[rank 1] 1: none\r\n"]
    text = ""
    while not all(w in text for w in wanted) and select.select([reader], [], [], 5)[0]:
        text += os.read(reader, 4096).decode()
    expect(all(w in text for w in wanted), repr(text))


def status(run):
    """What `mtrain status --json` prints."""
    text = subprocess.run([MTRAIN, "status", WORK / run, "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(text)


def test_a_stopped_rank_is_named_within_its_limit():
    limit = 2
    job = train("stopped", f"launch.step_timeout_s={limit}")
    await_that(lambda: len(steps("stopped")) >= 5, "the first steps")
    expect(status("stopped")["state"] == "running", "a running run has another state")
    pulses = status("stopped")["pulses"]
    expect([p["rank"] for p in pulses] == [0, 1] and all(p["phase"] == "step" for p in pulses), f"pulses {pulses}")
    stopped = pulses[1]["pid"]
    send([stopped], signal.SIGSTOP)
    began = time.monotonic()
    job.ends(1, limit + 5)
    job.says(r"error: rank 1 on \S+ is stopped: step \d+ of 100000, without progress for 2\.\d s")
    took = time.monotonic() - began
    expect(limit <= took + 0.2 and took < limit + 2, f"took {took:.1f} s")
    job.says(r"rank 0 on \S+: step \d+ .*, at \w+ \(item \d+ of stream \w+, pending\)")
    job.says(r"rank 1 on \S+, stopped: step")
    job.says(r"last launches of rank 1:\n +\w+ #\d+ ")
    end = status("stopped")
    expect(end["state"] == "failed" and end["exit_code"] == 1 and end["culprit"]["rank"] == 1 and end["step"] >= 5,
           f"status {end}")


def test_a_job_that_is_suspended_as_a_whole_does_not_hang():
    job = train("suspended", "launch.step_timeout_s=2")
    await_that(lambda: len(steps("suspended")) >= 5, "the first steps")
    everybody = [job.pid, *job.ranks()]
    send(everybody, signal.SIGSTOP)
    time.sleep(4)
    send(everybody, signal.SIGCONT)
    before = len(steps("suspended"))
    await_that(lambda: len(steps("suspended")) >= before + 5, "steps after the pause")
    send([job.pid], signal.SIGTERM)
    expect_saved(job, "suspended")
    expect(status("suspended")["state"] == "interrupted", "a run that was asked to end has another state")


def test_a_rank_that_crashes_leaves_its_frames():
    job = train("crashed")
    await_that(lambda: len(steps("crashed")) >= 3, "the first steps")
    send(job.ranks()[1:2], signal.SIGSEGV)
    job.ends(1, 10)
    job.says(r"mtrain-launch: error: rank \d failed: crashed by signal 11 \(Segmentation fault\), which process \d+ has sent"
             r"\n  rank \d was at:\n    \S+\+0x[0-9a-f]+")
    job.says(r"last launches of rank \d:\n +\w+ #\d+ ")
    expect("crashed by signal 11" in status("crashed")["culprit"]["message"], f"status {status('crashed')}")


def test_run_json_has_each_end_of_a_run():
    expect(subprocess.run([MTRAIN, "status", WORK / "nowhere"], capture_output=True).returncode == 2, "status of nothing")
    train("ends", "train.steps=3").ends(0, 20)
    expect(status("ends")["state"] == "done" and status("ends")["step"] == 3, f"status {status('ends')}")
    job = train("ends", "train.steps=100000", "checkpoint.load=latest")
    await_that(lambda: len(steps("ends")) >= 6, "steps of the second attempt")
    expect(status("ends")["attempts"] == 2, f"status {status('ends')}")
    send([job.pid, *job.ranks()], signal.SIGKILL)  # nobody can write the end
    await_that(lambda: status("ends")["state"] == "lost", "a lost run")
    job = train("ends", "train.steps=100000", "checkpoint.load=latest", launch=["--max_restarts=1"])
    await_that(lambda: status("ends")["state"] == "running" and status("ends")["attempts"] == 3, "the third attempt")
    send(job.ranks()[1:2], signal.SIGKILL)
    await_that(lambda: status("ends")["state"] == "running" and status("ends")["attempts"] == 4, "the restart")
    expect("killed by signal 9" in status("ends")["culprit"]["message"], f"status {status('ends')}")
    send([job.pid], signal.SIGTERM)
    job.ends(0, 20)


def test_logs_are_complete_and_never_overwritten():
    for launch in (0, 1):
        Job("--nproc_per_node=2", "--log_dir", WORK / "logs", "-r", "3", "bash", "-c",
            f"echo {launch}; head -c 1000000 /dev/zero").ends(0, 10)
    for launch in (0, 1):
        for rank in (0, 1):
            text = (WORK / f"logs/attempt_{launch}/rank_{rank}/stdout.log").read_bytes()
            expect(text[:1] == b"%d" % launch and len(text) == 1000002, f"attempt {launch}: {len(text)} bytes")


def test_restarts_wait_longer_each_time():
    began = time.monotonic()
    job = Job("--max_restarts=3", "bash", "-c", "exit 1")
    job.ends(1, 20)
    expect(time.monotonic() - began >= 3, f"three restarts within {time.monotonic() - began:.1f} s")
    job.says(r"\(1 of 3\) now(.|\n)*\(2 of 3\) in 1 s(.|\n)*\(3 of 3\) in 2 s")


def test_a_signal_ends_the_wait_for_a_restart():
    job = Job("--max_restarts=9", "bash", "-c", "exit 1")
    await_that(lambda: "(5 of 9)" in job.output(), "the fifth wait, of 8 s")
    send([job.pid], signal.SIGTERM)
    job.ends(1, 5)


def test_a_file_that_is_away_at_a_restart_is_no_mistake_of_the_user():
    data = WORK / "away"
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{WORK}/set{suffix}", f"{data}{suffix}")
    job = train("restarted", f"dataset.train={data}", "train.steps=12", "checkpoint.every_steps=2",
                "comm.link.latency_us=20000", launch=["--max_restarts=4"])
    await_that(lambda: len(steps("restarted")) >= 4, "the first steps")
    os.rename(f"{data}.bin", f"{data}.gone")
    send(job.ranks()[:1], signal.SIGKILL)
    await_that(lambda: "(2 of 4)" in job.output(), "a restart without the file")
    os.rename(f"{data}.gone", f"{data}.bin")
    job.ends(0, 40)
    expect(max(steps("restarted")) == 12, "the run does not come to its end")


def test_the_second_launch_at_a_port_is_refused():
    options = ("--nproc_per_node=2", "--master_port=29917")
    first = Job(*options, "bash", "-c", f"touch {WORK}/first$RANK; exec sleep 1000")
    await_that((WORK / "first0").exists, "the first launch")
    second = Job(*options, "true")
    second.ends(2, 10)
    second.says("another mtrain-launch of this host uses port 29917")
    send([first.pid], signal.SIGTERM)
    first.ends(143, 10)


def test_options_and_variables_of_torchrun():
    show = ("bash", "-c", "echo $RANK/$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT id=$TORCHELASTIC_RUN_ID role=$ROLE_NAME")
    for options, env, code, says in [
        (["--nproc-per-node=2", "--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost", "--rdzv-id=7"], {}, 0,
         "1/2 at localhost:29400 id=7"),
        (["--nproc_per_node=1", "--rdzv_endpoint=[::1]:29918", "--role=worker", "--no-python"], {}, 0,
         "0/1 at ::1:29918 id= role=worker"),
        (["--rdzv_endpoint=localhost:0", "--nproc_per_node=2"], {}, 0, r"1/2 at localhost:[1-9]\d+"),
        ([], {"PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "::1", "PET_MASTER_PORT": "29919"}, 0, "1/2 at ::1:29919"),
        (["--nproc_per_node=1"], {"PET_NPROC_PER_NODE": "2"}, 0, "0/1 at"),
        ([], {"PET_NPROC": "2"}, 0, "PET_NPROC has no effect"),
        (["--nproc_per_node=2", "--local-ranks-filter=1"], {}, 0, r"\[rank 1\] 1/2"),
        (["--monitor_interval=5", "--start_method=spawn", "--rdzv_conf=timeout=900"], {}, 0,
         "monitor_interval has no effect(.|\n)*start_method has no effect(.|\n)*timeout has no effect"),
        (["--local_addr=127.0.0.1"], {}, 0, "0/1 at 127.0.0.1"),
        (["--rdzv_backend=etcd-v2", "--nnodes=1:2", "--rdzv_endpoint=localhost0:29920"], {}, 2, "etcd-v2"),
        (["--nnodes=1:4"], {}, 2, "a common address to meet"),
        (["--nnodes=1:4", "--node_rank=0", "--rdzv_backend=store", "--rdzv_endpoint=localhost0:29920"], {}, 2, "is for trainings of mtrain"),
        (["--nnodes=4:1"], {}, 2, "write --nnodes=1:4"),
        (["--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost0:29920"], {}, 2, "hosts do not number themselves"),
        (["--rdzv_conf=no_such=1"], {}, 2, "there is no key no_such"),
        (["-m"], {}, 2, "Python"),
        (["--numa-binding=node"], NO_GPU, 0, r"binding: rank 0 on CPUs? \d"),
        (["--numa_binding=socket"], NO_GPU, 0, r"binding: rank 0 on CPUs? \d"),
        ([], {**NO_GPU, "PET_NUMA_BINDING": "core-complex"}, 0, r"binding: rank 0 on CPUs? \d"),
        (["--numa-binding=nodes"], {}, 2, "expected one of node, socket, exclusive, core-complex(.|\n)*write --numa_binding node"),
        (["--signals-to-handle=SIGTERM", "--master_addr=[::1]", "--master_port=29922"], {}, 0,
         "signals_to_handle has no effect(.|\n)*0/1 at ::1:29922"),
    ]:
        job = Job(*options, *show, env=env)
        try:
            job.ends(code, 5)
            job.says(says)
        except Failure as failure:
            raise Failure(f"{options} {env}: {failure}") from None
    job = Job("--nproc_per_node=2", "--local_ranks_filter=1", *show)
    job.ends(0, 5)
    expect("0/2" not in job.output(), job.output())


def cores():
    """The CPUs that this test may use, by the core to which they belong."""
    found = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first = re.match(r"\d+", siblings.read_text())[0] if siblings.exists() else cpu
        found.setdefault(int(first), []).append(cpu)
    return [found[first] for first in sorted(found)]


def cpus_in(text):
    """The CPUs of a list such as 0-2,5."""
    ranges = [part.split("-") for part in text.split(",")]
    return [cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)]


def mode_for_two_ranks():
    return "exclusive" if len(cores()) > 1 else "node"


# Prints the CPUs and the number of threads of a rank.
SHOW_CPUS = ("bash", "-c", 'echo "rank=$RANK cpus=$(sed -n s/Cpus_allowed_list:.//p /proc/self/status) threads=$OMP_NUM_THREADS."')


def bound_ranks(job):
    """-> {rank: (CPUs, threads)} of the output of SHOW_CPUS."""
    found = re.findall(r"rank=(\d) cpus=([\d,-]+) threads=(\d+)\.", job.output())
    return {int(rank): (cpus_in(cpus), int(threads)) for rank, cpus, threads in found}


def use(cpus):
    """Options of a job that may use these CPUs."""
    return {"preexec_fn": lambda: os.sched_setaffinity(0, cpus), "env": NO_GPU}


def test_ranks_are_bound_to_cpus():
    usable = sorted(os.sched_getaffinity(0))
    # Of one node and one core, whatever this machine has: ranks may share it, but not exclusively.
    own = cores()[-1]
    for mode in ("node", "socket", "core-complex"):
        job = Job(f"--numa_binding={mode}", "--nproc_per_node=2", *SHOW_CPUS, **use(own))
        job.ends(0, 10)
        expect(bound_ranks(job) == dict.fromkeys((0, 1), (own, max(1, len(own) // 2))), job.output())
        job.says(r"binding: ranks 0-1 on CPUs? \d")
    job = Job("--numa_binding=exclusive", "--nproc_per_node=1", *SHOW_CPUS, **use(own))
    job.ends(0, 10)
    expect(bound_ranks(job) == {0: (own, len(own))}, job.output())
    job = Job("--numa_binding=exclusive", "--nproc_per_node=2", *SHOW_CPUS, **use(own))
    job.ends(2, 10)
    job.says("2 ranks need a core each(.|\n)*start fewer ranks on this host")
    expect(not bound_ranks(job), f"a rank has started: {job.output()}")
    job = Job("--nproc_per_node=1", *SHOW_CPUS)
    job.ends(0, 10)
    expect(bound_ranks(job) == {0: (usable, len(usable))} and "binding" not in job.output(), job.output())
    # The first start fails. Each start has the same CPUs, and the line about them is printed once.
    if len(cores()) == 1:
        return
    fails = f'{SHOW_CPUS[2]}; [ "$MTRAIN_RESTART_COUNT" = 1 ]'
    job = Job("--numa_binding=exclusive", "--nproc_per_node=2", "--max_restarts=1", "bash", "-c", fails,
              **use([cpu for core in cores()[:2] for cpu in core]))
    job.ends(0, 20)
    job.says(r"restarting all ranks \(1 of 1\)")
    expect(job.output().count("binding: rank 0 on CPU") == 1, job.output())
    expect(bound_ranks(job) == {rank: (cores()[rank], len(cores()[rank])) for rank in (0, 1)}, job.output())
    expect(len(re.findall(r"rank=\d cpus=", job.output())) == 4, job.output())


def test_a_bound_training_has_the_losses_of_an_unbound_one():
    def losses(name, *options):
        job = train(name, "train.steps=3", "train.threads=0", launch=options)
        job.ends(0, 30)
        if options:
            job.says(r"binding: ranks? 0.* on CPUs? \d")
        with open(WORK / name / "metrics.jsonl", encoding="utf-8") as lines:
            return [line["loss"] for line in map(json.loads, lines) if "loss" in line]

    bound = losses("bound", f"--numa_binding={mode_for_two_ranks()}")
    expect(len(bound) == 3 and bound == losses("unbound"), f"binding changes losses: {bound}")


def test_a_bound_rank_has_the_threads_that_the_launcher_names():
    """A rank never has more threads than CPUs: the variable may be that of a rank that has started this program."""
    cpus = len(os.sched_getaffinity(0))
    for named, threads in (1, 1), (cpus + 3, cpus):
        cache = WORK / f"cache{named}"
        subprocess.run([MTRAIN, "--recipe", WORK / "r.yaml", f"train.run_dir={WORK}/threads{named}", "train.steps=2", "train.threads=0"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**ENVIRONMENT, "MTRAIN_BOUND_THREADS": str(named), "XDG_CACHE_HOME": str(cache)})
        # The measured peak is kept by the number of threads.
        peaks = "".join(path.read_text() for path in cache.rglob("cpu_peaks"))
        expect(f" {threads} threads on {cpus} CPUs" in peaks, f"other threads than {threads}: {peaks}")


# Prints what a launcher passes to ranks that it binds.
SHOW_VARIABLES = ("bash", "-c", 'echo "threads=$MTRAIN_BOUND_THREADS cores=$MTRAIN_HOST_CORES."')


def test_a_launcher_in_a_bound_rank_does_not_pass_on_its_variables():
    job = Job("--numa_binding=node", "--nproc_per_node=1", *SHOW_VARIABLES, env=NO_GPU)
    job.ends(0, 10)
    cpus = len(os.sched_getaffinity(0))
    job.says(rf"threads=\d+ cores={cpus}\.")
    job = Job("--numa_binding=node", "--nproc_per_node=1", LAUNCH, "--nproc_per_node=1", *SHOW_VARIABLES, env=NO_GPU)
    job.ends(0, 10)
    job.says(r"threads= cores=\.")


# The first start leaves the launcher with the CPUs of its last argument, and fails.
LEAVE_CPUS = """
import os, sys
if os.environ["MTRAIN_RESTART_COUNT"] == "0":
    os.sched_setaffinity(int(os.environ["MTRAIN_LAUNCHER_PID"]), [int(cpu) for cpu in sys.argv[1].split(",")])
    sys.exit(1)
os.execvp("bash", sys.argv[2:])
"""


def test_a_restart_reads_the_usable_cpus_again():
    if len(cores()) == 1:
        return
    first, second = cores()[:2]
    ranks = (sys.executable, "-c", LEAVE_CPUS, ",".join(map(str, second)), *SHOW_CPUS)
    job = Job("--numa_binding=exclusive", "--nproc_per_node=1", "--max_restarts=1", *ranks, **use(first + second))
    job.ends(0, 20)
    expect(bound_ranks(job) == {0: (second, len(second))}, job.output())
    expect(len(re.findall(r"binding: rank 0 on CPU", job.output())) == 2, job.output())
    # One core is left for two ranks.
    job = Job("--numa_binding=exclusive", "--nproc_per_node=2", "--max_restarts=1", *ranks, **use(first + second))
    job.ends(0, 20)
    job.says("warning: --numa_binding=exclusive: 2 ranks need a core each.*; the ranks are not bound")
    expect(bound_ranks(job) == dict.fromkeys((0, 1), (second, max(1, len(second) // 2))), job.output())


def forbid_binding():
    """Makes sched_setaffinity fail with EPERM in this process, and in those that it starts."""
    call = {"x86_64": 203, "aarch64": 122}[os.uname().machine]
    load_call, equals, result = 0x20, 0x15, 0x06  # of BPF
    failure, allowed, no_new_privileges, set_seccomp, with_filter = 0x50000, 0x7FFF0000, 38, 22, 2
    code = b"".join(struct.pack("HBBI", *line) for line in [
        (load_call, 0, 0, 0), (equals, 0, 1, call), (result, 0, 0, failure | errno.EPERM), (result, 0, 0, allowed)])
    kept = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(kept)))
    for words in (no_new_privileges, 1, 0, 0, 0), (set_seccomp, with_filter, program, 0, 0):
        if ctypes.CDLL(None, use_errno=True).prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def test_a_rank_that_cannot_be_bound_is_named_and_restarted():
    job = Job("--numa_binding=node", "--nproc_per_node=1", "--max_restarts=1", *SHOW_CPUS, preexec_fn=forbid_binding, env=NO_GPU)
    job.ends(1, 20)
    job.says(r"restarting all ranks \(1 of 1\)")
    errors = re.findall(r"rank 0 cannot be bound to CPUs? [\d,-]+: Operation not permitted", job.output())
    expect(len(errors) == 2 and not bound_ranks(job), job.output())


def test_one_rank_under_the_launcher_trains():
    job = Job("--recipe", WORK / "r.yaml", f"train.run_dir={WORK / 'single'}", "train.steps=2")
    job.ends(0, 15)
    expect(steps("single") == [1, 2], job.output())


def test_nobody_waits_for_ranks_that_no_launcher_has_started():
    def run(env, *words):
        got = subprocess.run([MTRAIN, *map(str, words)], env={**ENVIRONMENT, **env}, capture_output=True,
                             timeout=15, check=False)
        expect(got.returncode == 0, f"{env} {words}: {got.returncode}\n{got.stderr.decode(errors='replace')}")

    left_over = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29921"}
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}
    one = WORK / "alone"
    recipe = ("--recipe", WORK / "r.yaml", f"train.run_dir={one}", "train.steps=2")
    run(batch, *recipe)
    run(left_over, *recipe, "--dry-run")
    for name, env in {"left_over": left_over, "batch": batch}.items():
        run(env, "generate", "--run", one, "--prompt", "1", "--tokens", "2")
        run(env, "eval", "--model", one, "--data", WORK / "set")
        run(env, "export", "hf", one, "--output", WORK / f"hf_{name}")


def test_keys_end_a_chat():
    run = WORK / "chat_model"
    subprocess.run([MTRAIN, "--recipe", WORK / "r.yaml", f"train.run_dir={run}", "train.steps=1"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    words = [MTRAIN, "generate", "--model", str(run), "--chat", "--tokens", "3", "--chat-template",
             "{% for m in messages %}{{ m.content }};{% endfor %}"]

    def talk(name, keys, prompts):
        """Sends each text after a prompt, and expects the program to end well after so many prompts."""
        child, terminal = pty.fork()
        if child == 0:
            os.environ.update(ENVIRONMENT)
            os.execv(MTRAIN, words)
        shown = b""

        def read():
            nonlocal shown
            try:
                if select.select([terminal], [], [], 0.05)[0]:
                    shown += os.read(terminal, 4096)
            except OSError:  # the program has closed the terminal
                pass

        for number, key in enumerate(keys, 1):
            await_that(lambda n=number: read() or shown.count(b"> ") >= n, f"{name}: prompt {number}")
            os.write(terminal, key)
        status = []

        def ended():
            read()
            pid, code = os.waitpid(child, os.WNOHANG)
            status.append(os.waitstatus_to_exitcode(code) if pid else None)
            return pid

        await_that(ended, f"{name}: the end")
        os.close(terminal)
        expect(status[-1] == 0, f"{name}: exit code {status[-1]}: {shown}")
        expect(shown.count(b"> ") == prompts, f"{name}: {shown}")

    talk("Ctrl-D", [b"one\n", b"\x04"], 2)
    talk("Ctrl-C twice", [b"\x03", b"\x03"], 2)
    talk("Ctrl-C, and a message", [b"\x03", b"one\n", b"\x03", b"\x03"], 4)


def main():
    for number in SIGNALS:  # shells and nohup may have started this test without some of them
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    (WORK / "tmp").mkdir()
    (WORK / "text").write_text("".join(f"{i}\n" for i in range(5000)))
    subprocess.run([MTRAIN, "data", "build", "--input", WORK / "text", "--output", WORK / "set"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (WORK / "r.yaml").write_text(RECIPE % (WORK / "set"))
    failures = 0
    wanted = sys.argv[3:]
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (wanted and not any(w in name for w in wanted)):
            continue
        began = time.monotonic()
        try:
            test()
        except Failure as failure:
            failures += 1
            print(f"FAILED: {name[5:].replace('_', ' ')}: {failure}")
        print(f"{time.monotonic() - began:6.1f} s  {name[5:].replace('_', ' ')}", flush=True)
    print("all well" if not failures else f"{failures} failures")
    return failures > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        send(processes(str(WORK)), signal.SIGKILL)
        shutil.rmtree(WORK, ignore_errors=True)
