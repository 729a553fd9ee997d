// Curves over steps: the intermediate results of many trials, with a panel for each metric.

import { LOADING_MODEL, formatMetricName, formatNumber } from "./charts.js";
import { createRamp } from "./plots-surface.js";
import { createNumberScale, padScale, findRange } from "./plots-scale.js";
import { formatTrialAddress, describeTrial } from "./plots-kinds.js";

// A debiased exponential moving average, like TensorBoard's smoothing.
const smoothValues = (values, weight) => {
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
const computeBestSoFar = (values, better) => {
  let best = null;
  return values.map((value) => {
    if (value !== null && (best === null || better(value, best))) best = value;
    return best;
  });
};
const NOT_POSITIVE = "A logarithmic axis needs values above 0.";

// A panel with a curve for each line, `{ steps, raw, describe, address }`, in the order in which they are drawn. `better` compares two values
// of the metric; without it, the metric has no direction and no best value. `createStyles` returns the style of each line in the theme's colours.
const createCurvePanel = (name, lines, createStyles, { smoothing = 0, best = false, log = false, logX = false, better = null, title = "" }) => {
  const showsBest = best && better !== null;
  const curves = lines.map((line) => ({ ...line, values: showsBest ? computeBestSoFar(line.raw, better) : smoothValues(line.raw, smoothing) }));
  const positive = curves.every(({ values }) => values.every((value) => value === null || value > 0));
  const valueRange = findRange(curves.flatMap(({ values }) => values)) ?? [0, 1];
  const y = padScale(createNumberScale(...valueRange, { log: log && positive }), 0.05);
  // A logarithmic axis has no step 0.
  const [first, last] = findRange(curves.flatMap(({ steps }) => logX ? steps.filter((step) => step > 0) : steps)) ?? [logX ? 1 : 0, 1];
  // A single step stands in the middle.
  const stepRange = last > first ? [first, last] : logX ? [first / 2, first * 2] : [first - 0.5, first + 0.5];
  const x = createNumberScale(...stepRange, { log: logX, whole: true, format: (step) => Number.isInteger(step) ? step.toLocaleString("en") : "" });
  const marks = curves.flatMap((line) => line.steps.map((step, index) => ({ line, step, index }))).filter(({ line, step, index }) => line.values[index] !== null && (!logX || step > 0));
  const createPath = (box, { steps, values }) => steps.flatMap((step, index) => {
    const [px, py] = [box.px(x.toPosition(step)), values[index] === null ? NaN : box.py(y.toPosition(values[index]))];
    return showsBest && index > 0 && values[index - 1] !== null ? [px, box.py(y.toPosition(values[index - 1])), px, py] : [px, py];
  });
  // A single value is drawn as a mark, because a line of one point is invisible.
  const drawLine = (surface, box, line, { colour, width, alpha = 1, dash }) => {
    if (line.steps.length > 1) surface.drawLine(createPath(box, line), { stroke: colour, width, alpha, dash });
    else if (line.values[0] !== null) surface.drawMarks("dot", [box.px(x.toPosition(line.steps[0]))], [box.py(y.toPosition(line.values[0]))], 4, colour, alpha);
  };
  const paint = (surface, box, colours) => {
    const styleOf = createStyles(colours);
    for (const line of curves) drawLine(surface, box, line, styleOf(line));
  };
  return {
    title, x, y, labels: [`step${logX ? " (log)" : ""}`, `${formatMetricName(name)}${y.log ? " (log)" : ""}`], paint, positive,
    xs: Float64Array.from(marks, ({ step }) => x.toPosition(step)), ys: Float64Array.from(marks, ({ line, index }) => y.toPosition(line.values[index])),
    highlight: (surface, box, colours, mark) => { const { line, step, index } = marks[mark]; drawLine(surface, box, line, { colour: colours.text, width: 2.5 }); surface.drawMarks("dot", [box.px(x.toPosition(step))], [box.py(y.toPosition(line.values[index]))], 8, colours.text); },
    describe: (mark) => {
      const { line, step, index } = marks[mark];
      const addition = showsBest ? `, best so far ${formatNumber(line.values[index], 6)}` : smoothing ? `, smoothed ${formatNumber(line.values[index], 6)}` : "";
      const [heading, ...details] = line.describe();
      return [heading, `step ${step}: ${line.raw[index] === null ? "not a number" : formatNumber(line.raw[index], 6)}${addition}`, ...details];
    },
    address: (mark) => marks[mark].line.address(),
  };
};

// Returns the direction of a metric, as a function that compares two of its values. Only objectives have a direction.
const findDirection = (objectives, { name, counts }) => (objectives.find((objective) => objective.name === name) ?? (counts ? objectives[0] : null))?.better ?? null;
// Describes options that do not apply to all panels.
const formatHint = (panels, directions, { best, log }) => [
  ...log && panels.some(({ positive }) => !positive) ? [NOT_POSITIVE] : [],
  ...best && directions.some((better) => better === null) ? ["Only the objective has a best value; the other metrics are shown as reported."] : [],
].join(" ");

// The intermediate results of an experiment's trials. Better trials have stronger colours.
const createCurves = (points, objectives, objective, answer, options) => {
  if (!answer) return LOADING_MODEL;
  if (answer.metrics.length === 0) return { panels: [], empty: "Nothing to show: no trial has reported an intermediate result." };
  const indexBySequence = new Map(points.sequence.map((sequence, index) => [sequence, index]));
  const resultOf = (sequence) => { const index = indexBySequence.get(sequence); return index === undefined ? null : objective.values[index] ?? objective.latest?.[index] ?? null; };
  const rankBySequence = new Map([...new Set(answer.metrics.flatMap(({ curves: metricCurves }) => metricCurves.map(({ sequence }) => sequence)))].map((sequence) => [sequence, resultOf(sequence)]).filter(([, value]) => value !== null)
    .sort((a, b) => objective.better(a[1], b[1]) ? 1 : objective.better(b[1], a[1]) ? -1 : 0).map(([sequence], index, metricCurves) => [sequence, metricCurves.length > 1 ? index / (metricCurves.length - 1) : 1]));
  const rankOf = (sequence) => rankBySequence.get(sequence) ?? 0;
  const directions = answer.metrics.map((metric) => findDirection(objectives, metric));
  const panels = answer.metrics.map(({ name, curves: metricCurves }, index) => {
    const lines = metricCurves.map(({ sequence, steps, values }) => {
      const trial = indexBySequence.get(sequence);
      return { sequence, steps, raw: values, describe: () => trial === undefined ? [`Trial ${sequence}`] : describeTrial(points, objective, trial), address: () => trial === undefined ? null : formatTrialAddress(points, trial) };
    }).sort((a, b) => rankOf(a.sequence) - rankOf(b.sequence));
    const alpha = Math.max(0.35, Math.min(1, Math.sqrt(120 / lines.length)));
    const createStyles = (colours) => {
      const { colours: steps, toIndex } = createRamp(colours, 10);
      return ({ sequence }) => ({ colour: steps[toIndex(rankOf(sequence))], width: rankOf(sequence) > 0.9 ? 1.8 : 1.1, alpha });
    };
    return createCurvePanel(name, lines, createStyles, { ...options, better: directions[index], title: answer.metrics.length > 1 ? formatMetricName(name) : "" });
  });
  const table = (maxRows) => ({
    head: ["Metric", "Trial", "Steps", "First", "Last"],
    rows: answer.metrics.flatMap(({ name, curves: metricCurves }) => metricCurves.map(({ sequence, steps, values }) => [formatMetricName(name), sequence, steps.length, formatNumber(values[0] ?? NaN, 5), formatNumber(values.at(-1) ?? NaN, 5)])).slice(0, maxRows),
  });
  const { shown: shownCount, of: total } = answer;
  const hint = [formatHint(panels, directions, options), ...shownCount < total ? [`Shows the curves of ${shownCount} of ${total} trials: the best and the newest.`] : []].join(" ").trim();
  return { panels, ramp: { low: "worst", high: "best", label: "result" }, table, hint };
};

export { computeBestSoFar, createCurvePanel, createCurves, findDirection, formatHint, NOT_POSITIVE, smoothValues };
