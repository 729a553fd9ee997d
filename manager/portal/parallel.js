// Parallel coordinates: an axis per parameter and one for the result; a line per trial, the better the stronger its
// colour. Ranges are chosen on the axes, with a pointer or by keyboard.

import { colour, font, high, note, scale as enlarged, short, tame } from "./charts.js";

// The most axes, and the room that each has at least, in pixels at the usual size of writing.
const AXES = 40, ROOM = 92;

// An axis: where a value stands on it, from 0 to 1, and what stands there.
const axis = (name, column, rows) => {
  const values = rows.map((at) => column[at]);
  if (values.every((value) => typeof value === "number" || value === null)) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) if (value !== null) { if (value < low) low = value; if (value > high) high = value; }
    const log = low > 0 && high / low > 100;
    // Halves: the whole way from the lowest to the highest may be more than a number can be.
    const map = log ? Math.log : (value) => value / 2;
    const span = map(high) - map(low);
    // Equal values stand in the middle.
    const where = (value) => value === null ? null : span ? (map(value) - map(low)) / span : 0.5;
    const at = (part) => short(log ? Math.exp(map(low) + part * span) : low * (1 - part) + high * part);
    return { name, column, where, at, step: 0.02, low: short(low), high: short(high) };
  }
  const kinds = [...new Set(values.filter((value) => value !== null).map(String))].sort();
  const index = new Map(kinds.map((kind, at) => [kind, at]));
  const last = kinds.length - 1;
  const where = (value) => value === null ? null : last < 1 ? 0.5 : (index.get(String(value)) ?? 0) / last;
  const said = kinds.map(tame);
  return { name, column, where, at: (part) => said[Math.round(part * last)], step: last < 1 ? 1 : 1 / last, low: said[0], high: said[last] };
};

const cut = (pen, whole, room) => {
  // However long a name is: no axis has room for more.
  const text = whole.slice(0, 200);
  if (pen.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
};

// Draws all of it. `points` are the trials in columns, `ranges` what is chosen on which axis, `better` whether a small or
// a large result is, `title` what results are called; `again` draws once more after `ranges` has changed.
const parallel = (figure, points, ranges, better, title, again) => {
  if (!figure) return;
  const rows = points.id.map((_, at) => at).filter((at) => points.final[at] !== null);
  if (rows.length === 0) { figure.replaceChildren(note("Nothing to show yet: no trial has succeeded with a number.")); return; }
  const names = Object.keys(points.parameters).filter((name) => rows.some((at) => points.parameters[name][at] !== null));
  const shown = names.slice(0, AXES);
  const scales = shown.map((name) => axis(name, points.parameters[name], rows));
  const result = axis(names.includes(title) ? `${title} (result)` : title, points.final, rows);
  scales.push(result);
  const [ROW, TOP, BOTTOM, SIDE] = [17, 42, 30, 60].map((one) => one * enlarged());
  const width = Math.max(300, 2 * SIDE + (scales.length - 1) * ROOM * enlarged(), figure.clientWidth - 18);
  const HEIGHT = Math.max(340, high(width));
  const board = figure.querySelector(".board") ?? newBoard(figure);
  const canvas = board.firstChild;
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio; canvas.height = HEIGHT * ratio;
  canvas.style.width = `${width}px`; canvas.style.height = `${HEIGHT}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const x = (at) => SIDE + (width - 2 * SIDE) * (scales.length < 2 ? 0 : at / (scales.length - 1));
  const y = (part) => HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
  const good = (at) => { const part = result.where(points.final[at]); return better === "minimize" ? 1 - part : part; };
  const chosen = (at) => scales.every((scale) => {
    const range = ranges.get(scale.name);
    if (!range) return true;
    const part = scale.where(scale.column[at]);
    return part !== null && part >= range[0] - 1e-6 && part <= range[1] + 1e-6;
  });
  rows.sort((a, b) => good(a) - good(b));
  const strong = colour("accent"), weak = colour("quiet");
  // Where lines are many each is faint, or they would all be one.
  const faint = Math.min(1, Math.sqrt(200 / rows.length));
  let inside = 0;
  for (const at of rows) {
    const within = chosen(at);
    if (within) inside += 1;
    pen.globalAlpha = faint * (within ? 0.2 + 0.78 * good(at) ** 3 : 0.03);
    pen.strokeStyle = within && good(at) > 0.5 ? strong : weak;
    pen.lineWidth = within && good(at) > 0.9 ? 1.6 : 1;
    pen.beginPath();
    // Axes whose parameter a trial does not have are passed by a line of dots.
    const passing = [];
    let last = null;
    scales.forEach((scale, column) => {
      const part = scale.where(scale.column[at]);
      if (part === null || Number.isNaN(part)) return;
      const here = [x(column), y(part)];
      if (last?.column === column - 1) pen.lineTo(...here); else pen.moveTo(...here);
      if (last && last.column < column - 1) passing.push([last.here, here]);
      last = { column, here };
    });
    pen.stroke();
    if (passing.length === 0) continue;
    pen.setLineDash([2, 4]);
    pen.beginPath();
    for (const [from, to] of passing) { pen.moveTo(...from); pen.lineTo(...to); }
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.globalAlpha = 1;
  pen.font = font();
  pen.textAlign = "center";
  const room = Math.min(2 * SIDE, (width - 2 * SIDE) / Math.max(1, scales.length - 1)) - 8;
  scales.forEach((scale, column) => {
    pen.strokeStyle = colour("quiet");
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x(column), TOP); pen.lineTo(x(column), HEIGHT - BOTTOM); pen.stroke();
    pen.fillStyle = colour("text");
    pen.fillText(cut(pen, tame(scale.name), room), x(column), ROW - 1);
    pen.fillStyle = colour("quiet");
    pen.fillText(cut(pen, scale.high, room), x(column), 2 * ROW);
    pen.fillText(cut(pen, scale.low, room), x(column), HEIGHT - 10);
    const range = ranges.get(scale.name);
    if (range) {
      pen.fillStyle = colour("accent");
      pen.fillRect(x(column) - 4, y(range[1]), 8, Math.max(3, y(range[0]) - y(range[1])));
    }
  });
  const left = names.length - shown.length;
  figure.lastChild.textContent = `${inside} of ${rows.length} trials are within the ranges.${left ? ` ${left} more parameters have no axis.` : ""}`;
  ends(board, scales, ranges, (column, part) => [x(column), y(part)], `${inside} of ${rows.length} trials`, again);
  const part = (event) => Math.min(1, Math.max(0, (HEIGHT - BOTTOM - (event.clientY - canvas.getBoundingClientRect().top)) / (HEIGHT - TOP - BOTTOM)));
  grips(board.lastChild, scales.map((_, column) => x(column)), (column, event) => {
    const start = part(event);
    return (end) => {
      const stop = part(end);
      if (Math.abs(stop - start) < 0.02) ranges.delete(scales[column].name);
      else ranges.set(scales[column].name, [Math.min(start, stop), Math.max(start, stop)]);
      again();
    };
  });
};

// What is taken hold of: a strip along each axis, which stays the same whoever draws anew meanwhile. `taken` is told of a
// pointer that goes down and answers what is done where it goes up; a finger that turns out to push the chart goes nowhere.
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

const newBoard = (figure) => {
  const board = document.createElement("div"), slide = document.createElement("div");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  board.className = "board";
  const strips = document.createElement("div");
  strips.className = "grips";
  board.append(canvas, strips);
  slide.className = "slide";
  slide.append(board);
  figure.replaceChildren(slide, note(""));
  // What is inside an image is not read out; what is inside a group is.
  figure.setAttribute("role", "group");
  return board;
};

// Both ends of every axis as sliders: they do by keyboard what dragging does, and say where they stand. Whoever has the
// focus keeps it when axes come or go.
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
