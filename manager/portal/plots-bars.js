// Horizontal bars with a name each: the importance of parameters, and failures by cause. The page has the same data as a table.

import { sanitiseText } from "./charts.js";
import { createOptionScale, createNumberScale } from "./plots-scale.js";

// The height of a row, in pixels at the default font size.
const ROW_HEIGHT = 30;

// `rows` are the bars, `{ name, value, text, address }`, from top to bottom. `text` is the value as text.
const createBars = (rows, { label, format, colour, hint, empty }) => {
  if (rows.length === 0) return { panels: [], empty };
  const x = createNumberScale(0, Math.max(...rows.map(({ value }) => value)) * 1.08, { format }), y = createOptionScale(rows.map(({ name }) => name).reverse());
  const centreOf = (index) => (rows.length - index - 0.5) / rows.length;
  const locateBar = (box, index) => { const barHeight = (box.py(0) - box.py(1)) / rows.length * 0.66; return [box.px(0), box.py(centreOf(index)) - barHeight / 2, Math.max(1, box.px(x.toPosition(rows[index].value)) - box.px(0)), barHeight]; };
  const paint = (surface, box, colours) => rows.forEach((_, index) => surface.drawRect(...locateBar(box, index), { fill: colours[colour] }));
  const panel = {
    x, y, labels: [label, ""], paint,
    xs: Float64Array.from(rows, ({ value }) => x.toPosition(value)), ys: Float64Array.from(rows, (_, index) => centreOf(index)),
    highlight: (surface, box, colours, index) => surface.drawRect(...locateBar(box, index), { stroke: colours.text, width: 2 }),
    findMark: (box, px, py) => { const index = Math.floor((box.py(1) - py) / (box.py(1) - box.py(0)) * rows.length); return rows[index] ? index : null; },
    describe: (index) => [sanitiseText(rows[index].name), rows[index].text],
    address: (index) => rows[index].address ?? null,
  };
  return { panels: [panel], hint, computeHeight: (_, fontScale) => (rows.length * ROW_HEIGHT + 80) * fontScale };
};

// Reads bars from a table of the page: a name, then a meter or a number.
const readBars = (rows) => [...rows].map((row) => {
  const text = row.cells[row.cells.length - 1].textContent, meter = row.querySelector("meter");
  return { name: row.cells[0].textContent, value: meter ? meter.value : Number(text), text, address: row.querySelector("a")?.href };
});

export { createBars, readBars };
