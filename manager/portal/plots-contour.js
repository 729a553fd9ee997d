// The result by two parameters: the trials as points over an interpolated field.

import { tame } from "./charts.js";
import { axisOf, parameterNames } from "./points.js";
import { ramp } from "./plots-surface.js";
import { parameter, roomy, spread } from "./plots-scale.js";
import { NOTHING, sizeFor, trialAddress, trialTable, trialTold } from "./plots-kinds.js";

// The cells of the field along a numeric axis, the reach of a trial's influence in cells, and the number of colours.
const CELLS = 72, REACH = 4.5, BANDS = 12;

// Smooths a grid along one axis, in place.
const blur = (grid, columns, rows, along) => {
  const reach = Math.ceil(3 * REACH);
  const weights = Array.from({ length: reach + 1 }, (_, at) => Math.exp(-0.5 * (at / REACH) ** 2));
  const [count, length, step, jump] = along === "x" ? [rows, columns, 1, columns] : [columns, rows, columns, 1];
  const line = new Float64Array(length);
  for (let one = 0; one < count; one += 1) {
    for (let at = 0; at < length; at += 1) line[at] = grid[one * jump + at * step];
    for (let at = 0; at < length; at += 1) {
      let sum = 0;
      for (let by = -reach; by <= reach; by += 1) { const from = at + by; if (from >= 0 && from < length) sum += line[from] * weights[Math.abs(by)]; }
      grid[one * jump + at * step] = sum;
    }
  }
};

// Computes the field: the Nadaraya-Watson estimate with a Gaussian kernel over the results in each cell. `null` means that no trial
// is near.
const field = (xs, ys, parts, columns, rows, smoothX, smoothY) => {
  const sums = new Float64Array(columns * rows), weights = new Float64Array(columns * rows);
  for (let at = 0; at < xs.length; at += 1) {
    const column = Math.min(columns - 1, Math.max(0, Math.floor(xs[at] * columns))), row = Math.min(rows - 1, Math.max(0, Math.floor(ys[at] * rows)));
    sums[row * columns + column] += parts[at];
    weights[row * columns + column] += 1;
  }
  for (const grid of [sums, weights]) { if (smoothX) blur(grid, columns, rows, "x"); if (smoothY) blur(grid, columns, rows, "y"); }
  return Array.from(sums, (sum, at) => weights[at] > 0.02 ? sum / weights[at] : null);
};

const contour = (points, objective, { a, b }) => {
  const names = parameterNames(points);
  const rows = points.id.map((_, at) => at).filter((at) => objective.values[at] !== null && points.parameters[a]?.[at] !== null && points.parameters[b]?.[at] !== null);
  if (names.length < 2 || !points.parameters[a] || !points.parameters[b]) return { panels: [], empty: "This plot needs two parameters, and trials that have both." };
  if (rows.length === 0) return { panels: [], empty: NOTHING };
  const scale = (name) => roomy(parameter(rows.map((at) => points.parameters[name][at]), axisOf(points, name)), 0.03);
  const [x, y] = [scale(a), scale(b)];
  const xs = Float64Array.from(rows, (at) => x.part(points.parameters[a][at])), ys = Float64Array.from(rows, (at) => y.part(points.parameters[b][at]));
  // Colours follow ranks, so that an outlier does not compress the range of colours.
  const sorted = rows.map((at) => objective.values[at]).sort((one, other) => objective.better(one, other) ? 1 : -1);
  const rank = new Map();
  sorted.forEach((value, at) => { if (!rank.has(value)) rank.set(value, sorted.length > 1 ? at / (sorted.length - 1) : 1); });
  const parts = rows.map((at) => rank.get(objective.values[at]));
  const [columns, lines] = [x.options?.length ?? CELLS, y.options?.length ?? CELLS];
  const cells = field(xs, ys, parts, columns, lines, !x.options, !y.options);
  const [least, most] = spread(cells.filter((value) => value !== null)) ?? [0, 1];
  const band = (value) => Math.min(BANDS - 1, Math.floor((value - least) / (most - least || 1) * BANDS));
  const aside = (scale, at, seed) => scale.options ? ((points.sequence[rows[at]] * seed) % 1 - 0.5) * 0.5 / scale.options.length : 0;
  for (let at = 0; at < rows.length; at += 1) { xs[at] += aside(x, at, 0.618034); ys[at] += aside(y, at, 0.754878); }
  const paint = (surface, box, colours) => {
    const { colours: steps, step } = ramp(colours, BANDS);
    for (let row = 0; row < lines; row += 1) {
      const top = box.py((row + 1) / lines), bottom = box.py(row / lines);
      // Adjacent cells of the same colour become one rectangle.
      for (let column = 0; column < columns;) {
        const value = cells[row * columns + column];
        let end = column + 1;
        const same = value === null ? () => cells[row * columns + end] === null : () => cells[row * columns + end] !== null && band(cells[row * columns + end]) === band(value);
        while (end < columns && same()) end += 1;
        if (value !== null) surface.rect(box.px(column / columns), top, box.px(end / columns) - box.px(column / columns) + 0.6, bottom - top + 0.6, { fill: steps[band(value)] });
        column = end;
      }
    }
    const size = Math.max(4, sizeFor(rows.length, 1));
    const buckets = steps.map(() => [[], []]);
    parts.forEach((part, at) => { const [px, py] = buckets[step(part)]; px.push(box.px(xs[at])); py.push(box.py(ys[at])); });
    const dark = rows.length <= 1500;
    buckets.forEach(([px, py], at) => { if (dark) surface.marks("dot", px, py, size + 2, colours.card); surface.marks("dot", px, py, size, steps[at], dark ? 1 : 0.9); });
    if (dark) buckets.forEach(([px, py]) => surface.marks("ring", px, py, size + 1, colours.quiet, 0.5));
  };
  const label = (name, scale) => `${tame(name)}${scale.log ? " (log)" : ""}`;
  return {
    panels: [{ x, y, xs, ys, labels: [label(a, x), label(b, y)], paint, tell: (mark) => trialTold(points, objective, rows[mark]), address: (mark) => trialAddress(points, rows[mark]) }],
    ramp: { low: "worst", high: "best", label: `${objective.name}, by rank` }, table: trialTable(points, objective, rows),
  };
};

export { contour, field };
