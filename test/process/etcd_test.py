#!/usr/bin/env python3
"""Three launchers of two ranks each elect the one that leads, through a real etcd. Leaders are killed and cut off, etcd is restarted, is
absent, or refuses the user. Requires the curve of an undisturbed run, one cause that all launchers print once, and that nothing is left.

  test/process/etcd_test.py <mtrain> <mtrain-launch> <library that changes the host's name> [--nightly | case...]
"""
import base64
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import elastic_test as elastic
from elastic_test import KILLED, LAUNCH, PORTS, WORK, fail

ETCD = shutil.which("etcd")
NIGHTLY = ["absent", "data", "two", "token", "fixed", "stopped", "unreachable", "networks", "cut"]  # they take half a minute each


class Etcd:
    """A server with data of its own. `within`: words before its command."""

    def __init__(self, name, host="127.0.0.1", within=(), tls=None):
        self.name, self.host, self.port, self.peers, self.within, self.tls = name, host, next(PORTS), next(PORTS), list(within), tls
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def start(self):
        scheme = "https" if self.tls else "http"
        secure = [f"--cert-file={self.tls}.pem", f"--key-file={self.tls}.key"] if self.tls else []
        with open(WORK / f"etcd-{self.name}.log", "a") as log:
            self.process = subprocess.Popen(
                [*self.within, ETCD, f"--data-dir={WORK}/etcd-{self.name}", f"--listen-client-urls={scheme}://{self.host}:{self.port}",
                 f"--advertise-client-urls={scheme}://{self.host}:{self.port}", f"--listen-peer-urls=http://127.0.0.1:{self.peers}",
                 f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peers}", f"--initial-cluster=default=http://127.0.0.1:{self.peers}",
                 *secure], stdout=log, stderr=log)
        end = time.time() + 30
        while "ready to serve client requests" not in (text := (WORK / f"etcd-{self.name}.log").read_text()).split("received signal")[-1]:
            if self.process.poll() is not None or time.time() > end:
                fail("etcd does not start", text)
            time.sleep(0.05)
        time.sleep(0.2)
        return self

    def stop(self):
        """As a service is stopped"""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=30)

    def call(self, path, **request):
        """Without TLS"""
        done = urllib.request.urlopen(urllib.request.Request(f"http://{self.host}:{self.port}/v3/{path}", json.dumps(request).encode()), timeout=10)
        return json.loads(done.read())

    def keys(self, job):
        """-> the keys of a job"""
        first, last = (base64.b64encode(f"/mtrain/{job}{c}".encode()).decode() for c in "/0")
        found = self.call("kv/range", key=first, range_end=last, keys_only=True).get("kvs", [])
        return [base64.b64decode(k["key"]).decode() for k in found]


class Job(elastic.Job):
    def __init__(self, etcd, run, nodes, *settings, config="", name=None, **options):
        super().__init__(run, nodes, *settings, **options)
        self.etcd, self.config, self.name = etcd, config, name or run

    def meeting(self):
        return ["--rdzv_backend=etcd", f"--rdzv_id={self.name}", f"--rdzv_endpoint={self.etcd.host}:{self.etcd.port}",
                *([f"--rdzv_conf={self.config}"] if self.config else [])]

    def start_all(self, *hosts):
        """The first of them leads."""
        self.start(hosts[0])
        self.await_text(hosts[0], "leads the job")
        return super().start_all(*hosts[1:])

    def leaders(self):
        """-> the hosts that have led, by their own lines"""
        return re.findall(r"mtrain-launch: host (\d) \(host\d\) leads the job", self.output())


def leader_killed(expected):
    """The launcher of host 0 leads, and is killed with its ranks. Another one leads, and host 0 joins later."""
    with Etcd("leader") as etcd:
        job = Job(etcd, "leader", "1:3").start_all(0, 1, 2)
        job.await_step(KILLED)
        job.kill(0)
        killed_at = time.time()
        job.await_text(1, "restarting all ranks")
        noticed = time.time() - killed_at
        job.await_step(KILLED - 9, killed_at + 1)
        again = time.time() - killed_at
        job.start(0)
        job.finish()
        job.expect_once([1, 2], r"mtrain-launch: error: (host 0 \(host0\) is gone: its launcher, which led the job)")
        if len(leaders := job.leaders()) != 2 or leaders[1] == "0":
            job.fail(f"the leaders are {leaders}")
        starts = elastic.starts(job, 1)
        if starts[1] not in [("1", "4", "1, 2", "4"), ("1", "4", "2, 1", "4")] or starts[2][:2] != ("2", "6"):
            job.fail(f"the starts are {starts}")
        worst = job.expect_curve(expected)
        print(f"the leader is killed: {noticed:.1f} s to the restart under host {leaders[1]}, {again:.1f} s to the next step; host 0 joined again; losses "
              f"differ by {worst:.1e}")


def etcd_restarted(expected):
    """etcd is gone for 4 s at step 40: nobody notices."""
    with Etcd("restarted") as etcd:
        job = Job(etcd, "restarted", "1:2", "debug.compute_slowdown=60").start_all(0, 1)
        job.await_step(40)
        etcd.stop()
        time.sleep(4)
        etcd.start()
        time.sleep(3)
        if sorted(etcd.keys("restarted")) != ["/mtrain/restarted/leader", "/mtrain/restarted/rounds"]:
            job.fail(f"etcd has lost keys: {etcd.keys('restarted')}")
        job.finish()
        if len(got := elastic.starts(job, 0)) != 1 or len(job.leaders()) != 1:
            job.fail(f"the starts are {got}")
        worst = job.expect_curve(expected)
        if "/mtrain/restarted/leader" in etcd.keys("restarted"):
            job.fail("the leader's key is left")
        print(f"etcd is restarted: no new start; losses differ by {worst:.1e}")


def etcd_absent(expected):
    """etcd is absent for longer than a lease. The round trains on; when a rank is killed, the next round waits for etcd."""
    with Etcd("absent") as etcd:
        job = Job(etcd, "absent", "1:2", "debug.compute_slowdown=150", "train.steps=60").start_all(0, 1)
        job.await_step(5)
        etcd.stop()
        time.sleep(12)
        before = max(job.records())
        killed_at = time.time()
        os.kill(elastic.ranks_of("absent")[3], signal.SIGKILL)
        job.await_text(0, "the next start waits: etcd at")
        if before <= 5:
            job.fail("the job has not trained without etcd")
        if len(elastic.starts(job, 0)) != 1:
            job.fail("a start did not wait for etcd")
        etcd.start()
        job.await_step(1, killed_at + 1)
        job.finish()
        if len(got := elastic.starts(job, 0)) != 2 or ") is gone" in job.output():
            job.fail(f"the starts are {got}")
        worst = job.expect_curve({step: loss for step, loss in expected.items() if step <= 60})
        print(f"etcd is absent for 12 s: the round trains on to step {before}, the next one waits; losses differ by {worst:.1e}")


def data_lost(expected):
    """etcd loses all its data: the leader still leads."""
    with Etcd("data") as etcd:
        job = Job(etcd, "data", "1:2", "debug.compute_slowdown=60").start_all(0, 1)
        job.await_step(KILLED)
        etcd.stop()
        shutil.rmtree(WORK / "etcd-data")
        etcd.start()
        time.sleep(5)
        if "/mtrain/data/leader" not in etcd.keys("data"):
            job.fail("the leader has not written its key again")
        os.kill(elastic.ranks_of("data")[3], signal.SIGKILL)
        job.finish()
        if len(got := elastic.starts(job, 0)) != 2 or len(job.leaders()) != 1:
            job.fail(f"the starts are {got}")
        worst = job.expect_curve(expected)
        print(f"etcd loses its data: the job continues; losses differ by {worst:.1e}")


def launch(*words, code):
    """A launcher that ends with an error. -> what it prints"""
    result = subprocess.run([LAUNCH, "--nnodes=1:2", "--node_rank=0", *words, f"--token_file={WORK}/token", "--recipe", f"{WORK}/r.yaml",
                             f"train.run_dir={WORK}/mistake/run"], capture_output=True, text=True, timeout=60)
    if result.returncode != code:
        fail(f"{words}: exit code {result.returncode} instead of {code}", result.stdout, result.stderr)
    return result.stdout + result.stderr


def mistakes():
    """Each ends with one clear error."""
    port = next(PORTS)
    began = time.time()
    cases = [(["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=x"], 1, f"error: etcd at 127.0.0.1:{port} does not answer"),
             (["--rdzv_backend=etcd-v2", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=x"], 2, "hint: use etcd,"),
             (["--rdzv_backend=etcd", "--rdzv_id=x"], 2, "needs the address of etcd"),
             (["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{port}"], 2, "needs the name of the job"),
             (["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=x", "--rdzv_conf=user=me,password=secret"], 2, "password_file=FILE")]
    for words, code, expected in cases:
        output = launch(*words, code=code)
        if expected not in output or output.count("error:") != 1:
            fail(f"{words}", output)
        if "password=secret" in words[-1] and "secret" in output:
            fail("the password is printed", output)
    print(f"mistakes have clear errors; an etcd that does not answer is reported within {time.time() - began:.1f} s")


def users(expected):
    """etcd asks for a user. A wrong password is refused; the right one is neither in command lines nor in environments of ranks."""
    with Etcd("users") as etcd:
        for user, password in (("root", "rootpassword"), ("trainer", "rightpassword")):
            etcd.call("auth/user/add", name=user, password=password)
        for role in ("root", "jobs"):
            etcd.call("auth/role/add", name=role)
        etcd.call("auth/user/grant", user="root", role="root")
        first, last = (base64.b64encode(text).decode() for text in (b"/mtrain/", b"/mtrain0"))
        etcd.call("auth/role/grant", name="jobs", perm={"permType": "READWRITE", "key": first, "range_end": last})
        etcd.call("auth/user/grant", user="trainer", role="jobs")
        etcd.call("auth/enable")
        file = WORK / "password"
        file.write_text("wrongpassword\n")
        file.chmod(0o600)
        words = ["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{etcd.port}", "--rdzv_id=users"]
        if "needs a user" not in (output := launch(*words, code=2)):
            fail("no user", output)
        output = launch(*words, f"--rdzv_conf=user=trainer,password_file={file}", code=2)
        if "refuses user trainer" not in output or "wrongpassword" in output:
            fail("a wrong password", output)
        file.chmod(0o644)
        if "password file" not in (output := launch(*words, f"--rdzv_conf=user=trainer,password_file={file}", code=2)):
            fail("a password that others can read", output)
        file.write_text("rightpassword\n")
        file.chmod(0o600)
        job = Job(etcd, "users", "1:2", "train.steps=30", config=f"user=trainer,password_file={file}").start_all(0, 1)
        job.await_step(3)
        for pid in [*elastic.ranks_of("users").values(), *(p.pid for p in job.processes.values())]:
            for name in ("cmdline", "environ"):
                if b"rightpassword" in pathlib.Path(f"/proc/{pid}/{name}").read_bytes():
                    job.fail(f"the password is in {name}")
        etcd.stop()  # its sessions are forgotten
        etcd.start()
        time.sleep(3)
        job.finish()
        job.expect_curve({step: loss for step, loss in expected.items() if step <= 30})
        print("a user with a password, also after etcd's restart")


def tls(expected):
    """etcd is reached by TLS. A server that the authority has not signed is refused."""
    for name, subject in (("etcd", "/CN=etcd"), ("other", "/CN=other")):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", subject, "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", f"{WORK}/{name}.key", "-out", f"{WORK}/{name}.pem"], check=True, capture_output=True)
    with Etcd("tls", tls=WORK / "etcd") as etcd:
        words = ["--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{etcd.port}", "--rdzv_id=tls"]
        output = launch(*words, f"--rdzv_conf=cacert={WORK}/other.pem", code=1)
        if "TLS does not trust its certificate" not in output:
            fail("a server of another authority", output)
        job = Job(etcd, "tls", "1:2", "train.steps=10", config=f"cacert={WORK}/etcd.pem").start_all(0, 1)
        job.finish()
        job.expect_curve({step: loss for step, loss in expected.items() if step <= 10})
        print("TLS: the job trains; another authority is refused")


def two_jobs(expected):
    """Jobs with different names do not notice each other. The same job started twice is refused, and so is another job of the same name."""
    with Etcd("two") as etcd:
        one, two = Job(etcd, "one", "1:2", "debug.compute_slowdown=40").start_all(0, 1), Job(etcd, "two", "1:2", "train.steps=40").start_all(0, 1)
        one.await_step(5)
        again = Job(etcd, "one", "1:2")
        again.start(0)
        again.start(1)
        for host in (0, 1):
            again.expect_end(host, 2)
        if "another launcher has --node_rank=1" not in again.output(1):
            again.fail("the refusal has no reason")
        (WORK / "other_token").write_text(os.urandom(32).hex() + "\n")
        (WORK / "other_token").chmod(0o600)
        other = Job(etcd, "other", "1:2", name="one")
        other.token = [f"--token_file={WORK}/other_token"]
        other.start(0)
        other.expect_end(0, 2)
        if "has a different token" not in other.output(0):
            other.fail("the refusal has no reason")
        two.finish()
        one.finish()
        for job in (one, two):
            if len(set(got := elastic.starts(job, 0))) != 1:
                job.fail(f"the starts are {got}")
        one.expect_curve(expected)
        two.expect_curve({step: loss for step, loss in expected.items() if step <= 40})
        print("two jobs on one etcd: neither notices the other; a second start and another job of the same name are refused")


def shared_token(expected):
    """Without a token of the user the leader makes one in the run folder, and so does the next leader."""
    with Etcd("token") as etcd:
        job = Job(etcd, "shared", "1:2", "train.steps=60")
        job.token = []
        job.start_all(0, 1)
        job.await_step(KILLED)
        job.kill(0)
        job.finish()
        job.expect_curve({step: loss for step, loss in expected.items() if step <= 60})
        if (WORK / "shared/run/.token").exists():
            job.fail("the token is left")
        print("the leader makes the job's token, and so does the next one")


def spare_leads(expected):
    """The hosts with ranks are killed. The launcher that is left had none, and continues the run."""
    with Etcd("spare") as etcd:
        job = Job(etcd, "spare", "1:3", "train.steps=40")
        job.start(0)
        job.await_text(0, "leads the job")
        job.start(1)
        job.start(2, ranks=1)
        job.await_text(0, "start 0: 4 ranks on hosts 0, 1, dp_size 4; 1 spare ranks wait")
        job.await_step(KILLED)
        job.kill(0)
        job.kill(1)
        job.finish()
        if elastic.starts(job, 2)[-1] != ("1", "1", "2", "1"):
            job.fail(f"the starts are {elastic.starts(job, 2)}")
        job.expect_curve({step: loss for step, loss in expected.items() if step <= 40})
        print("a launcher that had no ranks leads, and continues the run")


def leader_stopped(expected):
    """The launcher that leads is stopped, but not killed, and has made the job's token. The others replace it; it follows when it continues."""
    with Etcd("stopped") as etcd:
        job = Job(etcd, "stopped", "1:3", "debug.compute_slowdown=250", "train.steps=80")
        job.token = []
        job.start_all(0, 1, 2)
        job.await_text(0, "start 0: 6 ranks")
        job.await_step(1)
        os.kill(job.processes[0].pid, signal.SIGSTOP)
        stopped_at = time.time()
        job.await_text(1, "start 1: 4 ranks")
        replaced = time.time() - stopped_at
        job.await_step(1, time.time())
        os.kill(job.processes[0].pid, signal.SIGCONT)
        job.finish()
        if len(job.leaders()) != 2:
            job.fail(f"the leaders are {job.leaders()}")
        job.expect_once([1, 2], r"mtrain-launch: error: (host 0 \(host0\) is gone: its launcher, which led the job)")
        worst = job.expect_curve({step: loss for step, loss in expected.items() if step <= 80})
        print(f"the leader is stopped: {replaced:.1f} s to the next start of the others; it follows when it continues; losses differ by {worst:.1e}")


def unreachable():
    """The leader that etcd names cannot be reached: the search ends after --rdzv_timeout, and names its address."""
    with Etcd("unreachable") as etcd:
        port = next(PORTS)
        record = {"id": "x", "host": "far", "node": 1, "address": "127.0.0.1", "port": port, "job_token": ""}
        key, value = (base64.b64encode(text.encode()).decode() for text in ("/mtrain/unreachable/leader", json.dumps(record)))
        etcd.call("kv/put", key=key, value=value)
        job = Job(etcd, "unreachable", "1:2", launcher=["--rdzv_timeout=20"])
        job.token = []
        began = time.time()
        job.start(0)
        job.expect_end(0, 1, seconds=60)
        if f"error: host 1 (far), whose launcher leads the job, does not answer at 127.0.0.1:{port}" not in job.output(0):
            job.fail("the error does not name the address")
        print(f"a leader that cannot be reached is reported after {time.time() - began:.1f} s")


def signal_in_search():
    """A signal, and then a second one, to a launcher that has no leader yet: all hosts end."""
    with Etcd("search") as etcd:
        job = Job(etcd, "search", "1:3", "debug.compute_slowdown=60").start_all(0, 1, 2)
        job.await_step(5)
        etcd.stop()
        job.kill(0)
        for host in (1, 2):
            job.await_text(host, "elect another one")
        for _ in range(2):
            job.processes[1].send_signal(signal.SIGTERM)
            time.sleep(1.5)
        if job.processes[1].poll() is not None:
            job.fail("the launcher that got the signal has left the others alone")
        etcd.start()
        end = time.time() + 60
        while None in (codes := {host: process.poll() for host, process in job.processes.items()}).values() and time.time() < end:
            time.sleep(0.05)
        if len(set(codes.values())) != 1 or 0 in codes.values() or None in codes.values():
            job.fail(f"the exit codes are {codes}")
        job.expect_nothing_left()
        print(f"signals without a leader end all hosts: exit codes {codes}")


def fixed(expected):
    """A job of two hosts waits for a host 0 that is lost."""
    with Etcd("fixed") as etcd:
        job = Job(etcd, "fixed", "2", "train.steps=60", "checkpoint.load=latest", launcher=["--max_restarts=3"]).start_all(0, 1)
        job.await_step(KILLED)
        job.kill(0)
        job.await_text(1, "waiting: no launcher of host 0")
        job.start(0)
        job.finish()
        job.expect_curve({step: loss for step, loss in expected.items() if step <= 60})
        print("a fixed number of hosts waits for host 0")


def signals():
    """A signal to a launcher that does not lead saves and ends all hosts."""
    with Etcd("signals") as etcd:
        job = Job(etcd, "signals", "1:3").start_all(0, 1, 2)
        job.await_step(5)
        job.processes[1].send_signal(signal.SIGTERM)
        job.finish()
        last = max(job.records())
        if not (WORK / f"signals/run/checkpoints/step-{last:08}/index.json").exists():
            job.fail(f"step {last} is not saved")
        print("a signal to one launcher ends all hosts")


def networks(expected):
    """Each host and etcd have a network of their own. The leader is killed at step 20, a host is cut off at 40, one joins at 60, and etcd is
    restarted at 80."""
    with elastic.Networks() as hosts:
        hosts.ip("-n", hosts.switch, "addr", "add", "10.9.1.100/24", "dev", "br0")
        hosts.ip("-n", hosts.switch, "link", "set", "lo", "up")
        with Etcd("networks", host="10.9.1.100", within=["ip", "netns", "exec", hosts.switch]) as etcd:
            job = Job(etcd, "networks", "1:3", "debug.compute_slowdown=60", launcher=["--rdzv_timeout=30"], networks=hosts).start_all(0, 1, 2)
            job.await_step(20)
            job.kill(0)
            killed_at = time.time()
            job.await_text(1, "start 1: 4 ranks on hosts ")
            killed = time.time() - killed_at
            leader = int(job.leaders()[1])
            other = 3 - leader
            job.await_step(40)
            hosts.cut_off(other)
            cut_at = time.time()
            job.await_text(leader, f"start 2: 2 ranks on host {leader}")
            cut = time.time() - cut_at
            job.await_step(60)
            job.start(0)
            job.await_step(80)
            etcd.stop()
            time.sleep(2)
            etcd.start()
            job.expect_end(other, 1, seconds=90)
            job.finish()
            starts = elastic.starts(job, leader)
            if starts[3][1] != "4":
                job.fail(f"host 0 has not joined: {starts}")
            worst = job.expect_curve(expected)
            print(f"four networks: the leader killed ({killed:.1f} s to the next start), a host cut off ({cut:.1f} s), one joined, etcd restarted; losses "
                  f"differ by {worst:.1e}")


def leader_cut_off(expected):
    """The leader is cut off from the other hosts and from etcd. It must not begin a round of its own, and ends; another one leads."""
    with elastic.Networks() as hosts:
        hosts.ip("-n", hosts.switch, "addr", "add", "10.9.1.100/24", "dev", "br0")
        hosts.ip("-n", hosts.switch, "link", "set", "lo", "up")
        with Etcd("cut", host="10.9.1.100", within=["ip", "netns", "exec", hosts.switch]) as etcd:
            job = Job(etcd, "cut", "1:3", "debug.compute_slowdown=60", launcher=["--rdzv_timeout=30"], networks=hosts).start_all(0, 1, 2)
            job.await_step(KILLED)
            hosts.cut_off(0)
            cut_at = time.time()
            job.await_text(1, "start 1: 4 ranks on hosts ")
            cut = time.time() - cut_at
            job.expect_end(0, 1, seconds=90)
            job.finish()
            if len(elastic.starts(job, 0)) != 1 or "no start is possible after 30 s: etcd at" not in job.output(0):
                job.fail("the leader that was cut off has begun a round, or does not say why it ends")
            job.expect_once([1, 2], r"mtrain-launch: error: (host 0 \(host0\) is gone: its launcher, which led the job)")
            worst = job.expect_curve(expected)
            print(f"the leader is cut off: {cut:.1f} s to the next start of the others; it ends; losses differ by {worst:.1e}")


def main():
    if not ETCD:
        fail("etcd is not installed: install it with  apt-get install etcd-server  (or scripts/install-deps.sh --tests)")
    elastic.make_files()
    nightly = "--nightly" in sys.argv[4:]
    only = [name for name in sys.argv[4:] if name != "--nightly"]
    expected = elastic.straight()
    cases = {"mistakes": mistakes, "leader": lambda: leader_killed(expected), "restarted": lambda: etcd_restarted(expected),
             "absent": lambda: etcd_absent(expected), "data": lambda: data_lost(expected), "users": lambda: users(expected), "tls": lambda: tls(expected),
             "two": lambda: two_jobs(expected), "token": lambda: shared_token(expected), "fixed": lambda: fixed(expected), "signals": signals,
             "spare": lambda: spare_leads(expected), "stopped": lambda: leader_stopped(expected), "unreachable": unreachable,
             "search": signal_in_search, "networks": lambda: networks(expected), "cut": lambda: leader_cut_off(expected)}
    try:
        for name, case in cases.items():
            if name in only or (not only and (nightly or name not in NIGHTLY)):
                case()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
