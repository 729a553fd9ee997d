// Draws curves with uPlot in the colours of the theme. This module fetches nothing and knows nothing about trials.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// A colour that is read at each draw, so that it follows the current theme.
const tint = (name) => () => colour(name);
const STROKES = ["#2f7fd6", "#d9762b", "#3a9b5c", "#b04bb5", "#b8453e", "#5f6fd8", "#8a7a1f", "#2a9aa5"];
const stroke = (at) => STROKES[at % STROKES.length];
const dash = (at) => [[], [8, 4], [2, 3]][Math.floor(at / STROKES.length) % 3];

const note = (text) => {
  const line = document.createElement("p");
  line.className = "hint";
  line.textContent = text;
  return line;
};

// The model of a plot whose data has not arrived.
const LOADING = { panels: [], empty: "Loading…", loading: true };

// Removes escape sequences, control characters and direction marks, as the server does.
const tame = (text) => text.replace(/\r\n/g, "\n").replace(/\u001b\[[^\u0040-\u007e]*[\u0040-\u007e]/g, "")
  .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/\u007f/g, "\u2421")
  .replace(/[\u0080-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// Shortens a name to the space that it has in a legend.
const NAME = 60;
const named = (text) => { const whole = tame(text).replace(/\s+/g, " "); return whole.length > NAME ? `${whole.slice(0, NAME - 1)}…` : whole; };

// The name of a metric for users. The metric of NNI's SDK has no name of its own.
const metricNamed = (name) => name === "default" ? "result" : named(name);

// Formats a number as the pages do: `digits` significant digits, and an exponent for very small or large numbers.
const short = (value, digits = 4) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
};
const bytes = (value) => {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => Math.abs(value) >= size) ?? [1, "B"];
  return `${Number((value / size).toPrecision(3))} ${unit}`;
};
// The time zone of the browser, in which pages show moments, axes and tables.
const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts().find(({ type }) => type === "timeZoneName")?.value ?? "local time";
const moment = (seconds) => {
  const at = new Date(seconds * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60e3).toISOString().slice(0, 19).replace("T", " ");
};

const FORMATS = { number: (value) => short(value, 5), bytes, percent: (value) => `${short(value, 3)} %`, watts: (value) => `${short(value, 3)} W` };
// The distances between the ticks of an axis of whole numbers.
const WHOLE = [1, 2, 5].flatMap((one) => [...Array(19).keys()].map((power) => one * 10 ** power)).sort((a, b) => a - b);
// Relative differences below this are lost to rounding. Ticks at smaller distances would never reach the end of the axis.
const FINE = 1e-12;
// The distances between the ticks of a time axis. Samples are at least a second apart.
const SECONDS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((one) => one * 60), ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2400].map((one) => one * 3600)];

// The scale of the page's font size, relative to 16 pixels.
const scale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16 || 1;
const font = () => `${13 * scale()}px system-ui`;

// Returns the power of ten in which the values are drawn, 0 in most cases. uPlot subtracts values, which overflows for the largest
// doubles, and has no ticks for numbers far from 1.
const powerOf = (data) => {
  let size = 0;
  for (const column of data.slice(1)) for (const value of column) if (Math.abs(value) > size) size = Math.abs(value);
  const power = Math.floor(Math.log10(size));
  return Math.abs(power) < 15 || size === 0 ? 0 : Math.max(-300, power);
};
const inUnit = (data, unit) => unit === 1 ? data : [data[0], ...data.slice(1).map((column) => column.map((value) => typeof value === "number" ? value / unit : value))];

// The visible range of values. Amounts start at 0.
const heights = (kind) => (_, low, high) => {
  if (low === null || low === undefined) return [0, 1];
  if (kind !== "number") return [Math.min(0, low), Math.max(kind === "percent" ? 100 : 0, high) * 1.05 || 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  return high > low && high - low < size * FINE ? uPlot.rangeNum(low - size / 10, low + size / 10, 0.1, true) : uPlot.rangeNum(low, high, 0.1, true);
};

const axes = (x, y, told, time) => {
  const one = scale();
  const look = { font: font(), labelFont: font(), stroke: tint("quiet"), grid: { stroke: tint("grid"), width: 1 }, ticks: { stroke: tint("grid"), width: 1 } };
  const long = time
    // Only the part of the time that differs between ticks.
    ? { values: (_, marks, __, ___, step) => marks.map((mark) => step >= 86400 ? moment(mark).slice(5, 10) : step >= 60 ? moment(mark).slice(11, 16) : moment(mark).slice(11)), space: 80 * one, incrs: SECONDS }
    : { incrs: (_, __, low, high) => WHOLE.filter((one) => one > FINE * Math.max(Math.abs(low), Math.abs(high))), values: (_, marks) => marks.map((mark) => mark.toLocaleString("en")) };
  return [
    { ...look, ...long, label: x, labelSize: 20 * one, size: 34 * one },
    { ...look, label: y, labelSize: y ? 20 * one : 0, size: 72 * one, values: (_, marks) => marks.map(told) },
  ];
};

const plots = new Map();
const others = new Set();
const wide = (figure) => Math.max(200, figure.clientWidth - 18);
const high = (width) => Math.round(Math.min(420, Math.max(220, width * 0.28)) * scale());
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const plot = plots.get(target)?.plot, width = wide(target);
    if (plot && plot.width !== width) plot.setSize({ width, height: high(width) });
  }
});

// Lets a name in the legend show and hide its curve by keyboard, as uPlot does for the mouse.
const switchable = (plot, row, at) => {
  const name = row.querySelector("th");
  name.tabIndex = 0;
  name.setAttribute("role", "switch");
  const told = () => name.setAttribute("aria-checked", plot.series[at].show);
  told();
  plot.hooks.setSeries = [...plot.hooks.setSeries ?? [], told];
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    plot.setSeries(at, { show: !plot.series[at].show });
  });
};

// Creates the buttons that save a chart as shown. The module that draws the file is loaded at the first click.
const files = (figure, series, settings) => {
  const title = figure.getAttribute("aria-label") ?? document.getElementById(figure.getAttribute("aria-labelledby"))?.textContent ?? "Chart";
  const buttons = ["PNG", "SVG"].map((kind) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "second small", textContent: kind });
    button.setAttribute("aria-label", `${title} as ${kind}`);
    button.addEventListener("click", async () => {
      const { saved } = await import("./charts-file.js");
      const { plot } = plots.get(figure), { x, y } = plot.scales, [columns, ...values] = plot.data;
      const all = series.map((one, at) => ({ label: one.label, values: values[at], colour: typeof one.stroke === "function" ? one.stroke() : one.stroke, width: one.width, dash: one.dash }));
      const shown = all.filter((_, at) => plot.series[at + 1].show);
      saved(kind.toLowerCase(), { ...settings, name: figure.dataset.chart, title, columns, series: shown, range: [x.min, x.max, y.min, y.max] });
    });
    return button;
  });
  const [bar, group] = ["div", "span"].map((name) => document.createElement(name));
  bar.className = "plot-bar";
  group.className = "files";
  group.append(...buttons);
  bar.append(group);
  return bar;
};

// Draws curves into a figure, or updates the curves that it shows. `data` has uPlot's form: x values, then a column for each curve.
// `kind` is the format of the values.
const draw = (figure, series, data, { x, y = "", kind = "number", time = false, empty = "Nothing to show yet." }) => {
  if (!figure) return;
  if (!data[0] || data[0].length < (time ? 2 : 1)) {
    if (!plots.has(figure)) figure.replaceChildren(note(empty));
    return;
  }
  const power = powerOf(data), unit = Number(`1e${power}`);
  data = inUnit(data, unit);
  const shape = JSON.stringify([series.map((one) => one.label), x, y, kind, power]);
  const known = plots.get(figure);
  if (known && known.shape === shape) {
    // A zoomed chart stays zoomed.
    const { plot } = known, { min, max } = plot.scales.x, [places] = plot.data;
    const part = places.length > 1 && (min > places[0] || max < places.at(-1));
    plot.batch(() => {
      plot.setData(data);
      if (part) plot.setScale("x", { min, max });
    });
    return;
  }
  known?.plot.destroy();
  figure.replaceChildren();
  // The value of a tick can exceed the largest double.
  const written = (value) => Number.isFinite(value * unit) ? FORMATS[kind](value * unit) : `${short(value)}e${power}`;
  const told = (_, value) => value === null || value === undefined ? "–" : written(value);
  const width = wide(figure);
  const options = {
    width, height: high(width), axes: axes(x, y, written, time), scales: { x: { time }, y: { range: heights(kind) } },
    series: [{ label: x, value: (_, value) => value === null || value === undefined ? "–" : time ? moment(value) : value.toLocaleString("en") },
      ...series.map((one) => ({ value: told, ...one, points: { fill: tint("card"), ...one.points } }))],
    cursor: { drag: { x: true, y: false } },
    // The style sheet draws the marks of the legend, once.
    legend: { markers: { stroke: (_, at) => series[at - 1].stroke } },
  };
  const plot = new uPlot(options, data, figure);
  plots.set(figure, { shape, plot });
  sizes.observe(figure);
  figure.prepend(files(figure, series, { x, y, time, written }));
  if (series.length > 1) plot.root.querySelectorAll(".u-series").forEach((row, at) => { if (at > 0) switchable(plot, row, at); });
};

// Calls `work` whenever the theme or the width of `figure` changes.
const redrawn = (figure, work) => {
  others.add(work);
  let width = figure.clientWidth;
  new ResizeObserver(() => { if (figure.clientWidth !== width) { width = figure.clientWidth; work(); } }).observe(figure);
};
const repaint = () => {
  for (const { plot } of plots.values()) plot.redraw(false);
  for (const work of others) work();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
// `theme.js` sends this event when the user selects another theme.
addEventListener("theme", repaint);

// Resolves after the browser has painted. A hidden page paints nothing, so the wait is bounded, in milliseconds.
const HIDDEN = 200;
const painted = () => new Promise((done) => { setTimeout(done, HIDDEN); requestAnimationFrame(() => setTimeout(done)); });

// Joins curves with different x values over the union of these values.
const join = (curves) => {
  const places = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].sort((a, b) => a - b);
  const at = new Map(places.map((place, index) => [place, index]));
  return [places, ...curves.map((curve) => {
    const column = new Array(places.length).fill(undefined);
    for (const [place, value] of curve) column[at.get(place)] = value;
    return column;
  })];
};

// Accesses the browser's storage. If the browser blocks it, a setting lasts as long as the page.
const kept = (work) => { try { return work(); } catch { return null; } };

export { kept, LOADING, stroke, dash, metricNamed, moment, named, note, tame, zone, short, font, scale, high, painted, draw, redrawn, join };
