// Saves a chart as a file: redraws the visible curves with title, axes and legend.

import { named } from "./charts.js";
import { CanvasSurface, cut, save, SvgSurface, theme, widthOf } from "./plots-surface.js";
import { numbers, times } from "./plots-scale.js";

const WIDTH = 960, HEIGHT = 440, SIZE = 13, ROW = 22;

// Assigns each curve a position in the rows of the legend.
const placed = (series) => {
  let x = 8, row = 0;
  return series.map((one) => {
    const wide = widthOf(one.label, SIZE) + 44;
    if (x + wide > WIDTH && x > 8) { x = 8; row += 1; }
    const place = { ...one, x, row };
    x += wide;
    return place;
  });
};

const curve = (surface, { values, colour, width, dash }, x, y, columns) => {
  const places = [];
  columns.forEach((column, at) => { if (typeof values[at] === "number") places.push(x(column), y(values[at])); });
  surface.line(places, { stroke: colour, width, dash });
  // A line of one point is invisible.
  if (places.length === 2) surface.marks("dot", [places[0]], [places[1]], 6, colour);
};

// Saves a chart: `{ name, title, x, y, time, columns, series, range, written }`. A series has `label`, `values`, `colour`, `width`
// and `dash`. `range` is the visible section, `[from, to, low, high]`.
const saved = (kind, { name, title, x, y, time, columns, series, range: [from, to, low, high], written }) => {
  const colours = theme(), canvas = document.createElement("canvas"), items = placed(series);
  const head = 34 + (Math.max(0, ...items.map(({ row }) => row)) + 1) * ROW;
  const surface = kind === "svg" ? new SvgSurface(WIDTH, HEIGHT + head) : new CanvasSurface(canvas, WIDTH, HEIGHT + head, 2);
  const [left, right, top, bottom] = [92, WIDTH - 16, head + 8, HEIGHT + head - 48];
  surface.rect(0, 0, WIDTH, HEIGHT + head, { fill: colours.card });
  surface.text(cut(`${title} · ${document.title.split(" · ").at(-1)}`, WIDTH - 16, 16), 8, 22, { fill: colours.text, size: 16, weight: 600 });
  for (const { label, colour, x: at, row } of items) {
    surface.line([at, 44 + row * ROW, at + 18, 44 + row * ROW], { stroke: colour, width: 2.5 });
    surface.text(label, at + 24, 44 + row * ROW + SIZE * 0.35, { fill: colours.text, size: SIZE });
  }
  const across = time ? times(from * 1000, to * 1000) : numbers(from, to, { whole: columns.every(Number.isInteger) }), up = numbers(low, high, { written });
  const px = (value) => left + across.part(time ? value * 1000 : value) * (right - left), py = (value) => bottom - up.part(value) * (bottom - top);
  for (const [value, words] of up.ticks(8)) {
    surface.line([left, py(value), right, py(value)], { stroke: colours.grid });
    surface.text(cut(words, left - 34, SIZE), left - 7, py(value) + SIZE * 0.35, { fill: colours.quiet, size: SIZE, align: "right" });
  }
  for (const [value, words] of across.ticks(8)) {
    const place = left + across.part(value) * (right - left);
    surface.line([place, top, place, bottom], { stroke: colours.grid });
    surface.text(words, place, bottom + 18, { fill: colours.quiet, size: SIZE, align: "center" });
  }
  surface.text(x, (left + right) / 2, bottom + 38, { fill: colours.quiet, size: SIZE, align: "center" });
  surface.text(named(y), 18, (top + bottom) / 2, { fill: colours.quiet, size: SIZE, align: "center", turned: true });
  surface.within(left, top, right - left, bottom - top, () => { for (const one of series) curve(surface, one, px, py, columns); });
  surface.line([left, top, left, bottom, right, bottom], { stroke: colours.line });
  const file = `${document.body.dataset.experiment ?? "chart"}-${name}.${kind}`;
  if (kind === "svg") save(new Blob([surface.toString()], { type: "image/svg+xml" }), file);
  else canvas.toBlob((blob) => save(blob, file), "image/png");
};

export { saved };
