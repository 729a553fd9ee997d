// The plot of the compared trials of an experiment: the curves of one metric at a time.

import { metricNamed, named, short } from "./charts.js";
import { check, figureOf, keys, lookOf, Plot, slide, titleOf } from "./plots-frame.js";
import { curvePanel, hintOf } from "./plots-curves.js";

// The curves of `trials` grow. `better` compares two values of the objective. Returns a function that shows the curves of a metric.
const comparedTrials = (trials, better, base) => {
  let metric = "";
  const update = () => plot.set(model);
  const again = () => { plot.zoomed.clear(); range.disabled = bestBox.checked; update(); };
  const [smoothing, range] = slide("Smoothing", 0.99, update);
  const [best, bestBox] = check("best so far", again), [logX, logXBox] = check("log x", again), [logY, logYBox] = check("log y", again);
  const [chooser, shown] = keys(trials.map(({ sequence }) => `trial ${sequence}`), update);
  const plot = new Plot(figureOf("compare"), { name: "compare", title: titleOf("compare"), controls: [smoothing, best, logX, logY], chooser });
  const model = () => {
    const visible = shown().filter((at) => trials[at].curves.has(metric));
    if (!trials.some(({ curves }) => curves.has(metric))) return { panels: [], empty: "None of these trials has reported an intermediate result." };
    const lines = visible.map((at) => {
      const { trial, sequence, curves } = trials[at], curve = curves.get(metric);
      return { at, sequence, steps: curve.map(([step]) => step), raw: curve.map(([, value]) => value), tell: () => [`Trial ${sequence}`], address: () => `${base}/trials/${encodeURIComponent(trial)}` };
    });
    const options = { smoothing: Number(range.value), best: bestBox.checked, logX: logXBox.checked, log: logYBox.checked };
    const direction = trials.some((one) => one.metric === metric) ? better : null;
    const looks = (colours) => ({ at }) => { const look = lookOf(at); return { ...look, colour: colours[look.colour] }; };
    const panel = curvePanel(metric, lines, looks, { ...options, better: direction });
    const table = (most) => ({ head: ["Trial", "Steps", `First ${metricNamed(metric)}`, `Last ${metricNamed(metric)}`], rows: lines.slice(0, most).map(({ sequence, raw }) => [sequence, raw.length, short(raw[0] ?? NaN, 5), short(raw.at(-1) ?? NaN, 5)]) });
    return { panels: [panel], legend: visible.map((at) => ({ label: named(`trial ${trials[at].sequence}`), kind: "line", ...lookOf(at) })), table, hint: hintOf([panel], [direction], options) };
  };
  return (name) => {
    if (name !== metric) plot.zoomed.clear();
    metric = name;
    update();
  };
};

export { comparedTrials };
