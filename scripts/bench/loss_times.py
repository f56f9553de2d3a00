#!/usr/bin/env python3
"""Measures how fast a job on several hosts notices what it has lost, and continues. Each host is a launcher with two CPU ranks.

  scripts/bench/loss_times.py <mtrain> <mtrain-launch> <library that changes the host's name> [--3M] [rounds [case...]]

The model is the one of the elastic tests, or with --3M one of 3M parameters. Every round has each case once. Prints a Markdown
table of medians, from the loss on: seconds until the error that names it is printed, until all ranks of the old start are gone,
and until the next step has ended. A hang counts from its limit of 2 s on.
"""
import os
import pathlib
import signal
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "test/process"))
import elastic_test as elastic  # noqa: E402
import etcd_test  # noqa: E402

LIMIT = 2
MODEL_3M = ["model.num_layers=4", "model.hidden_size=256", "model.num_attention_heads=4", "model.ffn_hidden_size=688", "dataset.seq_length=128",
            "debug.compute_slowdown=1"]
MODEL = []


def watch(job, run, teller, words, since, continues=True):
    """-> the times from `since` on"""
    old = list(elastic.ranks_of(run).values())
    named = gone = following = None
    end = time.time() + 60
    while (named is None or gone is None or (continues and following is None)) and time.time() < end:
        now = time.time()
        if named is None and words in job.output(teller):
            named = now
        if gone is None and not any(os.path.exists(f"/proc/{pid}") for pid in old):
            gone = now
        if continues and gone and (later := [r["time"] for r in job.records().values() if r["time"] > gone]):
            following = min(later)
        time.sleep(0.01)
    if named is None or gone is None or (continues and following is None):
        job.fail("the loss is not noticed, or the job does not continue")
    return [t and t - since for t in (named, gone, following)]


def finish(job):
    for process in job.processes.values():
        process.send_signal(signal.SIGKILL)
    for process in job.processes.values():
        process.wait()
    while elastic.processes_of(job.run):
        time.sleep(0.05)


def rank_killed(run):
    job = elastic.Job(run, "2", *MODEL, launcher=["--max_restarts=1"]).start_all(0, 1)
    job.await_step(elastic.KILLED + 3)
    since = time.time()
    os.kill(elastic.ranks_of(run)[3], signal.SIGKILL)
    return job, watch(job, run, 0, "error: rank 3 ", since)


def rank_stopped(run):
    job = elastic.Job(run, "2", *MODEL, f"launch.step_timeout_s={LIMIT}", launcher=["--max_restarts=1"]).start_all(0, 1)
    job.await_step(elastic.KILLED + 3)
    since = time.time()
    os.kill(elastic.ranks_of(run)[3], signal.SIGSTOP)
    return job, watch(job, run, 0, "error: rank 3 on host1 is stopped", since + LIMIT)


def host_killed(run):
    job = elastic.Job(run, "1:3", *MODEL).start_all(0, 1, 2)
    job.await_step(elastic.KILLED + 3)
    since = time.time()
    job.kill(2)
    return job, watch(job, run, 0, "error: host 2 (host2) is gone", since)


def host_0_killed(run):
    job = elastic.Job(run, "1:3", *MODEL).start_all(0, 1, 2)
    job.await_step(elastic.KILLED + 3)
    since = time.time()
    job.kill(0)
    return job, watch(job, run, 1, "error: host 0 is gone", since, continues=False)


def leader_killed(run):
    with etcd_test.Etcd(run) as etcd:
        job = etcd_test.Job(etcd, run, "1:3", *MODEL).start_all(0, 1, 2)
        job.await_step(elastic.KILLED + 3)
        since = time.time()
        job.kill(0)
        times = watch(job, run, 1, "error: host 0 (host0) is gone", since)
        finish(job)
    return job, times


CASES = {"rank": ("a rank of another host is killed", rank_killed), "hang": ("a rank of another host is stopped", rank_stopped),
         "host": ("a host's launcher and ranks are killed", host_killed),
         "leader": ("those of the leading host, with etcd", leader_killed),
         "host0": ("those of host 0, without etcd: the job ends", host_0_killed)}


def cell(times):
    known = [t for t in times if t is not None]
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else ""


def main():
    arguments = sys.argv[4:]
    if "--3M" in arguments:
        arguments.remove("--3M")
        MODEL.extend(MODEL_3M)
    rounds = int(arguments[0]) if arguments else 10
    names = arguments[1:] or list(CASES)
    elastic.make_files()
    found = {name: [] for name in names}
    for n in range(rounds):
        for name in names:
            job, times = CASES[name][1](f"{name}{n}")
            finish(job)
            found[name].append(times)
            print(name, n, [t and round(t, 2) for t in times], file=sys.stderr, flush=True)
    print("| lost | named | all gone | next step |\n|---|---|---|---|")
    for name in names:
        print(f"| {CASES[name][0]} | {' | '.join(cell(column) for column in zip(*found[name]))} |")


try:
    main()
finally:
    elastic.shutil.rmtree(elastic.WORK, ignore_errors=True)
