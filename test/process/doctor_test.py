#!/usr/bin/env python3
"""Tests that `mtrain doctor` finds what is broken: a full disk, 64 descriptors, a busy core, GPUs with faults.

  test/process/doctor_test.py <mtrain> <mtrain-launch> <library that stands in for NVML>
"""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

MTRAIN, LAUNCH, NVML = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:4])
WORK = pathlib.Path(tempfile.mkdtemp())
CHECKS = ["cores", "GEMM, fp32", "memory", "/dev/shm", "disk, space", "disk, rate", "open files", "clock",
          "all-reduce, shared memory", "all-reduce, Gloo over loopback"]
# What may be wrong with the machine of the test.
OF_MACHINE = {"cores", "memory", "disk, space", "/dev/shm"}


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def doctor(*words, command=None, **options):
    """Returns the exit code, the rows by check, and what was printed to stderr."""
    done = subprocess.run([*(command or [MTRAIN, "doctor"]), "--json", *words], capture_output=True, text=True, cwd=WORK,
                          timeout=120, **options)
    expect(done.returncode in (0, 1), f"exit code {done.returncode}: {done.stdout}{done.stderr}")
    hosts = json.loads(done.stdout)
    expect(len(hosts) == 1, f"{len(hosts)} hosts")
    rows = {}
    for row in hosts[0]["rows"]:
        rows.setdefault(row["check"], []).append(row)
    faults = [check for check, found in rows.items() if any(row["verdict"] == "fault" for row in found)]
    expect((done.returncode == 1) == bool(faults), f"exit code {done.returncode} with the faults {faults}")
    expect(all(f"{check}" in done.stderr for check in faults), f"stderr lacks a fault: {done.stderr}")
    return rows, faults


def test_rows():
    rows, faults = doctor()
    expect(list(rows)[:len(CHECKS)] == CHECKS, f"the rows are {list(rows)}")
    expect(set(faults) <= OF_MACHINE, f"faults of this machine: {[rows[f] for f in faults]}")
    expect("GFLOP/s" in rows["GEMM, fp32"][0]["value"], rows["GEMM, fp32"])
    text = subprocess.run([MTRAIN, "doctor"], capture_output=True, text=True, cwd=WORK, check=False).stdout
    expect(all(check in text for check in CHECKS), text)
    expect(not list(WORK.iterdir()), f"files are left: {list(WORK.iterdir())}")


def test_full_disk():
    script = ('mkdir -p "$0/full" && mount -t tmpfs -o size=8m none "$0/full" && '
              '{ cat /dev/zero >"$0/full/file" 2>/dev/null; shift; exec "$@"; }')
    as_user = [] if os.geteuid() == 0 else ["-r"]
    rows, faults = doctor("--run-dir", str(WORK / "full" / "runs"),
                          command=["unshare", *as_user, "-m", "sh", "-c", script, str(WORK), "-", MTRAIN, "doctor"])
    expect({"disk, space", "disk, rate"} <= set(faults), f"a full disk: {rows}")
    expect("No space left" in rows["disk, rate"][0]["value"], rows["disk, rate"])
    (WORK / "full").rmdir()


def test_descriptors():
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    rows, faults = doctor(preexec_fn=limit)
    expect("open files" in faults and "64" in rows["open files"][0]["value"], f"64 descriptors: {rows['open files']}")
    expect(set(faults) <= OF_MACHINE | {"open files"}, f"{faults}")

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    rows, _ = doctor(preexec_fn=lower)
    expect(rows["open files"][0]["verdict"] == "warning" and "ulimit -n" in rows["open files"][0]["hint"],
           f"{rows['open files']}")


def test_slow_core():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return print("one core: no core can be slower than another")
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"],
                             preexec_fn=lambda: os.sched_setaffinity(0, {cores[-1]})) for _ in range(8)]
    try:
        rows, faults = doctor()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    expect("cores" in faults and f"{cores[-1]} (" in rows["cores"][0]["value"], f"a busy core: {rows['cores']}")


def test_hosts():
    rows, _ = doctor("--hosts", command=[LAUNCH, "--nproc_per_node=2", MTRAIN, "doctor"])
    expect(list(rows)[:len(CHECKS)] == CHECKS, f"the rows are {list(rows)}")
    alone = subprocess.run([MTRAIN, "doctor", "--hosts"], capture_output=True, text=True, check=False)
    expect(alone.returncode == 2 and "mtrain-launch" in alone.stderr, alone.stderr)


def test_gpus():
    folder = WORK / "nvml"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").symlink_to(NVML)

    def examine(faults):
        return doctor(env={**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_FAULTS": faults})

    rows, faults = examine("")
    expect(rows["driver"][0]["value"] == "999.1" and "4 NVLinks" in rows["GPU 1"][0]["value"], f"{rows}")
    expect(set(faults) <= OF_MACHINE, f"{faults}")
    for name, verdict, word in (("ecc", "fault", "3 uncorrected ECC errors"), ("row", "fault", "could not be replaced"),
                                ("lost", "fault", "cannot open it"), ("heat", "warning", "throttled by heat"), ("used", "warning", "in use")):
        row = examine(name)[0]["GPU 1"][0]
        expect(row["verdict"] == verdict and word in row["value"] and row["hint"], f"{name}: {row}")
    row = examine("link")[0]["GPU 1"][0]  # the system may have no bridge there
    expect(row["verdict"] == "ok" and "3 NVLinks, 1 not connected" in row["value"], f"{row}")
    shutil.rmtree(folder)


try:
    for test in (test_rows, test_full_disk, test_descriptors, test_slow_core, test_hosts, test_gpus):
        test()
    code = 0
except Failure as e:
    print(f"FAILED: {e}")
    code = 1
finally:
    shutil.rmtree(WORK, ignore_errors=True)
sys.exit(code)
