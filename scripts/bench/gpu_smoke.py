#!/usr/bin/env python3
"""Checks within seconds whether a machine can run the GPU suite: its GPU, the libraries that mtrain loads, and PyTorch.

  scripts/bench/gpu_smoke.py --mtrain PROGRAM [--python python3] [--seconds 60]

Each line is one finding. cuBLASLt, cuDNN and NCCL are loaded here as mtrain loads them, by name from LD_LIBRARY_PATH.
The exit code is 1 if something is missing that mtrain needs, or if PyTorch does not see the GPU; a PyTorch that is not
imported within the seconds is only reported as slow, since a first import may be slow.
"""
import argparse
import ctypes
import re
import subprocess
import sys
import time

# The library, the file that mtrain loads, and the function that returns the version. cuBLASLt has the major version
# of the CUDA that mtrain was built with.
LIBRARIES = [
    ("cuBLASLt", "libcublasLt.so.{cuda}", "cublasLtGetVersion"),
    ("cuDNN", "libcudnn.so.9", "cudnnGetVersion"),
    ("NCCL", "libnccl.so.2", "ncclGetVersion"),
]


SLOW = "it takes too long"


def said(command, seconds=20):
    """-> (whether it succeeded, the first line of its output, all output)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False, SLOW, ""
    except OSError as e:
        return False, e.strerror, ""
    text = done.stdout if done.returncode == 0 else (done.stderr or done.stdout)
    return done.returncode == 0, (text.strip().splitlines() or ["nothing"])[0 if done.returncode == 0 else -1], text


def version_of(file, function):
    """-> the version, or None and why there is none."""
    try:
        get = getattr(ctypes.CDLL(file), function)
    except (OSError, AttributeError) as e:
        return None, str(e)
    if function == "ncclGetVersion":
        number = ctypes.c_int()
        get(ctypes.byref(number))
        return number.value, ""
    get.restype = ctypes.c_size_t
    return get(), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtrain", required=True)
    parser.add_argument("--python", default="python3", help="with PyTorch")
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    missing = 0

    def tell(what, good, text):
        nonlocal missing
        missing += not good
        print(f"{'ok     ' if good else 'MISSING'} {what}: {text}", flush=True)

    good, first, _ = said(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    tell("GPU", good, first)
    good, _, text = said([args.mtrain, "--version"])
    built_with = re.search(r"cuda +runtime (\d+)", text)
    tell("mtrain", good and built_with, " ".join(text.split()) or "does not start")
    for name, file, function in LIBRARIES:
        file = file.format(cuda=built_with[1] if built_with else "13")
        version, why = version_of(file, function)
        tell(name, version is not None, why or f"{file}, version {version}")
    seconds = max(1.0, end - time.monotonic())
    good, first, _ = said([args.python, "-c", "import torch; a = torch.ones(64, 64, device='cuda'); "
                           "print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0), float((a @ a).sum()))"], seconds)
    if first == SLOW:
        print(f"slow    PyTorch: not imported within {seconds:.0f} s")
    else:
        tell("PyTorch", good, first)
    print(f"{missing} missing")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
