// The result by two parameters: the trials as points over an interpolated field.

import { sanitiseText } from "./charts.js";
import { findAxis, listParameters } from "./points.js";
import { createRamp } from "./plots-surface.js";
import { createParameterScale, padScale, findRange } from "./plots-scale.js";
import { NO_RESULT, chooseMarkSize, formatTrialAddress, createTrialTable, describeTrial } from "./plots-kinds.js";

// The cells of the field along a numeric axis, the reach of a trial's influence in cells, and the number of colours.
const CELL_COUNT = 72, KERNEL_WIDTH = 4.5, COLOUR_COUNT = 12;

// Smooths a grid along one axis, in place.
const smoothGrid = (grid, columns, rows, axis) => {
  const radius = Math.ceil(3 * KERNEL_WIDTH);
  const weights = Array.from({ length: radius + 1 }, (_, index) => Math.exp(-0.5 * (index / KERNEL_WIDTH) ** 2));
  const [count, length, cellStride, lineStride] = axis === "x" ? [rows, columns, 1, columns] : [columns, rows, columns, 1];
  const line = new Float64Array(length);
  for (let lineIndex = 0; lineIndex < count; lineIndex += 1) {
    for (let index = 0; index < length; index += 1) line[index] = grid[lineIndex * lineStride + index * cellStride];
    for (let index = 0; index < length; index += 1) {
      let sum = 0;
      for (let offset = -radius; offset <= radius; offset += 1) { const source = index + offset; if (source >= 0 && source < length) sum += line[source] * weights[Math.abs(offset)]; }
      grid[lineIndex * lineStride + index * cellStride] = sum;
    }
  }
};

// Computes the field: the Nadaraya-Watson estimate with a Gaussian kernel over the results in each cell. `null` means that no trial
// is near.
const interpolateField = (xs, ys, results, columns, rows, smoothX, smoothY) => {
  const sums = new Float64Array(columns * rows), weights = new Float64Array(columns * rows);
  for (let index = 0; index < xs.length; index += 1) {
    const column = Math.min(columns - 1, Math.max(0, Math.floor(xs[index] * columns))), row = Math.min(rows - 1, Math.max(0, Math.floor(ys[index] * rows)));
    sums[row * columns + column] += results[index];
    weights[row * columns + column] += 1;
  }
  for (const grid of [sums, weights]) { if (smoothX) smoothGrid(grid, columns, rows, "x"); if (smoothY) smoothGrid(grid, columns, rows, "y"); }
  return Array.from(sums, (sum, index) => weights[index] > 0.02 ? sum / weights[index] : null);
};

const createContour = (points, objective, { a, b }) => {
  const names = listParameters(points);
  const rows = points.id.map((_, index) => index).filter((index) => objective.values[index] !== null && points.parameters[a]?.[index] !== null && points.parameters[b]?.[index] !== null);
  if (names.length < 2 || !points.parameters[a] || !points.parameters[b]) return { panels: [], empty: "This plot needs two parameters, and trials that have both." };
  if (rows.length === 0) return { panels: [], empty: NO_RESULT };
  const createScale = (name) => padScale(createParameterScale(rows.map((index) => points.parameters[name][index]), findAxis(points, name)), 0.03);
  const [x, y] = [createScale(a), createScale(b)];
  const xs = Float64Array.from(rows, (index) => x.toPosition(points.parameters[a][index])), ys = Float64Array.from(rows, (index) => y.toPosition(points.parameters[b][index]));
  // Colours follow ranks, so that an outlier does not compress the range of colours.
  const sortedResults = rows.map((index) => objective.values[index]).sort((first, second) => objective.better(first, second) ? 1 : -1);
  const rankByResult = new Map();
  sortedResults.forEach((value, index) => { if (!rankByResult.has(value)) rankByResult.set(value, sortedResults.length > 1 ? index / (sortedResults.length - 1) : 1); });
  const results = rows.map((index) => rankByResult.get(objective.values[index]));
  const [columns, lineCount] = [x.options?.length ?? CELL_COUNT, y.options?.length ?? CELL_COUNT];
  const cells = interpolateField(xs, ys, results, columns, lineCount, !x.options, !y.options);
  const [lowest, highest] = findRange(cells.filter((value) => value !== null)) ?? [0, 1];
  const chooseBand = (value) => Math.min(COLOUR_COUNT - 1, Math.floor((value - lowest) / (highest - lowest || 1) * COLOUR_COUNT));
  const spreadSideways = (scale, index, seed) => scale.options ? ((points.sequence[rows[index]] * seed) % 1 - 0.5) * 0.5 / scale.options.length : 0;
  for (let index = 0; index < rows.length; index += 1) { xs[index] += spreadSideways(x, index, 0.618034); ys[index] += spreadSideways(y, index, 0.754878); }
  const paint = (surface, box, colours) => {
    const { colours: steps, toIndex } = createRamp(colours, COLOUR_COUNT);
    for (let row = 0; row < lineCount; row += 1) {
      const top = box.py((row + 1) / lineCount), bottom = box.py(row / lineCount);
      // Adjacent cells of the same colour become one rectangle.
      for (let column = 0; column < columns;) {
        const value = cells[row * columns + column];
        let end = column + 1;
        const continuesBand = value === null ? () => cells[row * columns + end] === null : () => cells[row * columns + end] !== null && chooseBand(cells[row * columns + end]) === chooseBand(value);
        while (end < columns && continuesBand()) end += 1;
        if (value !== null) surface.drawRect(box.px(column / columns), top, box.px(end / columns) - box.px(column / columns) + 0.6, bottom - top + 0.6, { fill: steps[chooseBand(value)] });
        column = end;
      }
    }
    const size = Math.max(4, chooseMarkSize(rows.length, 1));
    const buckets = steps.map(() => [[], []]);
    results.forEach((rank, index) => { const [px, py] = buckets[toIndex(rank)]; px.push(box.px(xs[index])); py.push(box.py(ys[index])); });
    const hasOutlines = rows.length <= 1500;
    buckets.forEach(([px, py], index) => { if (hasOutlines) surface.drawMarks("dot", px, py, size + 2, colours.card); surface.drawMarks("dot", px, py, size, steps[index], hasOutlines ? 1 : 0.9); });
    if (hasOutlines) buckets.forEach(([px, py]) => surface.drawMarks("ring", px, py, size + 1, colours.quiet, 0.5));
  };
  const formatLabel = (name, scale) => `${sanitiseText(name)}${scale.log ? " (log)" : ""}`;
  return {
    panels: [{ x, y, xs, ys, labels: [formatLabel(a, x), formatLabel(b, y)], paint, describe: (mark) => describeTrial(points, objective, rows[mark]), address: (mark) => formatTrialAddress(points, rows[mark]) }],
    ramp: { low: "worst", high: "best", label: `${objective.name}, by rank` }, table: createTrialTable(points, objective, rows),
  };
};

export { createContour };
