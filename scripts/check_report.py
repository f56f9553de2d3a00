#!/usr/bin/env python3
"""Opens a page of `mtrain report` in headless Chromium, and checks what it draws.

  scripts/check_report.py MTRAIN RUN... [--trace FILE] [--screenshot FILE] [--seconds S]

The page is made of the runs, and opened 400 and 1,400 pixels wide, light and dark. The console must have no error,
every chart must have pixels other than its background, the page must not be wider than the window, and the points of
the charts must be values of metrics.jsonl. Needs Chromium: apt-get install chromium.
"""
import argparse
import html
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

CHECK = """<script>
addEventListener("load", () => setTimeout(() => {
  const pixels = (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
    return count;
  };
  const seen = [...charts, ...pictures.filter((picture) => picture.canvas)].map((chart) => ({
    title: chart.canvas.getAttribute("aria-label"), pixels: pixels(chart.canvas),
    sets: (chart.data ? chart.data.datasets : []).filter((set) => set.key).map((set) => ({
      run: set.run, key: set.key, factor: set.factor, points: set.data.map((p) => [p.x, p.y]) })),
  }));
  document.body.textContent = "";
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify({ seen, wide, theme: document.documentElement.dataset.theme });
  document.body.append(out);
}, 300));
const wide = document.documentElement.scrollWidth > innerWidth;
</script>
"""


def chromium(page, width, dark, *more):
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        sys.exit("Chromium is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                   f"--window-size={width},2400", "--enable-logging=stderr", "--virtual-time-budget=4000",
                   *(["--blink-settings=preferredColorScheme=0"] if dark else []), *more, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def seconds_of(page):
    """How long Chromium is busy with a page: the least of three times."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        chromium(page, 1400, False, "--dump-dom")
        times.append(time.monotonic() - began)
    return min(times)


def metrics_of(run):
    run = pathlib.Path(run)
    found = {}
    for line in (run / "metrics.jsonl" if run.is_dir() else run).read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        for key, value in record.items():
            found[key, record["step"]] = value
    return found


def faults_of(seen, metrics):
    faults = [f"{chart['title']} is empty" for chart in seen if chart["pixels"] < 500]
    count = 0
    for chart in seen:
        for series in chart["sets"]:
            for step, value in series["points"]:
                count += 1
                expected = metrics[series["run"]].get((series["key"], step))
                if expected is not None:
                    expected *= series["factor"]
                same = value is expected or (value is not None and expected is not None
                                             and math.isclose(value, expected, rel_tol=1e-15))
                if not same:
                    faults.append(f"{series['key']} of step {step} is {value} instead of {expected}")
    return faults, count


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("mtrain")
    options.add_argument("runs", nargs="+")
    options.add_argument("--trace")
    options.add_argument("--screenshot")
    options.add_argument("--seconds", type=float, default=2, help="how long drawing may take")
    given = options.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        page, checked = pathlib.Path(work) / "r.html", pathlib.Path(work) / "checked.html"
        subprocess.run([given.mtrain, "report", *given.runs, *(["--trace", given.trace] if given.trace else []), "-o", page], check=True)
        text = page.read_text(errors="replace")
        checked.write_text(text.replace("</body>", CHECK + "</body>"))
        if page.stat().st_size > 3_000_000:
            sys.exit(f"the page has {page.stat().st_size} bytes")
        # Chromium's own time cannot be trusted here: it is virtual.
        empty = pathlib.Path(work) / "empty.html"
        empty.write_text("<!DOCTYPE html><title>empty</title>")
        drawn = seconds_of(page) - seconds_of(empty)
        if drawn > given.seconds:
            sys.exit(f"drawing takes {drawn:.2f} s")
        print(f"{page.stat().st_size} bytes, drawn in {drawn:.2f} s")
        metrics = [metrics_of(run) for run in given.runs]
        for width in (400, 1400):
            for dark in (False, True):
                result = chromium(checked, width, dark, "--dump-dom")
                found = re.search(r'<pre id="seen">(.*?)</pre>', result.stdout, re.S)
                console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
                if not found:
                    sys.exit(f"the page has not been drawn: {result.stderr[-2000:]}")
                data = json.loads(html.unescape(found[1]))
                faults, points = faults_of(data["seen"], metrics)
                faults += console
                if data["wide"]:
                    faults.append("the page is wider than the window")
                if data["theme"] != ("dark" if dark else "light"):
                    faults.append(f"the theme is {data['theme']}")
                print(f"{width} pixels, {data['theme']}: {len(data['seen'])} charts, {points} points, {len(faults)} faults")
                for fault in faults[:10]:
                    print("  ", fault)
                failed += len(faults)
        if given.screenshot:
            chromium(page, 1400, False, f"--screenshot={pathlib.Path(given.screenshot).resolve()}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
