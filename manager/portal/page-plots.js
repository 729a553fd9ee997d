// The plots page. It fetches the columns once, keeps them up to date, and draws each plot when it comes into view, the first one before
// all others.

import { createCheckbox, createNameList, findFigure, createLazyPlot, createSelect, createSlider } from "./plots-frame.js";
import { formatMetricName, shortenName, waitForPaint } from "./charts.js";
import { listParameters, recordTrial } from "./points.js";
import { createDurations, createSlices } from "./plots-kinds.js";
import { createBars, readBars } from "./plots-bars.js";
import { createContour } from "./plots-contour.js";
import { createCurves } from "./plots-curves.js";
import { createParetoPlot } from "./plots-pareto.js";
import { drawSearch } from "./plots-search.js";
import { createTimeline } from "./plots-timeline.js";
import { fetchJson, followExperiment, refresh, refreshPeriodically, throttle } from "./updates.js";

// The number of parameters in the slice plot at first.
const INITIAL_PANELS = 24;
// The maximum number of metrics with curves, as in the manager.
const MAX_METRICS = 12;

const showPage = async () => {
  const hasSeveralObjectives = findFigure("pareto") !== null;
  const { points, listCurrentObjectives, getObjective, addPlot, plotUpdates, updatePlots } = await drawSearch();
  if (hasSeveralObjectives) addParetoPlot(points, getObjective, addPlot);

  addTablePlots(getObjective, addPlot);

  const [sliceLog, sliceLogBox] = createCheckbox("log y", () => slicePlot.update());
  const [sliceNames, chooseSliceNames] = createNameList("Parameters", INITIAL_PANELS, () => { slicePlot.plot.zoomByPanel.clear(); slicePlot.update(); });
  const slicePlot = addPlot("slice", [sliceNames, sliceLog], () => createSlices(points, getObjective(), { names: chooseSliceNames(listParameters(points)), log: sliceLogBox.checked }));

  const names = listParameters(points);
  const [xLabel, xSelect] = createSelect("X", names.map((name) => [name, shortenName(name)]), () => { contourPlot.plot.zoomByPanel.clear(); contourPlot.update(); });
  const [yLabel, ySelect] = createSelect("Y", names.map((name) => [name, shortenName(name)]), () => { contourPlot.plot.zoomByPanel.clear(); contourPlot.update(); });
  if (names.length > 1) {
    // Start with the two most important parameters, which the server lists first.
    const importantNames = [...document.querySelectorAll("#importance meter")].map((meter) => meter.getAttribute("aria-label"));
    const [first = names[0], second] = importantNames.filter((name) => names.includes(name));
    xSelect.value = first;
    ySelect.value = second ?? names.find((name) => name !== first);
  }
  const contourPlot = addPlot("contour", [xLabel, yLabel], () => createContour(points, getObjective(), { a: xSelect.value, b: ySelect.value }), { heightRatio: 0.6 });

  const [durationLog, durationLogBox] = createCheckbox("log x", () => { durationPlot.plot.zoomByPanel.clear(); durationPlot.update(); });
  const [durationKind, durationKindSelect] = createSelect("Show", [["state", "all trials by state"], ["cause", "failures by cause"]], () => { durationPlot.plot.zoomByPanel.clear(); durationPlot.update(); });
  const durationPlot = addPlot("durations", [durationKind, durationLog], () => createDurations(points, { by: durationKindSelect.value, log: durationLogBox.checked }), { heightRatio: 0.6 });

  const answers = { curves: null, timeline: null };
  const [smoothing, smoothingRange] = createSlider("Smoothing", 0.99, () => curvePlot.update());
  const updateCurves = () => { curvePlot.plot.zoomByPanel.clear(); smoothingRange.disabled = curveBestBox.checked; curvePlot.update(); };
  const [curveBest, curveBestBox] = createCheckbox("best so far", updateCurves);
  const [curveLogX, curveLogXBox] = createCheckbox("log x", updateCurves);
  const [curveLog, curveLogBox] = createCheckbox("log y", updateCurves);
  const createCurrentCurves = () => createCurves(points, listCurrentObjectives(), getObjective(), answers.curves, { smoothing: Number(smoothingRange.value), best: curveBestBox.checked, logX: curveLogXBox.checked, log: curveLogBox.checked });
  const [curveCount, curveCountSelect] = createSelect("Trials", [20, 50, 200, 1000].map((count) => [String(count), String(count)]), () => curvePlot.markOutdated());
  curveCountSelect.value = "200";
  const [curveMetric, curveMetricSelect] = createSelect("Metric", [["", "all"]], () => { curvePlot.plot.zoomByPanel.clear(); curvePlot.markOutdated(); });
  curveMetric.hidden = true;
  const fetchCurves = async () => {
    const metric = curveMetricSelect.value;
    answers.curves = await fetchJson(`/api/v1/experiment/curves?${new URLSearchParams({ points: 100, trials: curveCountSelect.value, ...metric ? { metric } : {} })}`);
    const names = answers.curves.names;
    if (curveMetricSelect.options.length !== names.length + 1) curveMetricSelect.replaceChildren(new Option(names.length > MAX_METRICS ? `the first ${MAX_METRICS}` : "all", ""), ...names.map((name) => new Option(formatMetricName(name), name, false, name === metric)));
    curveMetric.hidden = names.length < 2;
  };
  const curvePlot = createLazyPlot("curves", [curveCount, curveMetric, smoothing, curveBest, curveLogX, curveLog], fetchCurves, createCurrentCurves);
  plotUpdates.push(() => { if (answers.curves) curvePlot.update(); });
  const [rows, rowSelect] = createSelect("Rows", [["trial", "trials"], ["host", "machines"]], () => { timelinePlot.plot.zoomByPanel.clear(); timelinePlot.update(); });
  const timelinePlot = createLazyPlot("timeline", [rows], async () => { answers.timeline = await fetchJson("/api/v1/experiment/timeline"); addMachines(points, answers.timeline); }, () => createTimeline(points, answers.timeline, { by: rowSelect.value }));

  // The machines of trials cost as much as all other columns, so they come after the plots that show no machines.
  waitForPaint().then(timelinePlot.load);
  const schedulePlotUpdate = throttle(1000, async () => updatePlots());
  refreshPeriodically();
  followExperiment(points.change, { trial: (trial) => { recordTrial(points, trial); schedulePlotUpdate(); curvePlot.markOutdated(); timelinePlot.markOutdated(); refresh().then(schedulePlotUpdate); }, experiment: refresh });
};

// Adds the machine and the number of attempts of each trial, from the timeline of attempts.
const addMachines = (points, { sequence, host, hosts }) => {
  const indexBySequence = new Map(points.sequence.map((attemptSequence, index) => [attemptSequence, index]));
  points.host = new Array(points.id.length).fill(null);
  points.attempts = new Array(points.id.length).fill(0);
  sequence.forEach((attemptSequence, row) => {
    const index = indexBySequence.get(attemptSequence);
    if (index === undefined) return;
    points.attempts[index] += 1;
    if (host[row] !== null) points.host[index] = hosts[host[row]];
  });
};

// The plots of tables that the page contains.
const addTablePlots = (getObjective, addPlot) => {
  const readHint = (id) => document.querySelector(`#${id} .hint`)?.textContent ?? "";
  const listImportanceRows = () => document.querySelectorAll(`#importance :is([data-objective="${getObjective().index}"], div:not([data-objective])) > table tr`);
  addPlot("importance-bars", [], () => createBars(readBars(listImportanceRows()), { label: "share", format: (value) => `${Math.round(100 * value)} %`, colour: "accent", hint: readHint("importance"), empty: readHint("importance") }));
  const listFailureRows = () => document.querySelectorAll("#causes tr");
  addPlot("failures", [], () => createBars(readBars(listFailureRows()), { label: "failed trials", format: (value) => Number.isInteger(value) ? String(value) : "", colour: "bad", hint: "", empty: readHint("causes") }));
};

// The plot of the Pareto front. The page lists the trials on the front.
const addParetoPlot = (points, getObjective, addPlot) => {
  const metrics = points.objectives.map(({ metric }) => [metric, shortenName(metric)]);
  const updatePlot = () => { paretoPlot.plot.zoomByPanel.clear(); paretoPlot.update(); };
  const [xLabel, xSelect] = createSelect("X", metrics, updatePlot), [yLabel, ySelect] = createSelect("Y", metrics, updatePlot);
  ySelect.value = metrics[1][0];
  const readFront = () => document.getElementById("front").dataset.front.split(" ").filter(Boolean).map(Number);
  const paretoPlot = addPlot("pareto", [xLabel, yLabel], () => createParetoPlot(points, getObjective(), { a: xSelect.value, b: ySelect.value, front: readFront() }));
};

export { showPage };
