// Draws curves with uPlot in the colours of the theme. This module fetches nothing and knows nothing about trials.

const readColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// A colour that is read at each draw, so that it follows the current theme.
const deferColour = (name) => () => readColour(name);
const CURVE_COLOURS = ["#2f7fd6", "#d9762b", "#3a9b5c", "#b04bb5", "#b8453e", "#5f6fd8", "#8a7a1f", "#2a9aa5"];
const chooseColour = (index) => CURVE_COLOURS[index % CURVE_COLOURS.length];
const chooseDash = (index) => [[], [8, 4], [2, 3]][Math.floor(index / CURVE_COLOURS.length) % 3];

const createHint = (text) => {
  const line = document.createElement("p");
  line.className = "hint";
  line.textContent = text;
  return line;
};

// The model of a plot whose data has not arrived.
const LOADING_MODEL = { panels: [], empty: "Loading…", loading: true };

// Removes escape sequences, control characters and direction marks, as the server does.
const sanitiseText = (text) => text.replace(/\r\n/g, "\n").replace(/\u001b\[[^\u0040-\u007e]*[\u0040-\u007e]/g, "")
  .replace(/[\u0000-\u0008\u000b-\u001f]/g, (character) => String.fromCharCode(0x2400 + character.charCodeAt(0))).replace(/\u007f/g, "\u2421")
  .replace(/[\u0080-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// Shortens a name to the space that it has in a legend.
const MAX_NAME_LENGTH = 60;
const shortenName = (text) => { const whole = sanitiseText(text).replace(/\s+/g, " "); return whole.length > MAX_NAME_LENGTH ? `${whole.slice(0, MAX_NAME_LENGTH - 1)}…` : whole; };

// The name of a metric for users. The metric of NNI's SDK has no name of its own.
const formatMetricName = (name) => name === "default" ? "result" : shortenName(name);

// Formats a number as the pages do: `digits` significant digits, and an exponent for very small or large numbers.
const formatNumber = (value, digits = 4) => {
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-4 || magnitude >= 1e7)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
};
const formatBytes = (value) => {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => Math.abs(value) >= size) ?? [1, "B"];
  return `${Number((value / size).toPrecision(3))} ${unit}`;
};
// The time zone of the browser, in which pages show moments, axes and tables.
const timeZoneName = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts().find(({ type }) => type === "timeZoneName")?.value ?? "local time";
const formatTime = (seconds) => {
  const date = new Date(seconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60e3).toISOString().slice(0, 19).replace("T", " ");
};

const VALUE_FORMATS = { number: (value) => formatNumber(value, 5), bytes: formatBytes, percent: (value) => `${formatNumber(value, 3)} %`, watts: (value) => `${formatNumber(value, 3)} W` };
// The distances between the ticks of an axis of whole numbers.
const INTEGER_TICK_STEPS = [1, 2, 5].flatMap((digit) => [...Array(19).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
// Relative differences below this are lost to rounding. Ticks at smaller distances would never reach the end of the axis.
const MIN_RELATIVE_STEP = 1e-12;
// The distances between the ticks of a time axis. Samples are at least a second apart.
const TIME_TICK_STEPS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((step) => step * 60), ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2400].map((hours) => hours * 3600)];

// The scale of the page's font size, relative to 16 pixels.
const readFontScale = () => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16 || 1;
const getFont = () => `${13 * readFontScale()}px system-ui`;

// Returns the power of ten in which the values are drawn, 0 in most cases. uPlot subtracts values, which overflows for the largest
// doubles, and has no ticks for numbers far from 1.
const findPower = (data) => {
  let magnitude = 0;
  for (const column of data.slice(1)) for (const value of column) if (Math.abs(value) > magnitude) magnitude = Math.abs(value);
  const power = Math.floor(Math.log10(magnitude));
  return Math.abs(power) < 15 || magnitude === 0 ? 0 : Math.max(-300, power);
};
const convertToUnit = (data, unit) => unit === 1 ? data : [data[0], ...data.slice(1).map((column) => column.map((value) => typeof value === "number" ? value / unit : value))];

// The visible range of values. Amounts start at 0.
const createValueRange = (kind) => (_, low, high) => {
  if (low === null || low === undefined) return [0, 1];
  if (kind !== "number") return [Math.min(0, low), Math.max(kind === "percent" ? 100 : 0, high) * 1.05 || 1];
  const magnitude = Math.max(Math.abs(low), Math.abs(high));
  return high > low && high - low < magnitude * MIN_RELATIVE_STEP ? uPlot.rangeNum(low - magnitude / 10, low + magnitude / 10, 0.1, true) : uPlot.rangeNum(low, high, 0.1, true);
};

const createAxes = (x, y, formatValue, time) => {
  const fontScale = readFontScale();
  const style = { font: getFont(), labelFont: getFont(), stroke: deferColour("quiet"), grid: { stroke: deferColour("grid"), width: 1 }, ticks: { stroke: deferColour("grid"), width: 1 } };
  const xAxis = time
    // Only the part of the time that differs between ticks.
    ? { values: (_, ticks, __, ___, step) => ticks.map((tick) => step >= 86400 ? formatTime(tick).slice(5, 10) : step >= 60 ? formatTime(tick).slice(11, 16) : formatTime(tick).slice(11)), space: 80 * fontScale, incrs: TIME_TICK_STEPS }
    : { incrs: (_, __, low, high) => INTEGER_TICK_STEPS.filter((interval) => interval > MIN_RELATIVE_STEP * Math.max(Math.abs(low), Math.abs(high))), values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) };
  return [
    { ...style, ...xAxis, label: x, labelSize: 20 * fontScale, size: 34 * fontScale },
    { ...style, label: y, labelSize: y ? 20 * fontScale : 0, size: 72 * fontScale, values: (_, ticks) => ticks.map(formatValue) },
  ];
};

const plotByFigure = new Map();
const repaintListeners = new Set();
const measureWidth = (figure) => Math.max(200, figure.clientWidth - 18);
const computeHeight = (width) => Math.round(Math.min(420, Math.max(220, width * 0.28)) * readFontScale());
const resizeObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const plot = plotByFigure.get(target)?.plot, width = measureWidth(target);
    if (plot && plot.width !== width) plot.setSize({ width, height: computeHeight(width) });
  }
});

// Lets a name in the legend show and hide its curve by keyboard, as uPlot does for the mouse.
const makeSwitchable = (plot, row, index) => {
  const name = row.querySelector("th");
  name.tabIndex = 0;
  name.setAttribute("role", "switch");
  const showState = () => name.setAttribute("aria-checked", plot.series[index].show);
  showState();
  plot.hooks.setSeries = [...plot.hooks.setSeries ?? [], showState];
  name.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    plot.setSeries(index, { show: !plot.series[index].show });
  });
};

// Creates the buttons that save a chart as shown. The module that draws the file is loaded at the first click.
const createFileButtons = (figure, series, settings) => {
  const title = figure.getAttribute("aria-label") ?? document.getElementById(figure.getAttribute("aria-labelledby"))?.textContent ?? "Chart";
  const buttons = ["PNG", "SVG"].map((kind) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "second small", textContent: kind });
    button.setAttribute("aria-label", `${title} as ${kind}`);
    button.addEventListener("click", async () => {
      const { saveChart } = await import("./charts-file.js");
      const { plot } = plotByFigure.get(figure), { x: xScale, y: yScale } = plot.scales, [columns, ...values] = plot.data;
      const curves = series.map((curve, index) => ({ label: curve.label, values: values[index], colour: typeof curve.stroke === "function" ? curve.stroke() : curve.stroke, width: curve.width, dash: curve.dash }));
      const visibleCurves = curves.filter((_, index) => plot.series[index + 1].show);
      saveChart(kind.toLowerCase(), { ...settings, name: figure.dataset.chart, title, columns, series: visibleCurves, range: [xScale.min, xScale.max, yScale.min, yScale.max] });
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
    if (!plotByFigure.has(figure)) figure.replaceChildren(createHint(empty));
    return;
  }
  const power = findPower(data), unit = Number(`1e${power}`);
  data = convertToUnit(data, unit);
  const shape = JSON.stringify([series.map((curve) => curve.label), x, y, kind, power]);
  const shown = plotByFigure.get(figure);
  if (shown && shown.shape === shape) {
    // A zoomed chart stays zoomed.
    const { plot } = shown, { min, max } = plot.scales.x, [xValues] = plot.data;
    const isZoomed = xValues.length > 1 && (min > xValues[0] || max < xValues.at(-1));
    plot.batch(() => {
      plot.setData(data);
      if (isZoomed) plot.setScale("x", { min, max });
    });
    return;
  }
  shown?.plot.destroy();
  figure.replaceChildren();
  // The value of a tick can exceed the largest double.
  const formatValue = (value) => Number.isFinite(value * unit) ? VALUE_FORMATS[kind](value * unit) : `${formatNumber(value)}e${power}`;
  const formatCursorValue = (_, value) => value === null || value === undefined ? "–" : formatValue(value);
  const width = measureWidth(figure);
  const options = {
    width, height: computeHeight(width), axes: createAxes(x, y, formatValue, time), scales: { x: { time }, y: { range: createValueRange(kind) } },
    series: [{ label: x, value: (_, value) => value === null || value === undefined ? "–" : time ? formatTime(value) : value.toLocaleString("en") },
      ...series.map((curve) => ({ value: formatCursorValue, ...curve, points: { fill: deferColour("card"), ...curve.points } }))],
    cursor: { drag: { x: true, y: false } },
    // The style sheet draws the marks of the legend, once.
    legend: { markers: { stroke: (_, index) => series[index - 1].stroke } },
  };
  const plot = new uPlot(options, data, figure);
  plotByFigure.set(figure, { shape, plot });
  resizeObserver.observe(figure);
  figure.prepend(createFileButtons(figure, series, { x, y, time, format: formatValue }));
  if (series.length > 1) plot.root.querySelectorAll(".u-series").forEach((row, index) => { if (index > 0) makeSwitchable(plot, row, index); });
};

// Calls `repaintChart` whenever the theme or the width of `figure` changes.
const redrawOnChange = (figure, repaintChart) => {
  repaintListeners.add(repaintChart);
  let width = figure.clientWidth;
  new ResizeObserver(() => { if (figure.clientWidth !== width) { width = figure.clientWidth; repaintChart(); } }).observe(figure);
};
const repaint = () => {
  for (const { plot } of plotByFigure.values()) plot.redraw(false);
  for (const repaintChart of repaintListeners) repaintChart();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
// `theme.js` sends this event when the user selects another theme.
addEventListener("theme", repaint);

// Resolves after the browser has painted. A hidden page paints nothing, so the wait is bounded, in milliseconds.
const MAX_PAINT_WAIT_MS = 200;
const waitForPaint = () => new Promise((resolve) => { setTimeout(resolve, MAX_PAINT_WAIT_MS); requestAnimationFrame(() => setTimeout(resolve)); });

// Joins curves with different x values over the union of these values.
const joinCurves = (curves) => {
  const xValues = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].sort((a, b) => a - b);
  const indexOfX = new Map(xValues.map((x, index) => [x, index]));
  return [xValues, ...curves.map((curve) => {
    const column = new Array(xValues.length).fill(undefined);
    for (const [x, value] of curve) column[indexOfX.get(x)] = value;
    return column;
  })];
};

// Accesses the browser's storage. If the browser blocks it, a setting lasts as long as the page.
const accessStorage = (access) => { try { return access(); } catch { return null; } };

export { accessStorage, LOADING_MODEL, chooseColour, chooseDash, formatMetricName, formatTime, shortenName, createHint, sanitiseText, timeZoneName, formatNumber, readFontScale, computeHeight, waitForPaint, draw, redrawOnChange, joinCurves };
