// The comparison of trials of an experiment: the curves of one metric at a time.

import { formatMetricName, shortenName, formatNumber } from "./charts.js";
import { addReport } from "./curves.js";
import { createCheckbox, findFigure, createLineList, chooseLineStyle, Plot, createSlider, readTitle } from "./plots-frame.js";
import { createCurvePanel, formatHint } from "./plots-curves.js";
import { base, fetchJson, followExperiment, getElement, refresh, throttle } from "./updates.js";

// The curves of `trials` grow. `better` compares two values of the objective. Returns a function that shows the curves of a metric.
const createTrialComparison = (trials, better) => {
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

const showPage = async () => {
  const comparedList = getElement("compared");
  if (!comparedList) return;
  const trials = new Map([...comparedList.querySelectorAll("[data-trial]")].map(({ dataset }) => [dataset.trial, { ...dataset, curves: new Map(), seen: -1 }]));
  let changedTrials = new Set(trials.keys());
  // Fetches the whole curves first, thinned, and later only new points. A new attempt starts new curves.
  const fetchCurves = async (trial) => {
    const path = `/api/v1/trials/${encodeURIComponent(trial.trial)}/metrics?type=intermediate`;
    for (;;) {
      const answer = await fetchJson(trial.seen < 0 ? `${path}&points=1000` : `${path}&after=${trial.seen}`);
      if (trial.seen >= 0 && answer.attempt !== trial.attempt) { Object.assign(trial, { curves: new Map(), seen: -1 }); continue; }
      trial.attempt = answer.attempt;
      for (const metric of answer.metrics) addReport(trial.curves, metric);
      trial.seen = answer.next ?? answer.metrics.at(-1)?.seq ?? trial.seen;
      if (answer.next === null) return;
    }
  };
  const schedulePlotUpdate = throttle(1000, async () => {
    const updatedTrials = changedTrials;
    changedTrials = new Set();
    await Promise.all([...updatedTrials].map((id) => fetchCurves(trials.get(id)).catch((error) => { changedTrials.add(id); throw error; })));
    offerMetrics();
    drawSelectedMetric();
  });
  // Offers one metric at a time, initially the metric of the objective if a trial has it.
  const metricSelect = getElement("metric");
  const offerMetrics = () => {
    const allTrials = [...trials.values()];
    const names = [...new Set(allTrials.flatMap((trial) => [...trial.curves.keys()]))].sort();
    if (names.length === metricSelect.options.length) return;
    const objectiveMetric = names.find((name) => allTrials.some((trial) => trial.metric === name));
    const chosen = names.includes(metricSelect.value) ? metricSelect.value : objectiveMetric ?? names[0];
    metricSelect.replaceChildren(...names.map((name) => new Option(formatMetricName(name), name, false, name === chosen)));
    metricSelect.closest("p").hidden = names.length < 2;
  };
  const isBetter = comparedList.dataset.mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
  const drawMetric = createTrialComparison([...trials.values()], isBetter);
  const drawSelectedMetric = () => drawMetric(metricSelect.value);
  metricSelect.addEventListener("change", drawSelectedMetric);
  schedulePlotUpdate();
  const handleTrial = ({ id }) => { if (trials.has(id)) { changedTrials.add(id); schedulePlotUpdate(); refresh(); } };
  followExperiment(comparedList.dataset.change, { trial: handleTrial });
};

export { showPage };
