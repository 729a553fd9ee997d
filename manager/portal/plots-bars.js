// Horizontal bars with a name each: the importance of parameters, and failures by cause. The page has the same data as a table.

import { tame } from "./charts.js";
import { kinds, numbers } from "./plots-scale.js";

// The height of a row, in pixels at the default font size.
const ROW = 30;

// `rows` are the bars, `{ name, value, words, address }`, from top to bottom. `words` is the value as text.
const bars = (rows, { label, written, colour, hint, empty }) => {
  if (rows.length === 0) return { panels: [], empty };
  const x = numbers(0, Math.max(...rows.map(({ value }) => value)) * 1.08, { written }), y = kinds(rows.map(({ name }) => name).reverse());
  const middle = (at) => (rows.length - at - 0.5) / rows.length;
  const place = (box, at) => { const tall = (box.py(0) - box.py(1)) / rows.length * 0.66; return [box.px(0), box.py(middle(at)) - tall / 2, Math.max(1, box.px(x.part(rows[at].value)) - box.px(0)), tall]; };
  const paint = (surface, box, colours) => rows.forEach((_, at) => surface.rect(...place(box, at), { fill: colours[colour] }));
  const panel = {
    x, y, labels: [label, ""], paint,
    xs: Float64Array.from(rows, ({ value }) => x.part(value)), ys: Float64Array.from(rows, (_, at) => middle(at)),
    point: (surface, box, colours, at) => surface.rect(...place(box, at), { stroke: colours.text, width: 2 }),
    hit: (box, px, py) => { const at = Math.floor((box.py(1) - py) / (box.py(1) - box.py(0)) * rows.length); return rows[at] ? at : null; },
    tell: (at) => [tame(rows[at].name), rows[at].words],
    address: (at) => rows[at].address ?? null,
  };
  return { panels: [panel], hint, high: (_, one) => (rows.length * ROW + 80) * one };
};

// Reads bars from a table of the page: a name, then a meter or a number.
const rowsOf = (rows) => [...rows].map((row) => {
  const words = row.cells[row.cells.length - 1].textContent, meter = row.querySelector("meter");
  return { name: row.cells[0].textContent, value: meter ? meter.value : Number(words), words, address: row.querySelector("a")?.href };
});

export { bars, rowsOf };
