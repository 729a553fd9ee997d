// The plot of the compared trials of an experiment: the curves of one metric at a time.

import { formatMetricName, shortenName, formatNumber } from "./charts.js";
import { createCheckbox, findFigure, createLineList, chooseLineStyle, Plot, createSlider, readTitle } from "./plots-frame.js";
import { createCurvePanel, formatHint } from "./plots-curves.js";

// The curves of `trials` grow. `better` compares two values of the objective. Returns a function that shows the curves of a metric.
const createTrialComparison = (trials, better, base) => {
  let metric = "";
  const updatePlot = () => plot.set(createModel);
  const resetPlot = () => { plot.zoomByPanel.clear(); range.disabled = bestBox.checked; updatePlot(); };
  const [smoothing, range] = createSlider("Smoothing", 0.99, updatePlot);
  const [best, bestBox] = createCheckbox("best so far", resetPlot), [logX, logXBox] = createCheckbox("log x", resetPlot), [logY, logYBox] = createCheckbox("log y", resetPlot);
  const [chooser, listShown] = createLineList(trials.map(({ sequence }) => `trial ${sequence}`), updatePlot);
  const plot = new Plot(findFigure("compare"), { name: "compare", title: readTitle("compare"), controls: [smoothing, best, logX, logY], chooser });
  const createModel = () => {
    const visibleTrials = listShown().filter((index) => trials[index].curves.has(metric));
    if (!trials.some(({ curves }) => curves.has(metric))) return { panels: [], empty: "None of these trials has reported an intermediate result." };
    const lines = visibleTrials.map((index) => {
      const { trial, sequence, curves } = trials[index], curve = curves.get(metric);
      return { index, sequence, steps: curve.map(([step]) => step), raw: curve.map(([, value]) => value), describe: () => [`Trial ${sequence}`], address: () => `${base}/trials/${encodeURIComponent(trial)}` };
    });
    const options = { smoothing: Number(range.value), best: bestBox.checked, logX: logXBox.checked, log: logYBox.checked };
    const direction = trials.some((trial) => trial.metric === metric) ? better : null;
    const createStyles = (colours) => ({ index }) => { const style = chooseLineStyle(index); return { ...style, colour: colours[style.colour] }; };
    const panel = createCurvePanel(metric, lines, createStyles, { ...options, better: direction });
    const table = (maxRows) => ({ head: ["Trial", "Steps", `First ${formatMetricName(metric)}`, `Last ${formatMetricName(metric)}`], rows: lines.slice(0, maxRows).map(({ sequence, raw }) => [sequence, raw.length, formatNumber(raw[0] ?? NaN, 5), formatNumber(raw.at(-1) ?? NaN, 5)]) });
    return { panels: [panel], legend: visibleTrials.map((index) => ({ label: shortenName(`trial ${trials[index].sequence}`), kind: "line", ...chooseLineStyle(index) })), table, hint: formatHint([panel], [direction], options) };
  };
  return (name) => {
    if (name !== metric) plot.zoomByPanel.clear();
    metric = name;
    updatePlot();
  };
};

export { createTrialComparison };
