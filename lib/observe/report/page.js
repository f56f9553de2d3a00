"use strict";
// Draws the report from the JSON of the element `data`. Texts of runs are set as text, never as
// HTML: names and settings may come from anywhere.
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const several = runs.length > 1;
const charts = [];
const pictures = [];  // with lanes
const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3], [12, 4], [4, 4]];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const color = (i) => css("--c" + (i % 6));

function element(tag, parent, text = "", type = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (type) made.className = type;
  if (parent) parent.append(made);
  return made;
}

// The points of a series. Steps are stored as differences.
function points(series, factor = 1) {
  let step = 0;
  return series.x.map((dx, i) => {
    step += dx;
    return { x: step, y: series.y[i] === null ? null : series.y[i] * factor };
  });
}

function line(run, key, options = {}) {
  const series = runs[run].series[key];
  if (!series) return [];
  const { label = key, hue = run, dash = 0, dots = 0, factor = 1, step = false } = options;
  return [{
    label: several ? `${runs[run].name}: ${label}` : label,
    data: points(series, factor), hue, borderDash: dashes[dash % dashes.length], stepped: step,
    borderWidth: 1.5, pointRadius: dots || (series.x.length === 1 ? 3 : 0), pointHitRadius: 6,
    run, key, factor,
  }];
}

const each = (make) => runs.flatMap((run, i) => make(i, run));

// Marks the steps at which a run was started again.
const restarts = {
  id: "restarts",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales } = chart;
    if (!scales.x || scales.x.type !== "linear") return;
    ctx.save();
    ctx.setLineDash([3, 4]);
    ctx.globalAlpha = 0.7;
    runs.forEach((run, i) => run.starts.slice(1).forEach((start) => {
      const x = scales.x.getPixelForValue(start.step);
      if (x < area.left || x > area.right) return;
      ctx.strokeStyle = color(i);
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
    }));
    ctx.restore();
  },
};

function dye(sets) {
  for (const set of sets) set.borderColor = set.backgroundColor = color(set.hue);
}

function paint(chart) {
  const ink = css("--faint"), grid = css("--line");
  dye(chart.data.datasets);
  for (const axis of Object.values(chart.options.scales)) {
    axis.ticks.color = axis.title.color = ink;
    axis.grid.color = axis.grid.borderColor = grid;
  }
  chart.options.plugins.legend.labels.color = css("--ink");
  chart.update("none");
}

const value = (v) => (v === null || v === undefined ? "NaN" : Number(v.toPrecision(7)).toString());

// What a chart leaves out, as a text below it.
function gaps(sets) {
  return sets.filter((set) => set.key && runs[set.run].series[set.key].nan > 0).map((set) => {
    const series = runs[set.run].series[set.key];
    return `${set.label}: ${series.nan} of ${series.count} values are not finite`;
  }).join("; ");
}

function draw(title, unit, sets, options = {}) {
  if (sets.length === 0) return;
  const card = element("section", document.getElementById("charts"));
  element("h2", card, title);
  const plot = element("div", card, "", "plot");
  const canvas = element("canvas", plot);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", title);
  const axis = (text, more = {}) => ({
    title: { display: text !== "", text }, ticks: { maxRotation: 0 }, grid: {}, ...more,
  });
  dye(sets);  // bars keep the color that they have first
  const chart = new Chart(canvas, {
    type: options.bars ? "bar" : "line",
    data: { datasets: sets, labels: options.labels },
    plugins: options.bars ? [] : [restarts],
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, parsing: !!options.bars,
      normalized: true,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: options.bars ? axis(options.axis || "rank") : axis("step", { type: "linear" }),
        y: axis(unit, { type: "linear", beginAtZero: !!options.zero }),
      },
      plugins: {
        legend: { labels: { boxWidth: 14, boxHeight: 2 } },
        tooltip: {
          callbacks: { label: (item) => `${item.dataset.label}: ${value(item.parsed.y)}` },
        },
      },
    },
  });
  charts.push(chart);
  paint(chart);
  const lost = gaps(sets);
  if (lost) element("p", card, lost, "note");
  if (options.note) element("p", card, options.note, "note");
  if (options.logarithm) {
    const label = element("label", card, "", "note");
    const box = element("input", label);
    box.type = "checkbox";
    label.append(" logarithmic");
    box.onchange = () => {
      chart.options.scales.y.type = box.checked ? "logarithmic" : "linear";
      paint(chart);
    };
  }
}

// Draws lanes with time from left to right. A lane has letters of equal parts, or boxes.
function drawLanes(lanes) {
  const card = element("section", document.getElementById("lanes"));
  element("h2", card, lanes.title);
  if (lanes.lanes.length === 0) {
    element("p", card, lanes.note, "note");
    return;
  }
  const plot = element("div", card);
  const canvas = element("canvas", plot);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", lanes.title);
  const row = 20, below = 22;
  const height = lanes.lanes.length * row + below;
  canvas.style.height = `${height}px`;
  canvas.style.width = "100%";
  // The first six signs of the legend have a color each, and later ones its lighter shades. Waits
  // are as faint as the lines of charts.
  const signs = lanes.legend.map(([sign]) => sign).filter((sign) => sign !== "-");
  const place = (sign) => Math.max(0, signs.indexOf(sign));
  const shade = (sign) => (sign === "-" ? css("--line") : color(place(sign)));
  const strength = (sign) => (sign === "-" ? 1 : 0.55 ** Math.floor(place(sign) / 6));
  function paintLanes() {
    const width = plot.clientWidth, ratio = devicePixelRatio || 1;
    if (width === 0) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    const names = lanes.lanes.map((lane) => ctx.measureText(lane.name).width);
    const left = Math.min(Math.max(...names) + 8, width / 3), span = width - left - 2;
    lanes.lanes.forEach((lane, i) => {
      const top = i * row + 2, tall = row - 4;
      ctx.fillStyle = css("--ink");
      ctx.fillText(lane.name, 0, top + tall / 2, left - 6);
      const size = span / Math.max(1, lane.cells.length);
      for (let from = 0, to = 0; from < lane.cells.length; from = to) {
        while (to < lane.cells.length && lane.cells[to] === lane.cells[from]) to += 1;
        if (lane.cells[from] === ".") continue;
        const thin = lane.cells[from] === "-" ? tall / 3 : 0;
        ctx.fillStyle = shade(lane.cells[from]);
        ctx.globalAlpha = strength(lane.cells[from]);
        ctx.fillRect(left + from * size, top + thin, (to - from) * size, tall - 2 * thin);
      }
      ctx.globalAlpha = 1;
      for (const [begin, end, kind, text] of lane.boxes) {
        const x = left + (begin / lanes.ms) * span;
        const wide = Math.max(0.5, ((end - begin) / lanes.ms) * span);
        ctx.fillStyle = shade(kind);
        ctx.fillRect(x, top, wide > 3 ? wide - 1 : wide, tall);
        if (ctx.measureText(text).width + 4 > wide) continue;
        ctx.fillStyle = css("--paper");
        ctx.fillText(text, x + 2, top + tall / 2);
      }
    });
    ctx.fillStyle = css("--faint");
    ctx.fillText("0", left, height - below / 2);
    const last = `${value(Number(lanes.ms.toPrecision(4)))} ms`;
    ctx.fillText(last, width - ctx.measureText(last).width, height - below / 2);
  }
  pictures.push({ canvas, paint: paintLanes, lanes });
  const legend = element("p", card, "", "note");
  const swatches = lanes.legend.map(([sign, meaning]) => {
    const item = element("span", legend);
    const swatch = element("span", item, "", "swatch");
    item.append(`${meaning}  `);
    item.style.marginRight = "12px";
    return [swatch, sign];
  });
  pictures.push({
    canvas: null,
    paint: () => swatches.forEach(([swatch, sign]) => {
      swatch.style.background = shade(sign);
      swatch.style.opacity = strength(sign);
    }),
  });
  if (lanes.note) element("p", card, lanes.note, "note");
  new ResizeObserver(paintLanes).observe(plot);
  pictures.slice(-2).forEach((picture) => picture.paint());
}

function kinds(run, suffix) {
  const found = Object.keys(runs[run].series).filter((key) => key.startsWith("comm.") &&
    key.endsWith(suffix) && key.split(".").length === 3);
  return found.sort();
}

const lines = (keys, more = {}) => each((i) => keys.flatMap(([key, label], j) =>
  line(i, key, { label, hue: several ? i : j, dash: several ? j : 0, ...more })));

function drawCharts() {
  const GiB = 1 / 2 ** 30;
  draw("Loss", "nats per token", each((i) => [
    ...line(i, "loss", { label: "training" }),
    ...line(i, "validation_loss", { label: "validation", hue: several ? i : 1, dash: 1, dots: 3 }),
  ]), { logarithm: true });
  draw("Throughput", "tokens/s", each((i) => line(i, "tokens_per_s")), { zero: true });
  draw("Gradient norm", "", each((i) => line(i, "grad_norm")), { logarithm: true });
  draw("Learning rate", "", each((i) => line(i, "lr")));
  const names = [...new Set(runs.flatMap((run, i) => kinds(i, ".exposed_ms")))].sort();
  draw("Exposed communication by kind", "ms per step", each((i) => [
    ...kinds(i, ".exposed_ms").flatMap((key) => line(i, key,
      { label: key.split(".")[1], hue: names.indexOf(key), dash: i })),
    ...line(i, "compute.starved_ms", { label: "starved", hue: names.length, dash: i }),
  ]), { zero: true, note: "time in which compute waited, on rank 0" });
  draw("Memory against plan", "GiB", lines([
    ["memory_peak.max", "most of a rank"], ["memory_peak", "rank 0"],
    ["memory_peak.activations", "activations of rank 0"],
    ["memory_peak.buffers", "buffers of rank 0"], ["memory_planned", "planned"],
  ], { factor: GiB, step: true }), { zero: true });
  draw("Step times", "ms", lines([
    ["step_ms", "step of rank 0"], ["step_ms.max", "longest step of a rank"],
    ["compute.busy_ms", "computation of rank 0"],
    ["compute.busy_ms.max", "longest computation of a rank"],
  ]), { zero: true });
  const ranks = [...new Set(runs.flatMap((run) => run.slowest.map((s) => s.rank)))]
    .sort((a, b) => a - b);
  draw("Which rank computes longest", "timed steps", each((i, run) => run.slowest.length === 0 ? []
    : [{
      label: several ? run.name : "timed steps", hue: i,
      data: ranks.map((rank) => (run.slowest.find((s) => s.rank === rank) || { steps: 0 }).steps),
    }]), { bars: true, labels: ranks.map(String), zero: true });
  for (const bars of data.bars)
    draw(bars.title, bars.unit, bars.sets.map((set, i) => ({
      label: set.name, hue: i, data: set.values,
    })), { bars: true, labels: bars.labels, zero: true, axis: bars.axis, note: bars.note });
  draw("Loads of experts", "over the mean", lines([
    ["moe.load_max", "largest of an expert"], ["moe.load_cv", "standard deviation"],
    ["moe.rank_load_max", "largest of a rank"],
  ]), { zero: true });
  draw("Choices that experts drop", "part", lines([["moe.dropped", "dropped"]]), { zero: true });
}

function table(title, head, rows, note = "") {
  if (rows.length === 0 && !note) return;
  const card = element("section", document.getElementById("tables"), "", "wide");
  element("h2", card, title);
  if (note) element("p", card, note, "note");
  if (rows.length === 0) return;
  const made = element("table", card);
  const top = element("tr", element("thead", made));
  for (const cell of head) element("th", top, cell);
  const body = element("tbody", made);
  for (const row of rows) {
    const tr = element("tr", body);
    for (const cell of row) {
      if (cell instanceof Node) element("td", tr).append(cell);
      else element("td", tr, String(cell));
    }
  }
}

function named(i) {
  const cell = element("span");
  element("span", cell, "", "swatch").style.background = `var(--c${i % 6})`;
  cell.append(runs[i].name);
  return cell;
}

const utc = (seconds) => (seconds === null ? "unknown"
  : new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC");

function drawTables() {
  const last = (run, key) => (run.last[key] === undefined ? "" : value(run.last[key]));
  table("Runs", ["run", "step", "of", "loss", "validation loss", "tokens/s", "notes"],
    runs.map((run, i) => [named(i), run.last_step || "", run.total_steps || "", last(run, "loss"),
      last(run, "validation_loss"), last(run, "tokens_per_s"), run.notes.join("; ")]));
  table("Starts", ["run", "first step", "at", "lost since the step before"],
    each((i, run) => (run.starts.length < 2 ? [] : run.starts.map((start) =>
      [named(i), start.step, utc(start.time),
        start.gap_s === null ? "" : `${Number(start.gap_s.toPrecision(3))} s`]))));
  if (several)
    table("Settings that differ", ["setting", ...runs.map((run) => run.name)],
      data.settings.map((row) => [row.setting, ...row.values]), data.settings_note);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(to) {
  document.documentElement.dataset.theme = to;
  charts.forEach(paint);
  pictures.forEach((picture) => picture.paint());
}
theme(dark.matches ? "dark" : "light");
dark.onchange = () => theme(dark.matches ? "dark" : "light");
document.getElementById("theme").onclick = () =>
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
Chart.defaults.font.family = "system-ui, sans-serif";
drawTables();
drawCharts();
data.lanes.forEach(drawLanes);
