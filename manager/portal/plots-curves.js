// The intermediate results of many trials, with a panel for each metric. Better trials have stronger colours.

import { short, tame } from "./charts.js";
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

const curves = (points, objective, answer, { smoothing, log }) => {
  if (!answer || answer.metrics.length === 0) return { panels: [], empty: "Nothing to show: no trial has reported an intermediate result." };
  const place = new Map(points.sequence.map((sequence, at) => [sequence, at]));
  const result = (sequence) => { const at = place.get(sequence); return at === undefined ? null : objective.values[at] ?? objective.latest?.[at] ?? null; };
  const order = new Map([...new Set(answer.metrics.flatMap(({ curves: all }) => all.map(({ sequence }) => sequence)))].map((sequence) => [sequence, result(sequence)]).filter(([, value]) => value !== null)
    .sort((a, b) => objective.better(a[1], b[1]) ? 1 : objective.better(b[1], a[1]) ? -1 : 0).map(([sequence], at, all) => [sequence, all.length > 1 ? at / (all.length - 1) : 1]));
  const rank = (sequence) => order.get(sequence) ?? 0;
  const panels = answer.metrics.map(({ name, curves: all }) => {
    const lines = all.map(({ sequence, steps, values }) => ({ sequence, steps, raw: values, values: smoothed(values, smoothing) })).sort((a, b) => rank(a.sequence) - rank(b.sequence));
    const positive = lines.every(({ raw }) => raw.every((value) => value === null || value > 0));
    const heights = spread(lines.flatMap(({ values }) => values)) ?? [0, 1];
    const y = roomy(numbers(...heights, { log: log && positive }), 0.05);
    const [first, last] = spread(lines.flatMap(({ steps }) => steps)) ?? [0, 1];
    const x = numbers(first, Math.max(last, first + 1), { written: (one) => Number.isInteger(one) ? one.toLocaleString("en") : "" });
    const marks = lines.flatMap((line) => line.steps.map((step, at) => ({ line, step, at }))).filter(({ line, at }) => line.values[at] !== null);
    const path = (box, line) => line.steps.flatMap((step, at) => [box.px(x.part(step)), line.values[at] === null ? NaN : box.py(y.part(line.values[at]))]);
    // A single value is drawn as a mark, because a line of one point is invisible.
    const stroke = (surface, box, line, colour, width, alpha) => {
      if (line.steps.length > 1) surface.line(path(box, line), { stroke: colour, width, alpha });
      else if (line.values[0] !== null) surface.marks("dot", [box.px(x.part(line.steps[0]))], [box.py(y.part(line.values[0]))], 4, colour, alpha);
    };
    const paint = (surface, box, colours) => {
      const { colours: steps, step } = ramp(colours, 10);
      const faint = Math.min(1, Math.sqrt(120 / lines.length));
      for (const line of lines) stroke(surface, box, line, steps[step(rank(line.sequence))], rank(line.sequence) > 0.9 ? 1.8 : 1.1, Math.max(0.35, faint));
    };
    return {
      title: answer.metrics.length > 1 ? name : "", x, y, labels: ["step", `${tame(name)}${y.log ? " (log)" : ""}`], paint,
      xs: Float64Array.from(marks, ({ step }) => x.part(step)), ys: Float64Array.from(marks, ({ line, at }) => y.part(line.values[at])),
      point: (surface, box, colours, mark) => { const { line, step, at } = marks[mark]; stroke(surface, box, line, colours.text, 2.5, 1); surface.marks("dot", [box.px(x.part(step))], [box.py(y.part(line.values[at]))], 8, colours.text); },
      tell: (mark) => {
        const { line, step, at } = marks[mark], trial = place.get(line.sequence);
        const value = `step ${step}: ${short(line.raw[at], 6)}${smoothing ? `, smoothed ${short(line.values[at], 6)}` : ""}`;
        const [title, ...rest] = trial === undefined ? [`Trial ${line.sequence}`] : trialTold(points, objective, trial);
        return [title, value, ...rest];
      },
      address: (mark) => { const trial = place.get(marks[mark].line.sequence); return trial === undefined ? null : trialAddress(points, trial); },
    };
  });
  const table = (most) => ({
    head: ["Metric", "Trial", "Steps", "First", "Last"],
    rows: answer.metrics.flatMap(({ name, curves: all }) => all.map(({ sequence, steps, values }) => [tame(name), sequence, steps.length, short(values[0] ?? NaN, 5), short(values.at(-1) ?? NaN, 5)])).slice(0, most),
  });
  const { shown, of } = answer;
  return { panels, ramp: { low: "worst", high: "best", label: "result" }, table, hint: shown < of ? `Shows the curves of ${shown} of ${of} trials: the best and the newest.` : "" };
};

export { curves, smoothed };
