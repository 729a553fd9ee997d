// Parallel coordinates: an axis for each parameter and one for the result, and a line for each trial. Better trials have stronger
// colours. Users select ranges on the axes with a pointer or by keyboard.

import { high, note, scale as enlarged, short, tame } from "./charts.js";
import { axisOf, parameterNames } from "./points.js";
import { Lines } from "./parallel-lines.js";
import { DataTable } from "./plots-frame.js";
import { trialAddress, trialTable, trialTold } from "./plots-kinds.js";
import { CanvasSurface, SvgSurface, cut, ramp, save, theme, widthOf } from "./plots-surface.js";
import { numbers, parameter, spread } from "./plots-scale.js";

// The maximum number of axes, the minimum distance between them, and the maximum width of a name, in pixels at the default font size.
const AXES = 40, ROOM = 96, NAME_ROOM = 240;
// The distance between the names of two options, in pixels at the default font size, and the maximum number of options that are all named.
const OPTION_ROOM = 18, NAMED_OPTIONS = 100;

// Creates an axis, which maps values to positions from 0 to 1 and back.
const axis = (name, column, scale) => {
  const last = scale.options ? scale.options.length - 1 : 0;
  // Options are spread from end to end. A single option is in the middle.
  const part = scale.options ? (value) => { const at = scale.place(value); return last < 1 ? at + 0.5 : at / last; } : scale.part;
  const where = (value) => { const at = value === null || value === undefined ? NaN : part(value); return Number.isFinite(at) ? at : null; };
  const value = (at) => scale.options ? scale.options[Math.round(at * last)] : scale.value(at);
  const written = (at) => scale.options ? scale.names[Math.round(at * last)] : short(scale.value(at));
  const step = !scale.options ? 0.02 : last < 1 ? 1 : 1 / last;
  // Every option, or both ends and the ticks that fit between them.
  const ticks = (most) => {
    if (scale.options) return scale.ticks(Math.max(most, NAMED_OPTIONS)).map(([option, words]) => [part(option), words]);
    const inner = scale.ticks(most).map(([number, words]) => [scale.part(number), words]).filter(([at]) => at > 0.04 && at < 0.96);
    return [[0, short(scale.low)], ...inner, [1, short(scale.high)]];
  };
  return { name, column, where, value, at: written, step, ticks, log: scale.log, options: scale.options };
};

// Creates the axes of the visible trials: the parameters, the objectives that are not selected, and the result.
const axesOf = (points, values, rows, title, others) => {
  const names = parameterNames(points).filter((name) => rows.some((at) => points.parameters[name][at] !== null));
  const shown = names.slice(0, AXES);
  const axes = shown.map((name) => axis(name, points.parameters[name], parameter(rows.map((at) => points.parameters[name][at]), axisOf(points, name))));
  const measured = (metric, column) => {
    const [low, high] = spread(rows.map((at) => column[at]).filter((value) => value !== null)) ?? [0, 1];
    axes.push({ ...axis(names.includes(metric) ? `${metric} (result)` : metric, column, numbers(low, high)), metric });
    return [low, high];
  };
  for (const other of others) measured(other.name, other.values);
  const [low, high] = measured(title, values);
  axes.at(-1).isResult = others.length === 0;
  // If all results are equal, the scale has values above and below that no trial has. The only result is in the middle.
  if (low === high) Object.assign(axes.at(-1), { where: (value) => value === null ? null : 0.5 });
  return { axes, left: names.length - shown.length };
};

// Writes ranges for an address, `lr=0.001..0.1`, and for the filter of the table, `lr >= 0.001 and lr <= 0.1`.
const precise = (value) => Number(value.toPrecision(6));
// The reserved words of the filter.
const TAKEN = /^(number|id|state|cause|duration|final|latest|step|and|or|not|true|false|null)$/i;
const isPlain = (name) => /^[A-Za-z_][\w.]*$/.test(name);
const escaped = (name) => `\`${name.replace(/[\\`]/g, "\\$&")}\``;
const quoted = (name) => isPlain(name) && !TAKEN.test(name) ? name : escaped(`parameters.${name}`);
const quotedMetric = (name) => isPlain(name) ? `metrics.${name}` : escaped(`metrics.${name}`);
const identifier = (axis) => axis.isResult ? "final" : axis.metric !== undefined ? quotedMetric(axis.metric) : quoted(axis.name);
const literal = (option) => JSON.stringify(Array.isArray(option) ? JSON.stringify(option) : option);
const inAddress = (axes, ranges) => {
  const chosen = axes.filter(({ name }) => ranges.has(name));
  const ends = (axis) => ranges.get(axis.name).map((part) => axis.options ? axis.at(part) : precise(axis.value(part)));
  const words = new URLSearchParams(chosen.map((axis) => [axis.name, ends(axis).join("..")])).toString();
  const conditions = chosen.flatMap((axis) => {
    const [low, high] = ranges.get(axis.name), name = identifier(axis);
    if (axis.options) {
      const within = axis.options.filter((option) => { const at = axis.where(option); return at >= low - 1e-6 && at <= high + 1e-6; });
      const each = within.map((option) => `${name} == ${literal(option)}`);
      return each.length === 0 ? [] : [each.length > 1 ? `(${each.join(" or ")})` : each[0]];
    }
    return [...low > 0 ? [`${name} >= ${precise(axis.value(low))}`] : [], ...high < 1 ? [`${name} <= ${precise(axis.value(high))}`] : []];
  });
  return { hash: words, filter: conditions.join(" and ") };
};
const fromAddress = (axes, ranges, words) => {
  for (const axis of axes) {
    const ends = (Object.hasOwn(words, axis.name) ? words[axis.name] : undefined)?.split("..");
    if (ends?.length !== 2) continue;
    const parts = ends.map((end) => axis.options ? axis.where(axis.options.find((option) => axis.at(axis.where(option)) === end) ?? null) : axis.where(Number(end)));
    if (parts.some((part) => part === null || Number.isNaN(part))) continue;
    const [low, high] = parts.map((part) => Math.min(1, Math.max(0, part))).sort((a, b) => a - b);
    if (low > 0 || high < 1) ranges.set(axis.name, [low, high]);
  }
};

// The selectable lines and the table of each figure.
const marks = new WeakMap();

// Draws the figure. `points` are the trials in columns, and `ranges` the selected range of each axis. `better` is the direction of the
// objective, `title` its name, and `values` are the results. `others` are the other objectives. `pending` are ranges from an address. `again` redraws the figure after a
// change of `ranges`. Returns the selection, for an address and for the table.
const parallel = (figure, points, ranges, { better, title, values = points.final, others = [], pending = {}, heading = "Parameters and results" }, again) => {
  if (!figure) return null;
  const rows = points.id.map((_, at) => at).filter((at) => values[at] !== null);
  if (rows.length === 0) { figure.replaceChildren(note("Nothing to show yet: no trial has succeeded with a numeric result.")); figure.dataset.drawn = 0; return null; }
  const began = performance.now();
  const { axes, left } = axesOf(points, values, rows, title, others);
  fromAddress(axes, ranges, pending);
  const result = axes.at(-1);
  const good = (at) => { const part = result.where(values[at]); return better === "minimize" ? 1 - part : part; };
  const chosen = (at) => axes.every((axis) => {
    const range = ranges.get(axis.name);
    if (!range) return true;
    const part = axis.where(axis.column[at]);
    return part !== null && part >= range[0] - 1e-6 && part <= range[1] + 1e-6;
  });
  const lines = rows.map((at) => ({ row: at, good: good(at), within: chosen(at), parts: axes.map((axis) => axis.where(axis.column[at])) })).sort((a, b) => a.good - b.good);
  const inside = lines.filter(({ within }) => within).length;
  const board = figure.querySelector(".board") ?? newBoard(figure, heading);
  const objective = { name: title, values };
  const model = { axes, lines, ranges, better, tell: (at) => trialTold(points, objective, at), address: (at) => trialAddress(points, at) };
  const place = laid(model, board.parentNode.clientWidth);
  const canvas = board.firstChild;
  canvas.style.width = `${place.width}px`; canvas.style.height = `${place.height}px`;
  painted(new CanvasSurface(canvas, place.width, place.height, devicePixelRatio || 1), model, place, theme());
  const { selectable, table } = marks.get(board);
  selectable.set(model, place);
  // The table lists the trials within the ranges, the best first.
  table.make = () => trialTable(points, objective, lines.filter(({ within }) => within).map(({ row }) => row).reverse());
  table.fill();
  const slide = board.parentNode;
  figure.querySelector(".sideways").hidden = slide.scrollWidth <= slide.clientWidth + 1;
  figure.querySelector(".files").onclick = ({ target }) => { if (target.dataset.kind) download(target.dataset.kind, model, heading); };
  figure.querySelector(".slide + .hint").textContent = `${inside} of ${rows.length} trials are within the ranges.${left ? ` ${left} more parameters are not shown.` : ""}`;
  ends(board, axes, ranges, (column, part) => [place.x(column), place.y(part)], `${inside} of ${rows.length} trials`, again);
  const part = (event) => Math.min(1, Math.max(0, (place.height - place.bottom - (event.clientY - canvas.getBoundingClientRect().top)) / (place.height - place.top - place.bottom)));
  grips(board.lastChild, axes.map((_, column) => place.x(column)), (column, event) => {
    const start = part(event);
    return (end) => {
      const stop = part(end);
      if (Math.abs(stop - start) < 0.02) ranges.delete(axes[column].name);
      else ranges.set(axes[column].name, [Math.min(start, stop), Math.max(start, stop)]);
      again();
    };
  });
  figure.dataset.drawn = rows.length;
  performance.measure("plot parallel", { start: began });
  return inAddress(axes, ranges);
};

// Splits a long name into two lines.
const inLines = (name, size) => {
  if (widthOf(name, size) <= NAME_ROOM / 2) return [name];
  const middle = name.length / 2;
  const breaks = [...name].map((letter, at) => at).filter((at) => /[._\-\s/]/.test(name[at]));
  const at = breaks.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle))[0];
  return at === undefined || at < 2 ? [name] : [name.slice(0, at + 1), name.slice(at + 1)];
};

// Computes the layout. The picture is at least `least` wide, and wider if the names need it.
const laid = ({ axes }, least) => {
  const one = enlarged(), size = 13 * one;
  const [side, top, bottom] = [60 * one, 84 * one, 30 * one];
  const names = axes.map((axis) => inLines(`${tame(axis.name)}${axis.log ? " (log)" : ""}`, size).map((line) => cut(line, NAME_ROOM * one, size)));
  const widths = names.map((lines) => Math.max(...lines.map((line) => widthOf(line, size, 600))) + 16 * one);
  const labels = axes.map((axis) => Math.max(...axis.ticks(8).map(([, words]) => Math.min(110 * one, widthOf(words, size)))) + 20 * one);
  const room = Math.max(ROOM * one, ...labels, ...widths.map((width, at) => at ? (width + widths[at - 1]) / 2 : 0));
  const first = Math.max(side, widths[0] / 2), end = Math.max(side, widths.at(-1) / 2, labels.at(-1));
  const width = Math.ceil(Math.max(300, first + end + (axes.length - 1) * room, least));
  // The picture grows with the axis of the most options.
  const options = Math.min(NAMED_OPTIONS, Math.max(0, ...axes.map((axis) => axis.options?.length ?? 0)));
  const height = Math.max(380 * one, high(width), top + bottom + (options - 1) * OPTION_ROOM * one);
  const x = (at) => first + (width - first - end) * (axes.length < 2 ? 0 : at / (axes.length - 1));
  const y = (part) => height - bottom - part * (height - top - bottom);
  const each = axes.length < 2 ? width : x(1) - x(0);
  return { one, size, top, bottom, names, width, height, x, y, each };
};

const painted = (surface, { axes, lines, ranges }, { one, size, top, bottom, names, height, x, y, each }, colours) => {
  const { colours: steps, step } = ramp(colours);
  // Many lines are drawn faintly, so that they remain distinguishable.
  const faint = Math.max(0.03, Math.min(0.9, 120 / lines.length));
  for (const { good, within, parts } of lines) {
    const style = { stroke: steps[step(good)], width: within && good > 0.9 ? 1.8 : 1.1, alpha: within ? Math.min(1, faint * (0.5 + 2 * good ** 3)) : 0.03 };
    const path = [], passing = [];
    let last = null;
    parts.forEach((part, column) => {
      if (part === null || Number.isNaN(part)) return;
      const here = [x(column), y(part)];
      if (last && last.column < column - 1) { passing.push(...last.here, ...here, NaN, NaN); path.push(NaN, NaN); }
      path.push(...here);
      last = { column, here };
    });
    surface.line(path, style);
    // The line is dotted across axes whose parameter the trial does not have.
    if (passing.length) surface.line(passing, { ...style, dash: [2, 4] });
  }
  axes.forEach((axis, column) => {
    const at = x(column), own = names[column];
    surface.line([at, top, at, height - bottom], { stroke: colours.quiet });
    own.forEach((line, row) => surface.text(line, at, top - (own.length - 1 - row) * 17 * one - 16 * one, { fill: colours.text, size, align: "center", weight: 600 }));
    for (const [part, words] of axis.ticks(Math.floor((height - top - bottom) / (30 * one)))) {
      const text = cut(words, each - 18 * one, size), place = y(part);
      surface.line([at - 4 * one, place, at, place], { stroke: colours.quiet });
      surface.rect(at + 4 * one, place - size * 0.62, widthOf(text, size) + 6 * one, size * 1.24, { fill: colours.card, alpha: 0.85 });
      surface.text(text, at + 7 * one, place + size * 0.36, { fill: colours.text, size });
    }
    const range = ranges.get(axis.name);
    if (range) surface.rect(at - 5 * one, y(range[1]), 10 * one, Math.max(3, y(range[0]) - y(range[1])), { fill: colours.accent, alpha: 0.85 });
  });
  const wide = 96 * one / steps.length, from = 4 * one + widthOf("worst", size) + 8 * one;
  surface.text("worst", 4 * one, 14 * one, { fill: colours.quiet, size });
  steps.forEach((colour, at) => surface.rect(from + at * wide, 4 * one, wide + 0.5, 12 * one, { fill: colour }));
  surface.text("best result", from + 104 * one, 14 * one, { fill: colours.quiet, size });
};

const download = (kind, model, heading) => {
  const place = laid(model, 1000), colours = theme(), canvas = document.createElement("canvas"), head = 34;
  const surface = kind === "svg" ? new SvgSurface(place.width, place.height + head) : new CanvasSurface(canvas, place.width, place.height + head, 2);
  surface.rect(0, 0, place.width, place.height + head, { fill: colours.card });
  painted(surface, model, place, colours);
  surface.text(`${heading} · ${document.title.split(" · ").at(-1)}`, 8, place.height + 20, { fill: colours.text, size: 16, weight: 600 });
  const name = `${document.body.dataset.experiment ?? "plot"}-parallel.${kind}`;
  if (kind === "svg") save(new Blob([surface.toString()], { type: "image/svg+xml" }), name);
  else canvas.toBlob((blob) => save(blob, name), "image/png");
};

// Places a strip along each axis that the pointer can drag on. The strips survive a redraw during a drag. `taken` is called when the
// pointer goes down, and returns the function to call when it goes up. A touch that becomes scrolling calls nothing more.
const grips = (strips, places, taken) => {
  while (strips.children.length > places.length) strips.lastChild.remove();
  while (strips.children.length < places.length) strips.append(document.createElement("div"));
  for (const [column, strip] of [...strips.children].entries()) {
    strip.style.left = `${places[column]}px`;
    strip.onpointerdown = (event) => {
      const done = taken(column, event);
      strip.setPointerCapture(event.pointerId);
      const over = () => { strip.onpointerup = strip.onpointercancel = null; };
      strip.onpointerup = (end) => { over(); done(end); };
      strip.onpointercancel = over;
    };
  }
};

const newBoard = (figure, heading) => {
  const board = document.createElement("div"), slide = document.createElement("div");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  board.className = "board";
  const strips = document.createElement("div");
  strips.className = "grips";
  const selectable = new Lines(heading), table = new DataTable(heading, () => null);
  marks.set(board, { selectable, table });
  board.append(canvas, selectable.host, selectable.tip, strips);
  slide.className = "slide";
  slide.append(board);
  const files = document.createElement("div"), sideways = document.createElement("p");
  files.className = "plot-bar";
  files.innerHTML = '<span class="files"><button type="button" class="second small" data-kind="png" aria-label="Parallel coordinates as PNG">PNG</button><button type="button" class="second small" data-kind="svg" aria-label="Parallel coordinates as SVG">SVG</button></span>';
  sideways.className = "sideways";
  sideways.textContent = "More axes to the right: scroll sideways →";
  figure.replaceChildren(files, sideways, slide, note(""), table.details);
  // Screen readers ignore the content of an image, but read the content of a group.
  figure.setAttribute("role", "group");
  return board;
};

// Creates a slider for both ends of every axis. It replaces dragging for the keyboard, and screen readers read its value. A focused
// slider keeps the focus when other axes appear or disappear.
const ends = (board, scales, ranges, place, count, again) => {
  const known = new Map([...board.querySelectorAll("[role=slider]")].map((end) => [end.getAttribute("aria-label"), end]));
  let before = board.firstChild;
  for (const [column, scale] of scales.entries()) for (const [which, word] of ["at least", "at most"].entries()) {
    const label = `${tame(scale.name)}, ${word}`;
    const end = known.get(label) ?? newEnd(label);
    known.delete(label);
    if (before.nextSibling !== end) before.after(end);
    before = end;
    const range = ranges.get(scale.name) ?? [0, 1];
    const [left, top] = place(column, range[which]);
    end.style.left = `${left}px`; end.style.top = `${top}px`;
    end.setAttribute("aria-valuenow", Math.round(100 * range[which]));
    end.setAttribute("aria-valuetext", `${scale.at(range[which])}; ${count}`);
    end.onkeydown = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const far = Math.max(scale.step, 0.1);
      const moves = { ArrowUp: scale.step, ArrowRight: scale.step, ArrowDown: -scale.step, ArrowLeft: -scale.step, PageUp: far, PageDown: -far, Home: -1, End: 1 };
      const next = [...range];
      if (event.key in moves) {
        const [low, high] = which ? [range[0], 1] : [0, range[1]];
        next[which] = Math.min(high, Math.max(low, Math.round((range[which] + moves[event.key]) * 1e6) / 1e6));
      } else if (["Escape", "Delete", "Backspace"].includes(event.key)) next.splice(0, 2, 0, 1);
      else return;
      event.preventDefault();
      if (next[0] === 0 && next[1] === 1) ranges.delete(scale.name); else ranges.set(scale.name, next);
      again();
    };
  }
  for (const gone of known.values()) gone.remove();
};
const newEnd = (label) => {
  const end = document.createElement("div");
  const told = { role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": label, "aria-describedby": "parallel-keys" };
  for (const [name, value] of Object.entries(told)) end.setAttribute(name, value);
  return end;
};

export { parallel };
