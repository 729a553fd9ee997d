// Saves a chart as a file: redraws the visible curves with title, axes and legend.

import { shortenName } from "./charts.js";
import { CanvasSurface, truncateText, saveFile, SvgSurface, readColours, measureText } from "./plots-surface.js";
import { createNumberScale, createTimeScale } from "./plots-scale.js";

const CHART_WIDTH = 960, CHART_HEIGHT = 440, FONT_SIZE = 13, ROW_HEIGHT = 22;

// Assigns each curve a position in the rows of the legend.
const placeLegend = (series) => {
  let x = 8, row = 0;
  return series.map((curve) => {
    const width = measureText(curve.label, FONT_SIZE) + 44;
    if (x + width > CHART_WIDTH && x > 8) { x = 8; row += 1; }
    const item = { ...curve, x, row };
    x += width;
    return item;
  });
};

const drawCurve = (surface, { values, colour, width, dash }, x, y, columns) => {
  const points = [];
  columns.forEach((column, index) => { if (typeof values[index] === "number") points.push(x(column), y(values[index])); });
  surface.drawLine(points, { stroke: colour, width, dash });
  // A line of one point is invisible.
  if (points.length === 2) surface.drawMarks("dot", [points[0]], [points[1]], 6, colour);
};

// Saves a chart: `{ name, title, x, y, time, columns, series, range, format }`. A series has `label`, `values`, `colour`, `width`
// and `dash`. `range` is the visible section, `[from, to, low, high]`.
const saveChart = (kind, { name, title, x, y, time, columns, series, range: [from, to, low, high], format }) => {
  const colours = readColours(), canvas = document.createElement("canvas"), legend = placeLegend(series);
  const legendHeight = 34 + (Math.max(0, ...legend.map(({ row }) => row)) + 1) * ROW_HEIGHT;
  const surface = kind === "svg" ? new SvgSurface(CHART_WIDTH, CHART_HEIGHT + legendHeight) : new CanvasSurface(canvas, CHART_WIDTH, CHART_HEIGHT + legendHeight, 2);
  const [left, right, top, bottom] = [92, CHART_WIDTH - 16, legendHeight + 8, CHART_HEIGHT + legendHeight - 48];
  surface.drawRect(0, 0, CHART_WIDTH, CHART_HEIGHT + legendHeight, { fill: colours.card });
  surface.drawText(truncateText(`${title} · ${document.title.split(" · ").at(-1)}`, CHART_WIDTH - 16, 16), 8, 22, { fill: colours.text, size: 16, weight: 600 });
  for (const { label, colour, x: itemX, row } of legend) {
    surface.drawLine([itemX, 44 + row * ROW_HEIGHT, itemX + 18, 44 + row * ROW_HEIGHT], { stroke: colour, width: 2.5 });
    surface.drawText(label, itemX + 24, 44 + row * ROW_HEIGHT + FONT_SIZE * 0.35, { fill: colours.text, size: FONT_SIZE });
  }
  const xScale = time ? createTimeScale(from * 1000, to * 1000) : createNumberScale(from, to, { whole: columns.every(Number.isInteger) }), yScale = createNumberScale(low, high, { format });
  const toX = (value) => left + xScale.toPosition(time ? value * 1000 : value) * (right - left), toY = (value) => bottom - yScale.toPosition(value) * (bottom - top);
  for (const [value, text] of yScale.ticks(8)) {
    surface.drawLine([left, toY(value), right, toY(value)], { stroke: colours.grid });
    surface.drawText(truncateText(text, left - 34, FONT_SIZE), left - 7, toY(value) + FONT_SIZE * 0.35, { fill: colours.quiet, size: FONT_SIZE, align: "right" });
  }
  for (const [value, text] of xScale.ticks(8)) {
    const tickX = left + xScale.toPosition(value) * (right - left);
    surface.drawLine([tickX, top, tickX, bottom], { stroke: colours.grid });
    surface.drawText(text, tickX, bottom + 18, { fill: colours.quiet, size: FONT_SIZE, align: "center" });
  }
  surface.drawText(x, (left + right) / 2, bottom + 38, { fill: colours.quiet, size: FONT_SIZE, align: "center" });
  surface.drawText(shortenName(y), 18, (top + bottom) / 2, { fill: colours.quiet, size: FONT_SIZE, align: "center", turned: true });
  surface.clip(left, top, right - left, bottom - top, () => { for (const curve of series) drawCurve(surface, curve, toX, toY, columns); });
  surface.drawLine([left, top, left, bottom, right, bottom], { stroke: colours.line });
  const fileName = `${document.body.dataset.experiment ?? "chart"}-${name}.${kind}`;
  if (kind === "svg") saveFile(new Blob([surface.toString()], { type: "image/svg+xml" }), fileName);
  else canvas.toBlob((blob) => saveFile(blob, fileName), "image/png");
};

export { saveChart };
