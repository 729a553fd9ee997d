// The plots of the comparison of experiments: their optimisation histories, and the intermediate results of their best trials.

import { formatMetricName, shortenName, formatNumber, sanitiseText } from "./charts.js";
import { createCheckbox, findFigure, createLineList, createLazyPlot, chooseLineStyle, Plot, createSelect, createSlider, readTitle } from "./plots-frame.js";
import { listObjectives, preparePoints } from "./points.js";
import { createCurvePanel, findDirection, formatHint, NOT_POSITIVE, smoothValues } from "./plots-curves.js";
import { findImprovements, NO_RESULT, chooseMarkSize, formatTrialAddress, describeTrial } from "./plots-kinds.js";
import { createNumberScale, padScale, formatDuration, createDurationScale, findRange } from "./plots-scale.js";
import { base, fetchJson, getElement, refresh, throttle } from "./updates.js";

// The columns of each experiment, and the number of its trials whose curves are fetched: one half are the best, the other half the newest.
const COLUMNS = "started,ended,latest,space", CURVE_COUNT = 12;
const NO_SELECTION = "Select an experiment above.";
// The maximum number of panels of intermediate results.
const MAX_PANELS = 12;
// The time between two updates of experiments that run, in milliseconds.
const REFRESH_INTERVAL_MS = 15000;

// The colours are those of the tables. They depend on the place of an experiment among all compared ones.
const createLegend = (experiments) => experiments.map(({ name, index }) => ({ label: shortenName(name), kind: "line", ...chooseLineStyle(index) }));
const describeTrialOf = (experiment, row) => [`${shortenName(experiment.name)} · trial ${experiment.points.sequence[row]}`, ...describeTrial(experiment.points, experiment.objective, row).slice(1)];

// The horizontal axes of the histories. `row` is the position of a trial in the columns of its experiment.
const HISTORY_AXES = [
  { label: "trials", locate: ({ points }, row) => points.sequence[row] + 1, until: ({ points }) => points.id.length, scale: (low, high, options) => createNumberScale(low, high, { ...options, whole: true, format: (value) => Number.isInteger(value) ? value.toLocaleString("en") : "" }) },
  { label: "time since the start", locate: ({ points, begun }, row) => points.ended[row] === null ? null : points.ended[row] - begun, until: ({ begun, until }) => until - begun, scale: createDurationScale },
];

// A panel with the history of each experiment. `show` is `best`, `results` or `both`.
const createHistoryPanel = ({ label, locate, until, scale }, experiments, { show, smoothing, log, logX }) => {
  const lines = experiments.map((experiment) => {
    const { index, objective: { values } } = experiment, locateRow = (row) => locate(experiment, row);
    const rows = values.map((_, row) => row).filter((row) => values[row] !== null && locateRow(row) !== null && (!logX || locateRow(row) > 0)).sort((a, b) => locateRow(a) - locateRow(b));
    // A trial can end after the experiment.
    const end = Math.max(until(experiment), rows.length ? locateRow(rows.at(-1)) : 0);
    return { experiment, index, rows, locateRow, best: findImprovements(experiment.objective, rows, locateRow), smooth: smoothValues(rows.map((row) => values[row]), smoothing), until: end };
  });
  const showsBest = show !== "results", showsResults = show !== "best";
  const marks = lines.flatMap((line) => showsResults ? line.rows.map((row) => ({ line, row, value: line.experiment.objective.values[row] })) : line.best.map(({ row, value }) => ({ line, row, value })));
  const [low, high] = findRange(marks.map(({ value }) => value)), positive = low > 0;
  const y = padScale(createNumberScale(low, high, { log: log && positive }), 0.06);
  const first = logX ? Math.min(...marks.map(({ line, row }) => line.locateRow(row))) : 0;
  const last = Math.max(first + 1, ...lines.map((line) => line.until));
  const x = scale(first, last, { log: logX });
  const paint = (surface, box, colours) => {
    const px = (value) => box.px(x.toPosition(value)), py = (value) => box.py(y.toPosition(value)), size = chooseMarkSize(marks.length, 0.9);
    for (const line of lines) {
      const lineStyle = chooseLineStyle(line.index), style = { ...lineStyle, colour: colours[lineStyle.colour], stroke: colours[lineStyle.colour] };
      if (showsResults) surface.drawMarks("dot", Float32Array.from(line.rows, (row) => px(line.locateRow(row))), Float32Array.from(line.rows, (row) => py(line.experiment.objective.values[row])), size, style.colour, smoothing || showsBest ? 0.3 : 0.7);
      if (showsResults && smoothing) surface.drawLine(line.rows.flatMap((row, index) => [px(line.locateRow(row)), py(line.smooth[index])]), style);
      if (!showsBest || line.best.length === 0) continue;
      const corners = line.best.flatMap(({ row, value }, index) => [...index ? [px(line.locateRow(row)), py(line.best[index - 1].value)] : [], px(line.locateRow(row)), py(value)]);
      surface.drawLine([...corners, px(line.until), py(line.best.at(-1).value)], style);
      surface.drawMarks("dot", Float32Array.from(line.best, ({ row }) => px(line.locateRow(row))), Float32Array.from(line.best, ({ value }) => py(value)), 6, style.colour);
    }
  };
  const metric = experiments[0].objective.name;
  return {
    x, y, positive, paint, labels: [`${label}${logX ? " (log)" : ""}`, `${sanitiseText(metric)}${y.log ? " (log)" : ""}`],
    xs: Float64Array.from(marks, ({ line, row }) => x.toPosition(line.locateRow(row))), ys: Float64Array.from(marks, ({ value }) => y.toPosition(value)),
    describe: (mark) => { const { line, row } = marks[mark], ended = line.experiment.points.ended[row]; return [...describeTrialOf(line.experiment, row), ...ended === null ? [] : [`${formatDuration(ended - line.experiment.begun)} after the start`]]; },
    address: (mark) => formatTrialAddress(marks[mark].line.experiment.points, marks[mark].row),
  };
};

// The optimisation histories, over trials and over time.
const createHistories = (experiments, options) => {
  const experimentsWithResults = experiments.filter(({ objective }) => objective.values.some((value) => value !== null));
  if (experiments.length === 0) return { panels: [], empty: NO_SELECTION };
  if (experimentsWithResults.length === 0) return { panels: [], empty: NO_RESULT };
  const panels = HISTORY_AXES.map((axis) => createHistoryPanel(axis, experiments, options));
  const rows = experiments.flatMap((experiment) => findImprovements(experiment.objective, experiment.points.sequence.map((_, row) => row), (row) => experiment.points.sequence[row])
    .map(({ row, value }) => [shortenName(experiment.name), experiment.points.sequence[row], formatNumber(value, 6), experiment.points.ended[row] === null ? "" : formatDuration(experiment.points.ended[row] - experiment.begun)]));
  const table = (maxRows) => ({ head: ["Experiment", "Trial", `Best ${sanitiseText(experiments[0].objective.name)}`, "Time since the start"], rows: rows.slice(0, maxRows) });
  return { panels, legend: createLegend(experiments), table, hint: options.log && panels.some(({ positive }) => !positive) ? NOT_POSITIVE : "" };
};

// The intermediate results of the best `maxTrials` trials of each experiment. Trials without a result come last.
const createBestCurves = (experiments, { maxTrials, ...options }) => {
  const names = [...new Set(experiments.flatMap(({ curves }) => curves.metrics.map(({ name }) => name)))].slice(0, MAX_PANELS);
  if (experiments.length === 0) return { panels: [], empty: NO_SELECTION };
  if (names.length === 0) return { panels: [], empty: "Nothing to show: no trial has reported an intermediate result." };
  const findMetric = ({ curves }, name) => curves.metrics.find((metric) => metric.name === name);
  const directions = names.map((name) => experiments.map((experiment) => findMetric(experiment, name) && findDirection([experiment.objective], findMetric(experiment, name))).find(Boolean) ?? null);
  const chooseTrials = ({ points, objective: { values, better } }, metric) => {
    const rowBySequence = new Map(points.sequence.map((sequence, row) => [sequence, row]));
    const rows = metric.curves.map((curve) => ({ ...curve, row: rowBySequence.get(curve.sequence) })).filter(({ row }) => row !== undefined);
    const resultOf = ({ row }) => values[row];
    return rows.sort((a, b) => (resultOf(a) === null) - (resultOf(b) === null) || (resultOf(a) === null ? b.sequence - a.sequence : better(resultOf(a), resultOf(b)) ? -1 : better(resultOf(b), resultOf(a)) ? 1 : 0)).slice(0, maxTrials);
  };
  const panels = names.map((name, panel) => {
    const lines = experiments.flatMap((experiment) => findMetric(experiment, name) ? chooseTrials(experiment, findMetric(experiment, name)).map(({ row, steps, values }, rank) => ({ index: experiment.index, rank, steps, raw: values, describe: () => describeTrialOf(experiment, row), address: () => formatTrialAddress(experiment.points, row) })) : []);
    const looks = (colours) => ({ index, rank }) => { const lineStyle = chooseLineStyle(index, rank ? 1.1 : 2); return { ...lineStyle, colour: colours[lineStyle.colour], alpha: rank ? 0.6 : 1 }; };
    return createCurvePanel(name, lines.reverse(), looks, { ...options, better: directions[panel], title: names.length > 1 ? formatMetricName(name) : "" });
  });
  const table = (rows) => ({
    head: ["Metric", "Experiment", "Trial", "Steps", "First", "Last"],
    rows: names.flatMap((name) => experiments.flatMap((experiment) => findMetric(experiment, name) ? chooseTrials(experiment, findMetric(experiment, name)).map(({ sequence, steps, values }) => [formatMetricName(name), shortenName(experiment.name), sequence, steps.length, formatNumber(values[0] ?? NaN, 5), formatNumber(values.at(-1) ?? NaN, 5)]) : [])).slice(0, rows),
  });
  return { panels, legend: createLegend(experiments), table, hint: formatHint(panels, directions, options) };
};

const showPage = async () => {
  const summary = getElement("comparison");
  // No experiment is selected.
  if (!summary) return;
  const listExperiments = () => JSON.parse(summary.dataset.experiments).map((experiment, index) => ({ ...experiment, index }));
  const fetchExperiment = async (experiment) => {
    const points = preparePoints(await fetchJson(`/e/${experiment.id}/api/v1/experiment/points?columns=${COLUMNS}`));
    points.base = `${base}/e/${experiment.id}`;
    return { ...experiment, points, objective: listObjectives(points, experiment.mode, experiment.metric)[0] };
  };
  let experiments = await Promise.all(listExperiments().map(fetchExperiment));

  const updateHistories = () => { historyPlot.zoomByPanel.clear(); smoothing.hidden = showChoice.value === "best"; updateHistoryPlot(); };
  const [showLabel, showChoice] = createSelect("Show", [["best", "best so far"], ["results", "results"], ["both", "results and best so far"]], updateHistories);
  const [smoothing, smoothingRange] = createSlider("Smoothing", 0.99, () => updateHistoryPlot());
  const [logX, logXBox] = createCheckbox("log x", updateHistories), [logY, logYBox] = createCheckbox("log y", updateHistories);
  smoothing.hidden = true;
  const [historyLines, listShownHistories] = createLineList(experiments.map(({ name }) => name), updateHistories);
  const historyPlot = new Plot(findFigure("histories"), { name: "histories", title: readTitle("histories"), controls: [showLabel, smoothing, logX, logY], chooser: historyLines });
  const updateHistoryPlot = () => historyPlot.set(() => createHistories(listShownHistories().map((row) => experiments[row]), { show: showChoice.value, smoothing: Number(smoothingRange.value), logX: logXBox.checked, log: logYBox.checked }));
  updateHistoryPlot();

  const updateCurves = () => { curvePlot.plot.zoomByPanel.clear(); curveSmoothingRange.disabled = bestBox.checked; curvePlot.update(); };
  const [countLabel, countChoice] = createSelect("Trials", [["1", "the best"], ["3", "the best 3"], [String(CURVE_COUNT), "the best and the newest"]], updateCurves);
  const [curveSmoothing, curveSmoothingRange] = createSlider("Smoothing", 0.99, () => curvePlot.update());
  const [bestLabel, bestBox] = createCheckbox("best so far", updateCurves), [curveX, curveXBox] = createCheckbox("log x", updateCurves), [curveY, curveYBox] = createCheckbox("log y", updateCurves);
  let curves = null;
  const fetchCurves = async () => { curves = await Promise.all(listExperiments().map(({ id }) => fetchJson(`/e/${id}/api/v1/experiment/curves?points=200&trials=${CURVE_COUNT}`))); };
  const [curveLines, listShownCurves] = createLineList(experiments.map(({ name }) => name), updateCurves);
  const createCurves = () => createBestCurves(listShownCurves().map((row) => ({ ...experiments[row], curves: curves[row] })), { maxTrials: Number(countChoice.value), smoothing: Number(curveSmoothingRange.value), best: bestBox.checked, logX: curveXBox.checked, log: curveYBox.checked });
  const curvePlot = createLazyPlot("best-curves", [countLabel, curveSmoothing, bestLabel, curveX, curveY], fetchCurves, createCurves, curveLines);

  // The home sends no events, so experiments that run are fetched again.
  const refetchRunning = throttle(REFRESH_INTERVAL_MS, async () => {
    await refresh();
    const nextExperiments = listExperiments();
    if (nextExperiments.length !== experiments.length) { location.reload(); return; }
    experiments = await Promise.all(nextExperiments.map((experiment, index) => experiment.runs || experiments[index].runs ? fetchExperiment(experiment) : experiments[index]));
    updateHistoryPlot();
    curvePlot.markOutdated();
  });
  setInterval(() => { if (!document.hidden && experiments.some(({ runs }) => runs)) refetchRunning(); }, REFRESH_INTERVAL_MS);
};

export { showPage };
