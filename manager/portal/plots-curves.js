// Curves over steps: the intermediate results of many trials, with a panel for each metric.

import { LOADING, metricNamed, short, tame } from "./charts.js";
import { ramp } from "./plots-surface.js";
import { numbers, roomy, spread } from "./plots-scale.js";
import { trialAddress, trialTold } from "./plots-kinds.js";

// A debiased exponential moving average, like TensorBoard's smoothing.
const smoothed = (values, weight) => {
  if (weight === 0) return values;
  let mean = 0, sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value;
    sum = sum * weight + (1 - weight);
    return mean / sum;
  });
};
// Returns the best value up to each position.
const bestSoFar = (values, better) => {
  let best = null;
  return values.map((value) => {
    if (value !== null && (best === null || better(value, best))) best = value;
    return best;
  });
};
const NOT_POSITIVE = "A logarithmic axis needs values above 0.";

// A panel with a curve for each line, `{ steps, raw, tell, address }`, in the order in which they are drawn. `better` compares two values
// of the metric; without it, the metric has no direction and no best value. `looks` returns the look of each line in the theme's colours.
const curvePanel = (name, lines, looks, { smoothing = 0, best = false, log = false, logX = false, better = null, title = "" }) => {
  const stepped = best && better !== null;
  const all = lines.map((line) => ({ ...line, values: stepped ? bestSoFar(line.raw, better) : smoothed(line.raw, smoothing) }));
  const positive = all.every(({ values }) => values.every((value) => value === null || value > 0));
  const heights = spread(all.flatMap(({ values }) => values)) ?? [0, 1];
  const y = roomy(numbers(...heights, { log: log && positive }), 0.05);
  // A logarithmic axis has no step 0.
  const [first, last] = spread(all.flatMap(({ steps }) => logX ? steps.filter((step) => step > 0) : steps)) ?? [logX ? 1 : 0, 1];
  // A single step stands in the middle.
  const ends = last > first ? [first, last] : logX ? [first / 2, first * 2] : [first - 0.5, first + 0.5];
  const x = numbers(...ends, { log: logX, whole: true, written: (one) => Number.isInteger(one) ? one.toLocaleString("en") : "" });
  const marks = all.flatMap((line) => line.steps.map((step, at) => ({ line, step, at }))).filter(({ line, step, at }) => line.values[at] !== null && (!logX || step > 0));
  const path = (box, { steps, values }) => steps.flatMap((step, at) => {
    const [px, py] = [box.px(x.part(step)), values[at] === null ? NaN : box.py(y.part(values[at]))];
    return stepped && at > 0 && values[at - 1] !== null ? [px, box.py(y.part(values[at - 1])), px, py] : [px, py];
  });
  // A single value is drawn as a mark, because a line of one point is invisible.
  const stroke = (surface, box, line, { colour, width, alpha = 1, dash }) => {
    if (line.steps.length > 1) surface.line(path(box, line), { stroke: colour, width, alpha, dash });
    else if (line.values[0] !== null) surface.marks("dot", [box.px(x.part(line.steps[0]))], [box.py(y.part(line.values[0]))], 4, colour, alpha);
  };
  const paint = (surface, box, colours) => {
    const look = looks(colours);
    for (const line of all) stroke(surface, box, line, look(line));
  };
  return {
    title, x, y, labels: [`step${logX ? " (log)" : ""}`, `${metricNamed(name)}${y.log ? " (log)" : ""}`], paint, positive,
    xs: Float64Array.from(marks, ({ step }) => x.part(step)), ys: Float64Array.from(marks, ({ line, at }) => y.part(line.values[at])),
    point: (surface, box, colours, mark) => { const { line, step, at } = marks[mark]; stroke(surface, box, line, { colour: colours.text, width: 2.5 }); surface.marks("dot", [box.px(x.part(step))], [box.py(y.part(line.values[at]))], 8, colours.text); },
    tell: (mark) => {
      const { line, step, at } = marks[mark];
      const more = stepped ? `, best so far ${short(line.values[at], 6)}` : smoothing ? `, smoothed ${short(line.values[at], 6)}` : "";
      const [heading, ...rest] = line.tell();
      return [heading, `step ${step}: ${line.raw[at] === null ? "not a number" : short(line.raw[at], 6)}${more}`, ...rest];
    },
    address: (mark) => marks[mark].line.address(),
  };
};

// Returns the direction of a metric, as a function that compares two of its values. Only objectives have a direction.
const directionOf = (objectives, { name, counts }) => (objectives.find((one) => one.name === name) ?? (counts ? objectives[0] : null))?.better ?? null;
// Describes options that do not apply to all panels.
const hintOf = (panels, directions, { best, log }) => [
  ...log && panels.some(({ positive }) => !positive) ? [NOT_POSITIVE] : [],
  ...best && directions.some((better) => better === null) ? ["Only the objective has a best value; the other metrics are shown as reported."] : [],
].join(" ");

// The intermediate results of an experiment's trials. Better trials have stronger colours.
const curves = (points, objectives, objective, answer, options) => {
  if (!answer) return LOADING;
  if (answer.metrics.length === 0) return { panels: [], empty: "Nothing to show: no trial has reported an intermediate result." };
  const place = new Map(points.sequence.map((sequence, at) => [sequence, at]));
  const result = (sequence) => { const at = place.get(sequence); return at === undefined ? null : objective.values[at] ?? objective.latest?.[at] ?? null; };
  const order = new Map([...new Set(answer.metrics.flatMap(({ curves: all }) => all.map(({ sequence }) => sequence)))].map((sequence) => [sequence, result(sequence)]).filter(([, value]) => value !== null)
    .sort((a, b) => objective.better(a[1], b[1]) ? 1 : objective.better(b[1], a[1]) ? -1 : 0).map(([sequence], at, all) => [sequence, all.length > 1 ? at / (all.length - 1) : 1]));
  const rank = (sequence) => order.get(sequence) ?? 0;
  const directions = answer.metrics.map((metric) => directionOf(objectives, metric));
  const panels = answer.metrics.map(({ name, curves: all }, index) => {
    const lines = all.map(({ sequence, steps, values }) => {
      const trial = place.get(sequence);
      return { sequence, steps, raw: values, tell: () => trial === undefined ? [`Trial ${sequence}`] : trialTold(points, objective, trial), address: () => trial === undefined ? null : trialAddress(points, trial) };
    }).sort((a, b) => rank(a.sequence) - rank(b.sequence));
    const alpha = Math.max(0.35, Math.min(1, Math.sqrt(120 / lines.length)));
    const looks = (colours) => {
      const { colours: steps, step } = ramp(colours, 10);
      return ({ sequence }) => ({ colour: steps[step(rank(sequence))], width: rank(sequence) > 0.9 ? 1.8 : 1.1, alpha });
    };
    return curvePanel(name, lines, looks, { ...options, better: directions[index], title: answer.metrics.length > 1 ? metricNamed(name) : "" });
  });
  const table = (most) => ({
    head: ["Metric", "Trial", "Steps", "First", "Last"],
    rows: answer.metrics.flatMap(({ name, curves: all }) => all.map(({ sequence, steps, values }) => [metricNamed(name), sequence, steps.length, short(values[0] ?? NaN, 5), short(values.at(-1) ?? NaN, 5)])).slice(0, most),
  });
  const { shown, of } = answer;
  const hint = [hintOf(panels, directions, options), ...shown < of ? [`Shows the curves of ${shown} of ${of} trials: the best and the newest.`] : []].join(" ").trim();
  return { panels, ramp: { low: "worst", high: "best", label: "result" }, table, hint };
};

export { bestSoFar, curvePanel, curves, directionOf, hintOf, NOT_POSITIVE, smoothed };
