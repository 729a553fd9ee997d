// A plot of two objectives that marks the trials on the Pareto front.

import { formatNumber, sanitiseText } from "./charts.js";
import { drawMarks, NO_RESULT, chooseMarkSize, formatTrialAddress, describeTrial } from "./plots-kinds.js";
import { createNumberScale, padScale, findRange } from "./plots-scale.js";

// `a` and `b` are the metrics. `front` has the numbers of the trials on the front, which the server computes with all constraints and
// objectives.
const createParetoPlot = (points, objective, { a, b, front }) => {
  const [first, second] = [a, b].map((metric) => points.objectives.find((objective) => objective.metric === metric));
  const rows = points.id.map((_, row) => row).filter((row) => first.values[row] !== null && second.values[row] !== null);
  if (rows.length === 0) return { panels: [], empty: NO_RESULT };
  const createScale = ({ values }) => padScale(createNumberScale(...findRange(rows.map((row) => values[row]))), 0.06);
  const x = createScale(first), y = createScale(second), frontNumbers = new Set(front);
  const xs = Float64Array.from(rows, (row) => x.toPosition(first.values[row])), ys = Float64Array.from(rows, (row) => y.toPosition(second.values[row]));
  const isOnFront = (mark) => frontNumbers.has(points.sequence[rows[mark]]);
  const marks = [...rows.keys()], frontMarks = marks.filter(isOnFront).sort((a, b) => xs[a] - xs[b]);
  // Between two trials on the front, the line follows the worse value of both.
  const corner = first.direction === "minimize" ? (a, b) => [xs[b], ys[a]] : (a, b) => [xs[a], ys[b]];
  const steps = frontMarks.flatMap((mark, index) => [...index ? corner(frontMarks[index - 1], mark) : [], xs[mark], ys[mark]]);
  const paint = (surface, box, colours) => {
    const size = chooseMarkSize(rows.length, 1);
    drawMarks(surface, box, [{ kind: "dot", colour: colours.rampMiddle, marks: marks.filter((mark) => !isOnFront(mark)) }], size, 0.6);
    // With more than two objectives, the front is not a line in this plane.
    if (points.objectives.length === 2) surface.drawLine(steps.map((part, index) => index % 2 ? box.py(part) : box.px(part)), { stroke: colours.warn, width: 2 });
    drawMarks(surface, box, [{ kind: "diamond", colour: colours.warn, marks: frontMarks }], size + 3, 1);
  };
  const formatValue = (objective, row) => `${sanitiseText(objective.metric)}: ${formatNumber(objective.values[row], 6)}`;
  const describeMark = (mark) => { const [title, , ...details] = describeTrial(points, objective, rows[mark]); return [title, formatValue(first, rows[mark]), formatValue(second, rows[mark]), ...isOnFront(mark) ? ["on the Pareto front"] : [], ...details]; };
  const order = [...frontMarks, ...marks.filter((mark) => !isOnFront(mark))];
  const table = (maxRows) => ({ head: ["Trial", sanitiseText(a), sanitiseText(b), "On the front"], rows: order.slice(0, maxRows).map((mark) => [points.sequence[rows[mark]], formatNumber(first.values[rows[mark]], 6), formatNumber(second.values[rows[mark]], 6), isOnFront(mark) ? "yes" : ""]) });
  const formatLabel = (objective) => `${sanitiseText(objective.metric)} (${objective.direction})`;
  return {
    panels: [{ x, y, xs, ys, labels: [formatLabel(first), formatLabel(second)], paint, describe: describeMark, address: (mark) => formatTrialAddress(points, rows[mark]) }],
    legend: [{ label: "Pareto front", kind: "diamond", colour: "warn" }, { label: "other trials", kind: "dot", colour: "rampMiddle" }], table,
  };
};

export { createParetoPlot };
