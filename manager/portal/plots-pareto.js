// A plot of two objectives that marks the trials on the Pareto front.

import { short, tame } from "./charts.js";
import { drawMarks, NOTHING, sizeFor, trialAddress, trialTold } from "./plots-kinds.js";
import { numbers, roomy, spread } from "./plots-scale.js";

// `a` and `b` are the metrics. `front` has the numbers of the trials on the front, which the server computes with all constraints and
// objectives.
const pareto = (points, objective, { a, b, front }) => {
  const [first, second] = [a, b].map((metric) => points.objectives.find((one) => one.metric === metric));
  const rows = points.id.map((_, at) => at).filter((at) => first.values[at] !== null && second.values[at] !== null);
  if (rows.length === 0) return { panels: [], empty: NOTHING };
  const scaled = ({ values }) => roomy(numbers(...spread(rows.map((at) => values[at]))), 0.06);
  const x = scaled(first), y = scaled(second), best = new Set(front);
  const xs = Float64Array.from(rows, (at) => x.part(first.values[at])), ys = Float64Array.from(rows, (at) => y.part(second.values[at]));
  const isBest = (mark) => best.has(points.sequence[rows[mark]]);
  const marks = [...rows.keys()], leading = marks.filter(isBest).sort((one, other) => xs[one] - xs[other]);
  // Between two trials on the front, the line follows the worse value of both.
  const corner = first.direction === "minimize" ? (one, other) => [xs[other], ys[one]] : (one, other) => [xs[one], ys[other]];
  const steps = leading.flatMap((mark, at) => [...at ? corner(leading[at - 1], mark) : [], xs[mark], ys[mark]]);
  const paint = (surface, box, colours) => {
    const size = sizeFor(rows.length, 1);
    drawMarks(surface, box, [{ kind: "dot", colour: colours.rampMiddle, at: marks.filter((mark) => !isBest(mark)) }], size, 0.6);
    // With more than two objectives, the front is not a line in this plane.
    if (points.objectives.length === 2) surface.line(steps.map((part, at) => at % 2 ? box.py(part) : box.px(part)), { stroke: colours.warn, width: 2 });
    drawMarks(surface, box, [{ kind: "diamond", colour: colours.warn, at: leading }], size + 3, 1);
  };
  const words = (one, at) => `${tame(one.metric)}: ${short(one.values[at], 6)}`;
  const tell = (mark) => { const [title, , ...rest] = trialTold(points, objective, rows[mark]); return [title, words(first, rows[mark]), words(second, rows[mark]), ...isBest(mark) ? ["on the Pareto front"] : [], ...rest]; };
  const order = [...leading, ...marks.filter((mark) => !isBest(mark))];
  const table = (most) => ({ head: ["Trial", tame(a), tame(b), "On the front"], rows: order.slice(0, most).map((mark) => [points.sequence[rows[mark]], short(first.values[rows[mark]], 6), short(second.values[rows[mark]], 6), isBest(mark) ? "yes" : ""]) });
  const label = (one) => `${tame(one.metric)} (${one.direction})`;
  return {
    panels: [{ x, y, xs, ys, labels: [label(first), label(second)], paint, tell, address: (mark) => trialAddress(points, rows[mark]) }],
    legend: [{ label: "Pareto front", kind: "diamond", colour: "warn" }, { label: "other trials", kind: "dot", colour: "rampMiddle" }], table,
  };
};

export { pareto };
