"""Prints a table of CUDA kernels from what cuobjdump -res-usage and -sass print, and checks it.

scripts/check_sass.sh calls this file:  sass_table.py <architecture> <dump> [--all]
Exits with 1 if a kernel that is not in MAY_SPILL uses the stack or local memory, or if a kernel of
TENSOR_CORES has no instruction of a tensor core. The same holds if a kernel that may start early
(kernels/cuda/device/dependent_launch.h) accesses global memory before its wait. Each kernel of
CUTLASS must have the instruction that HOPPER names for it.
"""
import pathlib
import re
import subprocess
import sys
from collections import defaultdict

# Kernels that may use the stack, on which architecture ("" for all of them), and why.
MAY_SPILL = {
    ("", "random: fill_normal"): "sin and cos of doubles reduce large arguments in an array",
    ("", "attention_plain: forward"): "the loop that stores its sums is too long to be unrolled",
    ("sm_100a", "grouped_matmul: rows_in_tensor_cores"):
        "8 bytes, for two blocks of a multiprocessor instead of one",
    ("sm_120a", "norm: backward"): "8 bytes; no ready build is for these GPUs",
}

# Kernels that must multiply in tensor cores, if the dump has them.
TENSOR_CORES = [
    "rows_in_tensor_cores",
    "weights_in_tensor_cores",
    "float8_rows",
    "float8_weights",
    "attention_tensor: forward",
    "attention_tensor_backward: backward_of_keys",
    "attention_tensor_backward: backward_of_queries",
]

# Kernels that must multiply by these instructions, which read their operands from shared memory.
HOPPER = {
    "cutlass: bf16 rows": "HGMMA",
    "cutlass: bf16 rows, plain B": "HGMMA",
    "cutlass: bf16 weights": "HGMMA",
    "cutlass: e4m3 rows": "QGMMA",
    "cutlass: e5m2 rows": "QGMMA",
    "cutlass: e4m3 weights": "QGMMA",
    "cutlass: e5m2 weights": "QGMMA",
}

INSTRUCTIONS = {"HMMA": r"\bHMMA\.", "HGMMA": r"\bHGMMA\.", "QGMMA": r"\bQGMMA\.",
                "STL": r"\bSTL\b"}
INSTRUCTION_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/")
# The wait for the previous kernel, and accesses to global memory. Loads of parameters are LDC.
WAIT = re.compile(r"\bACQBULK\b")
GLOBAL = re.compile(r"\b(?:LDG?|STG?|ATOMG?|REDG?|LDGSTS|UBLK\w+|UTMA\w+)(?:\.|\s)")
MATCHERS = {name: re.compile(pattern) for name, pattern in INSTRUCTIONS.items()}


class Kernel:
    def __init__(self, symbol):
        self.symbol = symbol
        self.figures = {"REG": 0, "STACK": 0, "SHARED": 0, "LOCAL": 0}
        self.counts = dict.fromkeys(INSTRUCTIONS, 0)
        self.waits, self.early = False, 0  # accesses to global memory before the wait

    def memory(self):  # bytes of a thread's stack and local memory
        return self.figures["STACK"] + self.figures["LOCAL"]


def read(dump):
    """Returns the kernels of a dump by symbol."""
    kernels = {}
    usage, code = None, None
    for line in dump:
        if match := re.match(r"\s*Function (\S+):$", line):
            usage = kernels.setdefault(match[1], Kernel(match[1]))
        elif match := re.match(r"\s*Function : (\S+)", line):
            code = kernels.setdefault(match[1], Kernel(match[1]))
        elif usage and "REG:" in line:
            for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line):
                usage.figures[name] = int(value)
            usage = None
        elif code and INSTRUCTION_LINE.match(line):
            for name, matcher in MATCHERS.items():
                code.counts[name] += bool(matcher.search(line))
            code.waits = code.waits or bool(WAIT.search(line))
            code.early += not code.waits and bool(GLOBAL.search(line))
    return list(kernels.values())


def cutlass_kind(symbol):
    """Returns a short name of a grouped GEMM of CUTLASS; its own has a thousand letters."""
    mma = re.search(r"CollectiveMma.*?(?:bfloat16|float_(e[45]m[23]))_tEP", symbol)
    if not mma:
        return "?"
    rows = re.search(r"LinearCombinationIffff", symbol) is None
    # B (N, K) has contiguous N: the second operand's Major is 1 (MN), and the first one's is 0 (K).
    plain = re.search(r"MajorE0ELS[0-9A-Z]*_1E", symbol)
    return f"{mma[1] or 'bf16'} {'rows' if rows else 'weights'}" + (", plain B" if plain else "")


def demangle(kernels):
    """Sets the source, the name and the template arguments of each kernel."""
    text = subprocess.run(["c++filt"], input="\n".join(k.symbol for k in kernels), text=True,
                          capture_output=True, check=True).stdout.split("\n")
    for kernel, name in zip(kernels, text):
        if kernel.symbol.startswith("_ZN7cutlass13device_kernel"):
            kernel.source, kernel.name = "cutlass", cutlass_kind(kernel.symbol)
            kernel.arguments = ""
            continue
        # nvcc puts the file's name into the name of its unnamed namespace.
        file = re.search(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_", kernel.symbol)
        kernel.source = file[1] if file else "?"
        name = name.replace("(anonymous namespace)::", "")
        name = re.sub(r"mtrain::(kernels::(cuda::)?)?", "", name)
        name = re.sub(r"^void ", "", name)
        head, _, rest = name.partition("<")
        if "(" in head:
            head, rest = head.split("(")[0], ""
        depth, arguments = 1, ""
        for c in rest:
            depth += (c == "<") - (c == ">")
            if depth == 0:
                break
            arguments += c
        kernel.name, kernel.arguments = head.strip(), arguments


def print_table(rows):
    head = ["kernel", "instances", "registers", "stack B", "shared B", "HMMA", "HGMMA", "QGMMA"]
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def span(values):
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}-{max(values)}"


def launched_early():
    """Returns the kernels that MT_LAUNCH_DEPENDENT launches, as "source: name"."""
    sources = (pathlib.Path(__file__).resolve().parent.parent / "kernels/cuda").glob("*.cu")
    return {f"{source.stem}: {name}" for source in sources
            for name in re.findall(r"MT_LAUNCH_DEPENDENT\(\s*\(?(\w+)", source.read_text("utf-8"))}


def faults_of(kernels, arch):
    """Returns what is wrong with each kernel."""
    faults, early = [], launched_early() if int(re.sub(r"\D", "", arch)) >= 90 else set()
    for k in kernels:
        full = f"{k.source}: {k.name}"
        may_spill = ("", full) in MAY_SPILL or (arch, full) in MAY_SPILL
        if k.memory() > 0 and not may_spill:
            faults.append(f"{full}<{k.arguments}> has {k.memory()} bytes of stack, and "
                          f"{k.counts['STL']} stores to it")
        promised = any(full == t or k.name == t for t in TENSOR_CORES)
        if promised and k.counts["HMMA"] + k.counts["HGMMA"] + k.counts["QGMMA"] == 0:
            faults.append(f"{full}<{k.arguments}> has no instruction of a tensor core")
        if full in early and not k.waits:
            faults.append(f"{full}<{k.arguments}> may start early, and does not wait")
        if k.waits and k.early > 0:
            faults.append(f"{full}<{k.arguments}> accesses global memory {k.early} times before it waits")
        if k.source == "cutlass" and (full not in HOPPER or k.counts[HOPPER[full]] == 0):
            faults.append(f"{full} has no {HOPPER.get(full, 'place in HOPPER')}")
    return faults


def main():
    arch, dump, every = sys.argv[1], sys.argv[2], "--all" in sys.argv[3:]
    with open(dump, encoding="utf-8", errors="replace") as lines:
        kernels = read(lines)
    if not kernels:
        sys.exit(f"the dump has no kernels for {arch}")
    demangle(kernels)
    groups = defaultdict(list)
    for k in kernels:
        title = f"{k.source}: {k.name}" + (f"<{k.arguments}>" if every and k.arguments else "")
        groups[title].append(k)
    rows = []
    for title in sorted(groups):
        of = groups[title]
        rows.append([f"`{title}`", len(of), span([k.figures["REG"] for k in of]),
                     max(k.memory() for k in of), max(k.figures["SHARED"] for k in of),
                     *(span([k.counts[i] for k in of]) for i in ("HMMA", "HGMMA", "QGMMA"))])
    print_table(rows)
    faults = faults_of(kernels, arch)
    for fault in faults:
        print(f"{arch}: {fault}", file=sys.stderr)
    print(f"{arch}: {len(kernels)} kernels, {len(faults)} faults", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
