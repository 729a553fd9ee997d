// Parallel coordinates: an axis for each parameter and one for the result, and a line for each trial. Better trials have stronger
// colours. Users select ranges on the axes with a pointer or by keyboard.

import { computeHeight, createHint, readFontScale, formatNumber, sanitiseText } from "./charts.js";
import { findAxis, listParameters } from "./points.js";
import { Lines } from "./parallel-lines.js";
import { DataTable } from "./plots-frame.js";
import { formatTrialAddress, createTrialTable, describeTrial } from "./plots-kinds.js";
import { CanvasSurface, SvgSurface, truncateText, createRamp, saveFile, readColours, measureText } from "./plots-surface.js";
import { createNumberScale, createParameterScale, findRange } from "./plots-scale.js";

// The maximum number of axes, the minimum distance between them, and the maximum width of a name, in pixels at the default font size.
const MAX_AXES = 40, MIN_AXIS_DISTANCE = 96, MAX_NAME_WIDTH = 240;
// The distance between the names of two options, in pixels at the default font size, and the maximum number of options that are all named.
const OPTION_HEIGHT = 18, MAX_NAMED_OPTIONS = 100;

// Creates an axis, which maps values to positions from 0 to 1 and back.
const createAxis = (name, column, scale) => {
  const lastIndex = scale.options ? scale.options.length - 1 : 0;
  // Options are spread from end to end. A single option is in the middle.
  const toScalePosition = scale.options ? (value) => { const index = scale.findIndex(value); return lastIndex < 1 ? index + 0.5 : index / lastIndex; } : scale.toPosition;
  const toPosition = (value) => { const position = value === null || value === undefined ? NaN : toScalePosition(value); return Number.isFinite(position) ? position : null; };
  const toValue = (position) => scale.options ? scale.options[Math.round(position * lastIndex)] : scale.toValue(position);
  const formatPosition = (position) => scale.options ? scale.names[Math.round(position * lastIndex)] : formatNumber(scale.toValue(position));
  const step = !scale.options ? 0.02 : lastIndex < 1 ? 1 : 1 / lastIndex;
  // Every option, or both ends and the ticks that fit between them.
  const ticks = (maxCount) => {
    if (scale.options) return scale.ticks(Math.max(maxCount, MAX_NAMED_OPTIONS)).map(([option, text]) => [toScalePosition(option), text]);
    const innerTicks = scale.ticks(maxCount).map(([number, text]) => [scale.toPosition(number), text]).filter(([position]) => position > 0.04 && position < 0.96);
    return [[0, formatNumber(scale.low)], ...innerTicks, [1, formatNumber(scale.high)]];
  };
  return { name, column, toPosition, toValue, formatPosition, step, ticks, log: scale.log, options: scale.options };
};

// Creates the axes of the visible trials: the parameters, the objectives that are not selected, and the result.
const createAxes = (points, values, rows, title, others) => {
  const names = listParameters(points).filter((name) => rows.some((row) => points.parameters[name][row] !== null));
  const shownNames = names.slice(0, MAX_AXES);
  const axes = shownNames.map((name) => createAxis(name, points.parameters[name], createParameterScale(rows.map((row) => points.parameters[name][row]), findAxis(points, name))));
  const addResultAxis = (metric, column) => {
    const [low, high] = findRange(rows.map((row) => column[row]).filter((value) => value !== null)) ?? [0, 1];
    axes.push({ ...createAxis(names.includes(metric) ? `${metric} (result)` : metric, column, createNumberScale(low, high)), metric });
    return [low, high];
  };
  for (const other of others) addResultAxis(other.name, other.values);
  const [low, high] = addResultAxis(title, values);
  axes.at(-1).isResult = others.length === 0;
  // If all results are equal, the scale has values above and below that no trial has. The only result is in the middle.
  if (low === high) Object.assign(axes.at(-1), { toPosition: (value) => value === null ? null : 0.5 });
  return { axes, left: names.length - shownNames.length };
};

// Writes ranges for an address, `lr=0.001..0.1`, and for the filter of the table, `lr >= 0.001 and lr <= 0.1`.
const roundValue = (value) => Number(value.toPrecision(6));
// The reserved words of the filter.
const RESERVED_WORDS = /^(number|id|state|cause|duration|final|latest|step|and|or|not|true|false|null)$/i;
const isPlain = (name) => /^[A-Za-z_][\w.]*$/.test(name);
const escapeName = (name) => `\`${name.replace(/[\\`]/g, "\\$&")}\``;
const quoteParameter = (name) => isPlain(name) && !RESERVED_WORDS.test(name) ? name : escapeName(`parameters.${name}`);
const quoteMetric = (name) => isPlain(name) ? `metrics.${name}` : escapeName(`metrics.${name}`);
const formatIdentifier = (axis) => axis.isResult ? "final" : axis.metric !== undefined ? quoteMetric(axis.metric) : quoteParameter(axis.name);
const formatLiteral = (option) => JSON.stringify(Array.isArray(option) ? JSON.stringify(option) : option);
const formatSelection = (axes, ranges) => {
  const selectedAxes = axes.filter(({ name }) => ranges.has(name));
  const formatEnds = (axis) => ranges.get(axis.name).map((part) => axis.options ? axis.formatPosition(part) : roundValue(axis.toValue(part)));
  const hash = new URLSearchParams(selectedAxes.map((axis) => [axis.name, formatEnds(axis).join("..")])).toString();
  const conditions = selectedAxes.flatMap((axis) => {
    const [low, high] = ranges.get(axis.name), name = formatIdentifier(axis);
    if (axis.options) {
      const optionsInRange = axis.options.filter((option) => { const position = axis.toPosition(option); return position >= low - 1e-6 && position <= high + 1e-6; });
      const alternatives = optionsInRange.map((option) => `${name} == ${formatLiteral(option)}`);
      return alternatives.length === 0 ? [] : [alternatives.length > 1 ? `(${alternatives.join(" or ")})` : alternatives[0]];
    }
    return [...low > 0 ? [`${name} >= ${roundValue(axis.toValue(low))}`] : [], ...high < 1 ? [`${name} <= ${roundValue(axis.toValue(high))}`] : []];
  });
  return { hash, filter: conditions.join(" and ") };
};
const readRanges = (axes, ranges, parameters) => {
  for (const axis of axes) {
    const ends = (Object.hasOwn(parameters, axis.name) ? parameters[axis.name] : undefined)?.split("..");
    if (ends?.length !== 2) continue;
    const parts = ends.map((end) => axis.options ? axis.toPosition(axis.options.find((option) => axis.formatPosition(axis.toPosition(option)) === end) ?? null) : axis.toPosition(Number(end)));
    if (parts.some((part) => part === null || Number.isNaN(part))) continue;
    const [low, high] = parts.map((part) => Math.min(1, Math.max(0, part))).sort((a, b) => a - b);
    if (low > 0 || high < 1) ranges.set(axis.name, [low, high]);
  }
};

// The selectable lines and the table of each figure.
const boardParts = new WeakMap();

// Draws the figure. `points` are the trials in columns, and `ranges` the selected range of each axis. `direction` is that of the
// objective, `title` its name, and `values` are the results. `others` are the other objectives. `pendingRanges` are ranges from an
// address. `redraw` redraws the figure after a change of `ranges`. Returns the selection, for an address and for the table.
const drawParallel = (figure, points, ranges, { direction, title, values = points.final, others = [], pendingRanges = {}, heading = "Parameters and results" }, redraw) => {
  if (!figure) return null;
  const rows = points.id.map((_, row) => row).filter((row) => values[row] !== null);
  if (rows.length === 0) { figure.replaceChildren(createHint("Nothing to show yet: no trial has succeeded with a numeric result.")); figure.dataset.drawn = 0; return null; }
  const startedAt = performance.now();
  const { axes, left: hiddenCount } = createAxes(points, values, rows, title, others);
  readRanges(axes, ranges, pendingRanges);
  const result = axes.at(-1);
  const rateResult = (row) => { const part = result.toPosition(values[row]); return direction === "minimize" ? 1 - part : part; };
  const isWithinRanges = (row) => axes.every((axis) => {
    const range = ranges.get(axis.name);
    if (!range) return true;
    const part = axis.toPosition(axis.column[row]);
    return part !== null && part >= range[0] - 1e-6 && part <= range[1] + 1e-6;
  });
  const lines = rows.map((row) => ({ row: row, rating: rateResult(row), within: isWithinRanges(row), parts: axes.map((axis) => axis.toPosition(axis.column[row])) })).sort((a, b) => a.rating - b.rating);
  const countInside = lines.filter(({ within }) => within).length;
  const board = figure.querySelector(".board") ?? createBoard(figure, heading);
  const objective = { name: title, values };
  const model = { axes, lines, ranges, direction, describe: (row) => describeTrial(points, objective, row), address: (row) => formatTrialAddress(points, row) };
  const layout = computeLayout(model, board.parentNode.clientWidth);
  const canvas = board.firstChild;
  canvas.style.width = `${layout.width}px`; canvas.style.height = `${layout.height}px`;
  paintLines(new CanvasSurface(canvas, layout.width, layout.height, devicePixelRatio || 1), model, layout, readColours());
  const { selectableLines, table } = boardParts.get(board);
  selectableLines.set(model, layout);
  // The table lists the trials within the ranges, the best first.
  table.make = () => createTrialTable(points, objective, lines.filter(({ within }) => within).map(({ row }) => row).reverse());
  table.fill();
  const scroller = board.parentNode;
  figure.querySelector(".sideways").hidden = scroller.scrollWidth <= scroller.clientWidth + 1;
  figure.querySelector(".files").onclick = ({ target }) => { if (target.dataset.kind) download(target.dataset.kind, model, heading); };
  figure.querySelector(".slide + .hint").textContent = `${countInside} of ${rows.length} trials are within the ranges.${hiddenCount ? ` ${hiddenCount} more parameters are not shown.` : ""}`;
  placeSliders(board, axes, ranges, (column, part) => [layout.x(column), layout.y(part)], `${countInside} of ${rows.length} trials`, redraw);
  const readPosition = (event) => Math.min(1, Math.max(0, (layout.height - layout.bottom - (event.clientY - canvas.getBoundingClientRect().top)) / (layout.height - layout.top - layout.bottom)));
  placeStrips(board.lastChild, axes.map((_, column) => layout.x(column)), (column, event) => {
    const start = readPosition(event);
    return (end) => {
      const stop = readPosition(end);
      if (Math.abs(stop - start) < 0.02) ranges.delete(axes[column].name);
      else ranges.set(axes[column].name, [Math.min(start, stop), Math.max(start, stop)]);
      redraw();
    };
  });
  figure.dataset.drawn = rows.length;
  performance.measure("plot parallel", { start: startedAt });
  return formatSelection(axes, ranges);
};

// Splits a long name into two lines.
const splitName = (name, size) => {
  if (measureText(name, size) <= MAX_NAME_WIDTH / 2) return [name];
  const middle = name.length / 2;
  const breakIndexes = [...name].map((_character, index) => index).filter((index) => /[._\-\s/]/.test(name[index]));
  const index = breakIndexes.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle))[0];
  return index === undefined || index < 2 ? [name] : [name.slice(0, index + 1), name.slice(index + 1)];
};

// Computes the layout. The picture is at least `minWidth` wide, and wider if the names need it.
const computeLayout = ({ axes }, minWidth) => {
  const fontScale = readFontScale(), size = 13 * fontScale;
  const [margin, top, bottom] = [60 * fontScale, 84 * fontScale, 30 * fontScale];
  const names = axes.map((axis) => splitName(`${sanitiseText(axis.name)}${axis.log ? " (log)" : ""}`, size).map((line) => truncateText(line, MAX_NAME_WIDTH * fontScale, size)));
  const widths = names.map((lines) => Math.max(...lines.map((line) => measureText(line, size, 600))) + 16 * fontScale);
  const labels = axes.map((axis) => Math.max(...axis.ticks(8).map(([, text]) => Math.min(110 * fontScale, measureText(text, size)))) + 20 * fontScale);
  const minDistance = Math.max(MIN_AXIS_DISTANCE * fontScale, ...labels, ...widths.map((width, index) => index ? (width + widths[index - 1]) / 2 : 0));
  const leftMargin = Math.max(margin, widths[0] / 2), rightMargin = Math.max(margin, widths.at(-1) / 2, labels.at(-1));
  const width = Math.ceil(Math.max(300, leftMargin + rightMargin + (axes.length - 1) * minDistance, minWidth));
  // The picture grows with the axis of the most options.
  const options = Math.min(MAX_NAMED_OPTIONS, Math.max(0, ...axes.map((axis) => axis.options?.length ?? 0)));
  const height = Math.max(380 * fontScale, computeHeight(width), top + bottom + (options - 1) * OPTION_HEIGHT * fontScale);
  const x = (column) => leftMargin + (width - leftMargin - rightMargin) * (axes.length < 2 ? 0 : column / (axes.length - 1));
  const y = (part) => height - bottom - part * (height - top - bottom);
  const axisDistance = axes.length < 2 ? width : x(1) - x(0);
  return { fontScale, size, top, bottom, names, width, height, x, y, axisDistance };
};

const paintLines = (surface, { axes, lines, ranges }, { fontScale, size, top, bottom, names, height, x, y, axisDistance }, colours) => {
  const { colours: steps, toIndex } = createRamp(colours);
  // Many lines are drawn faintly, so that they remain distinguishable.
  const baseAlpha = Math.max(0.03, Math.min(0.9, 120 / lines.length));
  for (const { rating, within, parts } of lines) {
    const style = { stroke: steps[toIndex(rating)], width: within && rating > 0.9 ? 1.8 : 1.1, alpha: within ? Math.min(1, baseAlpha * (0.5 + 2 * rating ** 3)) : 0.03 };
    const path = [], skippedAxes = [];
    let last = null;
    parts.forEach((part, column) => {
      if (part === null || Number.isNaN(part)) return;
      const point = [x(column), y(part)];
      if (last && last.column < column - 1) { skippedAxes.push(...last.point, ...point, NaN, NaN); path.push(NaN, NaN); }
      path.push(...point);
      last = { column, point };
    });
    surface.drawLine(path, style);
    // The line is dotted across axes whose parameter the trial does not have.
    if (skippedAxes.length) surface.drawLine(skippedAxes, { ...style, dash: [2, 4] });
  }
  axes.forEach((axis, column) => {
    const axisX = x(column), nameLines = names[column];
    surface.drawLine([axisX, top, axisX, height - bottom], { stroke: colours.quiet });
    nameLines.forEach((line, row) => surface.drawText(line, axisX, top - (nameLines.length - 1 - row) * 17 * fontScale - 16 * fontScale, { fill: colours.text, size, align: "center", weight: 600 }));
    for (const [part, words] of axis.ticks(Math.floor((height - top - bottom) / (30 * fontScale)))) {
      const label = truncateText(words, axisDistance - 18 * fontScale, size), tickY = y(part);
      surface.drawLine([axisX - 4 * fontScale, tickY, axisX, tickY], { stroke: colours.quiet });
      surface.drawRect(axisX + 4 * fontScale, tickY - size * 0.62, measureText(label, size) + 6 * fontScale, size * 1.24, { fill: colours.card, alpha: 0.85 });
      surface.drawText(label, axisX + 7 * fontScale, tickY + size * 0.36, { fill: colours.text, size });
    }
    const range = ranges.get(axis.name);
    if (range) surface.drawRect(axisX - 5 * fontScale, y(range[1]), 10 * fontScale, Math.max(3, y(range[0]) - y(range[1])), { fill: colours.accent, alpha: 0.85 });
  });
  const stepWidth = 96 * fontScale / steps.length, rampX = 4 * fontScale + measureText("worst", size) + 8 * fontScale;
  surface.drawText("worst", 4 * fontScale, 14 * fontScale, { fill: colours.quiet, size });
  steps.forEach((colour, index) => surface.drawRect(rampX + index * stepWidth, 4 * fontScale, stepWidth + 0.5, 12 * fontScale, { fill: colour }));
  surface.drawText("best result", rampX + 104 * fontScale, 14 * fontScale, { fill: colours.quiet, size });
};

const download = (kind, model, heading) => {
  const layout = computeLayout(model, 1000), colours = readColours(), canvas = document.createElement("canvas"), titleHeight = 34;
  const surface = kind === "svg" ? new SvgSurface(layout.width, layout.height + titleHeight) : new CanvasSurface(canvas, layout.width, layout.height + titleHeight, 2);
  surface.drawRect(0, 0, layout.width, layout.height + titleHeight, { fill: colours.card });
  paintLines(surface, model, layout, colours);
  surface.drawText(`${heading} · ${document.title.split(" · ").at(-1)}`, 8, layout.height + 20, { fill: colours.text, size: 16, weight: 600 });
  const name = `${document.body.dataset.experiment ?? "plot"}-parallel.${kind}`;
  if (kind === "svg") saveFile(new Blob([surface.toString()], { type: "image/svg+xml" }), name);
  else canvas.toBlob((blob) => saveFile(blob, name), "image/png");
};

// Places a strip along each axis that the pointer can drag on. The strips survive a redraw during a drag. `startDrag` is called when the
// pointer goes down, and returns the function to call when it goes up. A touch that becomes scrolling calls nothing more.
const placeStrips = (strips, positions, startDrag) => {
  while (strips.children.length > positions.length) strips.lastChild.remove();
  while (strips.children.length < positions.length) strips.append(document.createElement("div"));
  for (const [column, strip] of [...strips.children].entries()) {
    strip.style.left = `${positions[column]}px`;
    strip.onpointerdown = (event) => {
      const endDrag = startDrag(column, event);
      strip.setPointerCapture(event.pointerId);
      const removeHandlers = () => { strip.onpointerup = strip.onpointercancel = null; };
      strip.onpointerup = (end) => { removeHandlers(); endDrag(end); };
      strip.onpointercancel = removeHandlers;
    };
  }
};

const createBoard = (figure, heading) => {
  const board = document.createElement("div"), scroller = document.createElement("div");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  board.className = "board";
  const strips = document.createElement("div");
  strips.className = "grips";
  const selectableLines = new Lines(heading), table = new DataTable(heading, () => null);
  boardParts.set(board, { selectableLines, table });
  board.append(canvas, selectableLines.host, selectableLines.tip, strips);
  scroller.className = "slide";
  scroller.append(board);
  const files = document.createElement("div"), scrollHint = document.createElement("p");
  files.className = "plot-bar";
  files.innerHTML = '<span class="files"><button type="button" class="second small" data-kind="png" aria-label="Parallel coordinates as PNG">PNG</button><button type="button" class="second small" data-kind="svg" aria-label="Parallel coordinates as SVG">SVG</button></span>';
  scrollHint.className = "sideways";
  scrollHint.textContent = "More axes to the right: scroll sideways →";
  figure.replaceChildren(files, scrollHint, scroller, createHint(""), table.details);
  // Screen readers ignore the content of an image, but read the content of a group.
  figure.setAttribute("role", "group");
  return board;
};

// Creates a slider for both ends of every axis. It replaces dragging for the keyboard, and screen readers read its value. A focused
// slider keeps the focus when other axes appear or disappear.
const placeSliders = (board, axes, ranges, layout, summary, redraw) => {
  const knownSliders = new Map([...board.querySelectorAll("[role=slider]")].map((slider) => [slider.getAttribute("aria-label"), slider]));
  let previousSlider = board.firstChild;
  for (const [column, axis] of axes.entries()) for (const [endIndex, endName] of ["at least", "at most"].entries()) {
    const label = `${sanitiseText(axis.name)}, ${endName}`;
    const slider = knownSliders.get(label) ?? createSlider(label);
    knownSliders.delete(label);
    if (previousSlider.nextSibling !== slider) previousSlider.after(slider);
    previousSlider = slider;
    const range = ranges.get(axis.name) ?? [0, 1];
    const [left, top] = layout(column, range[endIndex]);
    slider.style.left = `${left}px`; slider.style.top = `${top}px`;
    slider.setAttribute("aria-valuenow", Math.round(100 * range[endIndex]));
    slider.setAttribute("aria-valuetext", `${axis.formatPosition(range[endIndex])}; ${summary}`);
    slider.onkeydown = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const largeStep = Math.max(axis.step, 0.1);
      const steps = { ArrowUp: axis.step, ArrowRight: axis.step, ArrowDown: -axis.step, ArrowLeft: -axis.step, PageUp: largeStep, PageDown: -largeStep, Home: -1, End: 1 };
      const newRange = [...range];
      if (event.key in steps) {
        const [low, high] = endIndex ? [range[0], 1] : [0, range[1]];
        newRange[endIndex] = Math.min(high, Math.max(low, Math.round((range[endIndex] + steps[event.key]) * 1e6) / 1e6));
      } else if (["Escape", "Delete", "Backspace"].includes(event.key)) newRange.splice(0, 2, 0, 1);
      else return;
      event.preventDefault();
      if (newRange[0] === 0 && newRange[1] === 1) ranges.delete(axis.name); else ranges.set(axis.name, newRange);
      redraw();
    };
  }
  for (const unusedSlider of knownSliders.values()) unusedSlider.remove();
};
const createSlider = (label) => {
  const slider = document.createElement("div");
  const attributes = { role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": label, "aria-describedby": "parallel-keys" };
  for (const [name, value] of Object.entries(attributes)) slider.setAttribute(name, value);
  return slider;
};

export { drawParallel };
