#!/usr/bin/env python3
"""Tests what a person sees of a run on a terminal, by comparing screens with the pictures in test/process/screens.

  test/process/screen_test.py <mtrain> <mtrain-launch> [--write]    --write makes the pictures again

Figures that differ from run to run or from machine to machine are replaced by `#`.
"""
import codecs
import concurrent.futures
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

MTRAIN, LAUNCH = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
WRITE = "--write" in sys.argv
PICTURES = pathlib.Path(__file__).resolve().parent / "screens"
WORK = pathlib.Path(tempfile.mkdtemp())
# With this number of steps, the width of no figure affects which fields fit into a line of 60 or 80 columns.
RECIPE = """
model: {num_layers: 1, hidden_size: 32, num_attention_heads: 2}
tokenizer: byte
dataset: {train: ../set, seq_length: 32}
train: {steps: 120, global_batch_size: 2, micro_batch_size: 1, threads: 1, log_every: 40, run_dir: run, device: cpu}
distributed: {strategy: ddp}
mixed_precision: fp32
"""
# A step takes a second or two on one rank, and sleeps for nine tenths of that; a slower recipe takes twice as long.
# In a run that is stopped at once a step takes several seconds, so that a fast CPU does not end it before the second
# key, which is more than a second after the first. Two ranks halve a step's work.
SLOW = ["train.steps=100000", "train.log_every=4", "dataset.seq_length=128", "train.global_batch_size=128", "debug.compute_slowdown=10"]
SLOWER = [*SLOW, "train.global_batch_size=256"]
SLOWEST = [*SLOWER, "train.log_every=1", "debug.compute_slowdown=60"]
SLOWEST_OF_TWO = [*SLOWEST, "debug.compute_slowdown=120"]


class Failure(Exception):
    pass


class Screen:
    """A terminal that scrolls for ever, and understands what mtrain sends: text, CR, LF, "clear the line", colors."""

    def __init__(self, columns):
        self.columns, self.lines, self.line, self.cursor, self.live = columns, [], "", 0, ""

    def feed(self, text):
        at = 0
        while at < len(text):
            c = text[at]
            if c == "\r":
                self.cursor = 0
            elif c == "\n":
                self.lines.append(self.line)
                self.line, self.cursor = "", 0
            elif escape := re.match(r"\x1b\[[0-9;]*([A-Za-z])", text[at:]):
                if escape[1] == "K":
                    self.line = self.line[:self.cursor]
                    self.live = self.line or self.live
                at += len(escape[0]) - 1
            else:
                if self.cursor == self.columns:
                    self.feed("\n")
                self.line = self.line[:self.cursor].ljust(self.cursor) + c + self.line[self.cursor + 1:]
                self.cursor += 1
            at += 1


def normal(lines):
    """The same lines with `#` instead of figures that differ between runs and machines."""
    text = "\n".join(lines) + "\n"
    text = re.sub(r"^  slow build .*\n(?:   +\S.*\n)*", "", text, flags=re.M)  # if the build is for an older CPU
    text = re.sub(r"^  device .*\n(?:   +\S.*\n)*", "  device      #\n", text, flags=re.M)
    # Another process took the core while the peak rate was measured: steps that exceed it have no MFU.
    text, wrong_peak = re.subn(r"^step \d+: \d+ GFLOP/s are more than the measured peak.*\n(?:  .*\n)*", "", text, flags=re.M)
    if wrong_peak:
        text = re.sub(r"(tok/s)(?=  ETA|$)", r"\1  MFU 1 %", text, flags=re.M)
    text = re.sub(r"^device: .*\n(?:\S+ measured.*\n)?", "device: #\n", text, flags=re.M)
    for what in (r"(loss) \d+\.\d+", r"(grad) \d+\.\d+", r"(MFU) [\d.]+(?= %)", r"(ETA) \d.*?(?=  |$)"):
        text = re.sub(what, r"\1 #", text, flags=re.M)
    text = re.sub(r"[\d.]+[KMG]?(?= tok/s)", "#", text)
    text = re.sub(r"\[#+\.*\]", "[bar]", text)  # takes the room that the figures leave
    text = re.sub(r"^[\d.]+K? tokens in .*\n(?:  .*\n)*", "# tokens in #\n", text, flags=re.M)
    text = re.sub(r"^(communication:) .*, (\d+ steps timed)", r"\1 #, \2", text, flags=re.M)
    text = re.sub(r"\bstep +\d+(?=/100000| ends first)", "step #", text)
    text = re.sub(r"\b(step|steps \d+ to) \d+ (is|are) lost", "steps # are lost", text)
    text = re.sub(r"step-\d{8}", "step-#", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.M)


def compare(name, text):
    path = PICTURES / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    elif text != path.read_text():
        raise Failure(f"{path} is another picture than\n{text}")


class Terminal:
    """A program in the foreground of a pseudo-terminal of so many columns."""

    def __init__(self, columns, command, name, **environment):
        folder = WORK / name
        folder.mkdir()
        self.screen, self.raw, self.decoder = Screen(columns), "", codecs.getincrementaldecoder("utf-8")()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            for variable in ("CI", "NO_COLOR", "COLUMNS"):
                os.environ.pop(variable, None)
            os.environ.update({"TERM": "xterm", "XDG_CACHE_HOME": str(WORK), **environment})
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execv(command[0], [pathlib.Path(command[0]).name, *command[1:]])

    def read(self, until=None, seconds=240.0):
        """Reads until the text has appeared, or the program has ended."""
        end, begin = time.monotonic() + seconds, len(self.raw)
        while time.monotonic() < end:
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                text = self.decoder.decode(os.read(self.master, 65536))
            except OSError:  # all have closed the terminal
                text = ""
            if not text:
                if until:
                    raise Failure(f"ended without {until!r}:\n{self.raw}")
                return
            self.raw += text
            self.screen.feed(text)
            if until and re.search(until, self.raw[begin:]):
                return
        raise Failure(f"{until or 'the end'} does not come within {seconds} s:\n{self.raw}")

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def ends(self, code):
        self.read()
        _, status = os.waitpid(self.pid, 0)
        got = os.waitstatus_to_exitcode(status)
        if got != code:
            raise Failure(f"ends with {got} instead of {code}:\n{self.raw}")
        os.close(self.master)


def train(*settings):
    return [MTRAIN, "--recipe", "../r.yaml", *settings]


def launch(*settings):
    return [LAUNCH, "--nproc_per_node=2", "--recipe", "../r.yaml", *settings]


def test_lines_of_a_run_fit_the_terminal():
    for columns in (60, 80, 200):
        terminal = Terminal(columns, train(), f"columns{columns}")
        terminal.ends(0)
        longest = max(map(len, terminal.screen.lines))
        if longest >= columns:
            raise Failure(f"a line of {longest} columns on a terminal of {columns}")
        compare(f"{columns}_columns", normal([*terminal.screen.lines, "", "the last live line:", terminal.screen.live]))


def test_no_color_means_none():
    warns = "comm_overlap.tp_comm_overlap=true"
    seen = {}
    for name, environment in (("with", {}), ("without", {"NO_COLOR": "1"})):
        terminal = Terminal(80, train(warns), f"color_{name}", **environment)
        terminal.ends(0)
        if bool(re.search(r"\x1b\[[0-9;]*m", terminal.raw)) != (name == "with"):
            raise Failure(f"NO_COLOR {environment}: {terminal.raw!r}")
        seen[name] = normal(terminal.screen.lines)
    if seen["with"] != seen["without"] or "tp_comm_overlap" not in seen["with"]:
        raise Failure(f"{seen['with']}\n{seen['without']}")


# Every command that prints to a terminal. Left out are those whose lines are data for programs: CSV, JSON, YAML, the
# script of a shell, and the text that a model writes.
PAGES = ["", "train", "data", "data build", "data bigram", "generate", "import", "import hf", "export", "export hf",
         "eval", "plan", "schedule", "timeline", "watch", "compare", "report", "schema", "explain", "completion"]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/hf"
COMMANDS = [
    *[f"mtrain {page} --help" for page in PAGES], "mtrain-launch --help", "mtrain --version",
    "mtrain shedule", "mtrain ../r.yaml --dry-rn", "mtrain eval --data x", "mtrain --recipe llama3_9b",
    "mtrain ../r.yaml optimzer.lr=1 train.stps=3 distributed.tp_size=3 learning_rate=1 train.global_batch_size=7",
    "mtrain-launch --nproc-per-nod 2 ../r.yaml",
    "mtrain-launch --monitor_interval 1 --signals_to_handle SIGTERM --nproc_per_node=3 ../r.yaml distributed.tp_size=2",
    "mtrain llama3_70b --dry-run --world-size 1024 --tp-comm-overlap", "mtrain mixtral_8x7b --dry-run",
    "mtrain qwen3_30b_a3b --dry-run", "mtrain ../r.yaml --dry-run",
    "mtrain plan --recipe llama3_8b --cluster dgx_h100 --world-size 32",
    "mtrain explain optimizer", "mtrain explain learning_rate", "mtrain explain gradient norm",
    "mtrain explain distributed.pipeline.pp_schedule", "mtrain explain optimizer.lrr", "mtrain schema", "mtrain schema --words", "mtrain schema --metrics",
    "mtrain schedule --pp 8 --micro 16 --name zero_bubble", "mtrain schedule --pp 4 --vpp 4 --micro 8 --name interleaved_1f1b",
    "mtrain schedule --moe-overlap --exchange 0.3", "mtrain schedule --pp 2 --micro 8 --actions",
    "mtrain schedule --pp 4 --vpp 2 --micro 9 --name interleaved_1f1b",
    "mtrain data build --input ../text --output set --validation-fraction 0.1",
    "mtrain data bigram --train set_train --valid set_valid", "mtrain data build --input ../r.yaml --format jsonl --output x",
    f"mtrain import hf {GOLDEN}/qwen2 --dry-run", f"mtrain import hf {GOLDEN}/gpt2 --output imported",
    "mtrain export hf imported --output exported",
    "mtrain ../r.yaml train.steps=4 comm_overlap.tp_comm_overlap=true --profile --verbose --trace t.json",
    "mtrain ../r.yaml train.steps=3", "mtrain eval --model run --data ../set",
    "mtrain timeline t.json", "mtrain timeline t.json --step 9",
    "mtrain-launch --nproc_per_node=2 ../r.yaml train.steps=4 train.run_dir=two --profile --verbose train.exit_interval=2",
    "mtrain-launch --nproc_per_node=2 --log_dir logs ../r.yaml train.steps=4 train.run_dir=three 'debug.fault={at: adamw, rank: 1, step: 2}'",
]


def printed(raw):
    """The lines that programs have printed, without what the live line has drawn and cleared."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", raw).replace("\r\n", "\n")
    return [re.sub(r".*\x1b\[K", "", re.sub(r".*\r", "", line)) for line in text.split("\n")]


def test_every_command_fits_the_terminal():
    # Some of them report mistakes; none may be missing or end by a signal.
    script = "\n".join(f'echo "@@ {command}"; {command}\n[ $? -lt 126 ] || exit 1' for command in COMMANDS)
    path = f"{pathlib.Path(MTRAIN).parent}:{pathlib.Path(LAUNCH).parent}:{os.environ['PATH']}"
    for columns in (60, 80, 200):
        colorless = {"NO_COLOR": "1"} if columns == 80 else {}
        terminal = Terminal(columns, ["/bin/sh", "-c", script], f"commands{columns}", PATH=path, **colorless)
        terminal.ends(0)
        if bool(re.search(r"\x1b\[[0-9;]*m", terminal.raw)) == bool(colorless):
            raise Failure(f"colors with {colorless}: {terminal.raw!r}")
        command, bad = "", []
        for line in printed(terminal.raw):
            if line.startswith("@@ "):
                command = line
            # A word that is too long, such as a path, stays complete.
            elif (len(line) >= columns and " " in line.strip()) or line.count("warning:") > 1:
                bad.append(f"{command}\n    {len(line)}: {line}")
        if bad:
            raise Failure(f"on {columns} columns:\n" + "\n".join(bad))


def test_streams_of_a_run_that_is_piped():
    for name, command in (("piped", train()), ("launch_piped", launch())):
        folder = WORK / name
        folder.mkdir()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
                              env={**os.environ, "XDG_CACHE_HOME": str(WORK), "COLUMNS": "80"})
        if done.returncode != 0 or done.stderr:
            raise Failure(f"exit code {done.returncode}, stderr:\n{done.stderr}")
        compare(name, normal(done.stdout.splitlines()))
        log = (folder / "run/log.txt").read_text().splitlines()
        steps = [line for line in log if line.startswith("step ")]
        if not log[0].startswith("---") or steps != [l for l in done.stdout.splitlines() if l.startswith("step ")]:
            raise Failure(f"log.txt:\n{log}")
        page = subprocess.run([MTRAIN, "schema", "--metrics"], check=True, capture_output=True, text=True).stdout
        always = set(re.findall(r"^\| `([\w.]+)` .*\| all \|$", page.split("## Records of evaluations")[0], re.M))
        records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        if len(records) != 120 or len(always) < 10 or any(always - record.keys() for record in records):
            raise Failure(f"{len(records)} records, the first is {records[0]}; the page says that all have {always}")


def test_the_live_line_stays_on_the_terminal_when_the_lines_go_to_a_file():
    for name, command in (("file", train()), ("launch_file", launch())):
        shell = ["/bin/sh", "-c", " ".join(command) + " > out"]
        terminal = Terminal(80, shell, name)
        terminal.ends(0)
        if terminal.screen.lines not in ([], [""]) or "step 120/120  [####" not in terminal.screen.live:
            raise Failure(f"on the terminal: {terminal.raw!r}")
        out = (WORK / name / "out").read_text()
        if out.count("\nstep ") != 3 or "\x1b" in out or "\r" in out:
            raise Failure(f"in the file: {out!r}")


def test_nothing_is_drawn_beside_tee():
    terminal = Terminal(80, ["/bin/sh", "-c", " ".join(train()) + " | tee log"], "tee")
    terminal.ends(0)
    if "\x1b[K" in terminal.raw or terminal.raw.replace("\r\n", "\n") != (WORK / "tee/log").read_text():
        raise Failure(f"{terminal.raw!r}")


def tail(lines, first):
    return lines[next(i for i, line in enumerate(lines) if first in line):]


def test_ctrl_c_saves_and_says_so():
    terminal = Terminal(120, train(*SLOW), "once")
    terminal.read(r"step +\d+/100000")
    time.sleep(0.3)  # until the next step is under way
    terminal.press(b"\x03")
    terminal.read("Ctrl-C: step")
    terminal.ends(0)
    compare("ctrl_c", normal(tail(terminal.screen.lines, "Ctrl-C")))


def test_ctrl_c_twice_says_what_is_lost():
    terminal = Terminal(120, train(*SLOWEST), "twice")
    terminal.read(r"step +\d+/100000")
    time.sleep(0.3)  # until the next step is under way
    terminal.press(b"\x03")
    terminal.read("Ctrl-C: step")
    time.sleep(1.1)  # within a second it would be the same request
    terminal.press(b"\x03")
    terminal.ends(130)
    compare("ctrl_c_twice", normal(tail(terminal.screen.lines, "Ctrl-C")))


def test_ctrl_c_to_a_launcher_once_and_twice():
    for name, again, code in (("launch_ctrl_c", False, 0), ("launch_ctrl_c_twice", True, 130)):
        terminal = Terminal(120, launch(*(SLOWEST_OF_TWO if again else SLOWER)), name)
        terminal.read(r"step +\d+/100000")
        time.sleep(0.3)
        terminal.press(b"\x03")
        terminal.read("Ctrl-C: step")
        if again:
            time.sleep(1.1)
            terminal.press(b"\x03")
        terminal.ends(code)
        # A fast or a slow machine may have timed a step, and then has a line about communication.
        lines = [line for line in tail(terminal.screen.lines, "Ctrl-C") if not line.startswith("communication:")]
        compare(name, normal(lines))


class Training:
    """The folder of a run that trains: with its lock, and a file of metrics that grows."""

    def __init__(self, folder):
        folder.mkdir()
        self.metrics = folder / "metrics.jsonl"
        self.step = 0
        self.lock = open(folder / ".lock", "w")
        fcntl.fcntl(self.lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    def train(self, steps):
        with open(self.metrics, "a") as file:
            for self.step in range(self.step + 1, self.step + steps + 1):
                figures = {"loss": 1 + 5 / self.step, "step_ms": 500, "tokens_per_s": 2048, "total_steps": 40}
                file.write(json.dumps({"step": self.step, **figures}) + "\n")


def test_watch_follows_a_run_and_restores_the_terminal():
    for name, keys, code in (("watch_ctrl_c", b"\x03", -2), ("watch_end", b"", 0)):
        run = Training(WORK / f"{name}_run")
        run.train(20)
        terminal = Terminal(80, [MTRAIN, "watch", f"../{name}_run"], name, LC_ALL="C.UTF-8")
        terminal.read("step 20 of 40")
        run.train(10)
        terminal.read("step 30 of 40")
        terminal.resize(61)
        terminal.read("\x1b\\[J")
        run.train(10)
        if keys:
            terminal.read("step 40 of 40")
            terminal.press(keys)
        else:
            run.lock.close()  # the run has ended
        terminal.ends(code)
        drawn, stays = terminal.raw.split("\x1b[?25h\x1b[?1049l")
        if not drawn.startswith("\x1b[?1049h\x1b[?25l"):
            raise Failure(f"{drawn[:100]!r}")
        compare(name, re.sub(r"\x1b\[[0-9;]*m|\r", "", stays))


def main():
    (WORK / "r.yaml").write_text(RECIPE)
    (WORK / "text").write_text("\n".join(map(str, range(20000))))
    subprocess.run([MTRAIN, "data", "build", "--input", f"{WORK}/text", "--output", f"{WORK}/set"], check=True,
                   stdout=subprocess.DEVNULL)
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for name, future in [(name, pool.submit(test)) for name, test in tests]:
            try:
                future.result()
            except Exception as error:
                failed += 1
                print(f"{name}: {error}\n")
    shutil.rmtree(WORK)
    print(f"{failed} of {len(tests)} tests failed" if failed else f"{len(tests)} tests passed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
