// The page of a trial: its curves, its results, its machine and its output. Text of the trial is only set as text, never as HTML.

import { chooseColour, chooseDash, draw, formatMetricName, formatNumber, formatTime, joinCurves, sanitiseText, timeZoneName } from "./charts.js";
import { addReport } from "./curves.js";
import { createControls, splitOutput } from "./log.js";
import { connectEvents, fetchJson, followExperiment, getElement, refresh, refreshPeriodically, throttle } from "./updates.js";

// The maximum number of curves in the chart of a trial.
const MAX_CURVES = 24;
// The maximum number of rows in the table of its results.
const MAX_TABLE_ROWS = 1000;
// The maximum number of samples of its machine. Above it, every second one is dropped.
const MAX_SAMPLES = 4000;

const STREAMS = ["stdout", "stderr"];

const findChart = (name) => document.querySelector(`[data-chart="${name}"]`);
const hasEnded = () => "ended" in getElement("summary").dataset;

// The reports and samples of the latest attempt. Those up to the last number have been added.
const createAttempt = () => ({ curves: new Map(), samples: [], lastReport: -1, lastSample: -1 });
let attempt = createAttempt();
const addReports = (metrics) => {
  for (const metric of metrics) {
    if (metric.seq <= attempt.lastReport) continue;
    attempt.lastReport = metric.seq;
    if (metric.type === "intermediate") addReport(attempt.curves, metric);
  }
};
const addSamples = (samples) => {
  for (const sample of samples) if (sample.seq > attempt.lastSample) { attempt.lastSample = sample.seq; attempt.samples.push(sample); }
  if (attempt.samples.length > MAX_SAMPLES) attempt.samples = attempt.samples.filter((_, index) => index % 2 === 0);
};

// Adds reports to the table of the curves, and removes the oldest rows if it becomes too long.
const listReports = (metrics) => {
  const tableBody = getElement("results").querySelector("tbody");
  for (const { name, type, step, value, observed_at_ms: observedAtMs } of metrics) {
    const row = tableBody.insertRow();
    const formatted = typeof value === "number" ? formatNumber(value) : typeof value === "string" ? value : JSON.stringify(value);
    for (const text of [name === "default" ? "result" : name, type === "final" ? "final" : String(step), formatted, formatTime(observedAtMs / 1000)]) row.insertCell().textContent = sanitiseText(text);
    row.cells[1].className = row.cells[2].className = "number";
  }
  while (tableBody.rows.length > MAX_TABLE_ROWS) tableBody.deleteRow(0);
  getElement("results").hidden = tableBody.rows.length === 0;
};

const drawCurves = () => {
  const goals = JSON.parse(getElement("summary").dataset.goals ?? "[]");
  // The metric of the objective comes first. Other curves are hidden until the user shows them, unless that metric has no curve.
  const objectiveMetric = getElement("summary").dataset.metric;
  // With several objectives, each has its own chart, because metrics such as loss and latency cannot share an axis.
  const goalMetrics = goals.map((name, index) => index === 0 && !attempt.curves.has(name) ? objectiveMetric : name);
  // A single value is no curve. The table contains it.
  const isDrawn = (name) => attempt.curves.has(name) && (attempt.curves.get(name).length > 1 || !hasEnded());
  goalMetrics.forEach((name, index) => {
    const figure = findChart(`goal-${index}`), curve = attempt.curves.get(name);
    figure.hidden = !isDrawn(name);
    if (!figure.hidden) draw(figure, [{ label: formatMetricName(goals[index]), stroke: chooseColour(index), width: 2, spanGaps: true }], joinCurves([curve]), { x: "step", y: formatMetricName(goals[index]) });
  });
  const otherMetrics = [...attempt.curves.keys()].filter((name) => !goalMetrics.includes(name) && isDrawn(name));
  findChart("metrics").hidden = goalMetrics.some(isDrawn) && otherMetrics.length === 0;
  const showsAll = !otherMetrics.includes(objectiveMetric);
  const names = otherMetrics.sort((a, b) => (b === objectiveMetric) - (a === objectiveMetric)).slice(0, MAX_CURVES);
  getElement("curves-hint").hidden = attempt.curves.size === 0;
  getElement("curves-click").hidden = otherMetrics.length < 2;
  const hiddenCount = otherMetrics.length - names.length;
  getElement("curves-left").textContent = hiddenCount ? `${hiddenCount} more metrics are in the table and in the API.` : "";
  const series = names.map((name, index) => ({ label: formatMetricName(name), stroke: chooseColour(index), dash: chooseDash(index), width: 2, spanGaps: true, show: showsAll ? index < 8 : name === objectiveMetric }));
  draw(findChart("metrics"), series, joinCurves(names.map((name) => attempt.curves.get(name))), { x: "step", empty: attempt.curves.size ? "Each metric has a single value, which is in the table." : hasEnded() ? "This trial reported no intermediate results." : "No intermediate results yet." });
};

const drawMachine = () => {
  // A trial of less than a second has no samples.
  findChart("memory").closest("section").hidden = hasEnded() && attempt.samples.length === 0;
  const times = attempt.samples.map((sample) => sample.observed_at_ms / 1000);
  const columnOf = (read) => attempt.samples.map(({ sample }) => read(sample) ?? null);
  const drawSamples = (name, kind, y, columns) => {
    const figure = findChart(name);
    const presentColumns = columns.filter(([, column]) => column.some((value) => value !== null));
    // The charts of GPUs are hidden on machines without GPUs.
    figure.hidden = presentColumns.length === 0 && name !== "memory";
    const lines = presentColumns.map(([title], index) => ({ label: title, stroke: chooseColour(index), width: 1.5, spanGaps: true }));
    const data = presentColumns.length ? [times, ...presentColumns.map(([, column]) => column)] : [[]];
    draw(figure, lines, data, { x: `time (${timeZoneName})`, y, kind, time: true, empty: hasEnded() ? "This trial has no machine samples." : "No machine samples yet." });
  };
  const gpuCount = Math.max(0, ...attempt.samples.map(({ sample }) => sample.gpus?.length ?? 0));
  const gpuColumns = (read, title = "") => [...Array(gpuCount).keys()].map((index) => [`GPU ${index}${title}`, columnOf((sample) => sample.gpus?.[index] && read(sample.gpus[index]))]);
  drawSamples("memory", "bytes", "memory", [
    ["processes", columnOf((sample) => sample.process?.memory_bytes)],
    ["container", columnOf((sample) => sample.cgroup?.memory_bytes)],
    ["limit", columnOf((sample) => sample.cgroup?.memory_limit_bytes)],
  ]);
  drawSamples("load", "percent", "use", [
    ...gpuColumns((gpu) => gpu.utilization_percent),
    ["processor, % of one core", columnOf((sample) => sample.process?.cpu_percent)],
  ]);
  drawSamples("gpu-memory", "bytes", "GPU memory", [
    ...gpuColumns((gpu) => gpu.memory_used_bytes),
    ["memory of one GPU", columnOf((sample) => sample.gpus?.[0]?.memory_total_bytes)],
  ]);
  drawSamples("power", "watts", "GPU power", gpuColumns((gpu) => gpu.power_watts));
};

const drawCharts = throttle(250, async () => { drawCurves(); drawMachine(); });

// Appends output at most a few times per second, because each addition lays out the whole view again. The view drops its beginning
// above this number of characters.
const MAX_LOG_CHARACTERS = 256 * 1024;
const pendingOutput = { stdout: [], stderr: [] }, updateSearch = {};
const queueOutput = (stream, text, times = []) => {
  const kept = pendingOutput[stream];
  kept.push({ text, times });
  let length = kept.reduce((sum, piece) => sum + piece.text.length, 0);
  while (length > MAX_LOG_CHARACTERS && kept.length > 1) length -= kept.shift().text.length;
  appendPendingOutput();
};
const appendPendingOutput = throttle(250, async () => {
  for (const [stream, parts] of Object.entries(pendingOutput)) {
    if (parts.length === 0) continue;
    pendingOutput[stream] = [];
    const log = getElement(`log-${stream}`), nodes = [];
    let startsLine = (log.lastChild?.textContent ?? "\n").endsWith("\n");
    for (const { text, times } of parts) {
      nodes.push(...splitOutput(text, times, startsLine));
      startsLine = text.endsWith("\n");
    }
    log.append(...nodes);
    updateSearch[stream]?.();
    let length = log.textContent.length;
    while (length > MAX_LOG_CHARACTERS && log.childNodes.length > 1) { length -= log.firstChild.textContent.length; log.firstChild.remove(); }
    if (document.querySelector(`[data-follow=${stream}]`)?.checked) log.scrollTop = log.scrollHeight;
  }
});

// Shows the events of a running trial.
const followTrial = (apiPath, firstEventId, handleEnd) => {
  let isFirstAttempt = firstEventId === undefined, showsPodLog = false;
  const showAttempt = () => {
    if (isFirstAttempt && !showsPodLog) { isFirstAttempt = false; return; }
    isFirstAttempt = showsPodLog = false;
    attempt = createAttempt();
    getElement("results").querySelector("tbody").replaceChildren();
    for (const stream of STREAMS) { pendingOutput[stream] = []; getElement(`log-${stream}`).textContent = ""; }
    drawCharts();
  };
  connectEvents(`${apiPath}/events`, firstEventId, {
    attempt: showAttempt,
    metrics: (metrics) => { addReports(metrics); listReports(metrics); drawCharts(); },
    samples: (samples) => { addSamples(samples); drawCharts(); },
    log: ({ stream, text, times }) => queueOutput(stream, text, times),
    // If the agent of a trial is silent, its pod's log replaces both streams.
    unheard: ({ text, why }) => { showsPodLog = true; queueOutput("stdout", text ?? `${why}\n`); },
    trial: refresh,
    end: async () => { await refresh.runNow(); handleEnd(); },
  });
};

const showPage = async () => {
  const { trial: id, after: firstEventId } = getElement("summary").dataset;
  const apiPath = `/api/v1/trials/${encodeURIComponent(id)}`;
  const [{ metrics }, { samples }] = await Promise.all([fetchJson(`${apiPath}/metrics?points=2000`), fetchJson(`${apiPath}/samples?points=1000`)]);
  addReports(metrics);
  addSamples(samples);
  drawCharts();
  for (const label of document.querySelectorAll("label.follow")) label.hidden = hasEnded();
  for (const stream of STREAMS) {
    updateSearch[stream] = createControls(stream);
    const log = getElement(`log-${stream}`);
    log.scrollTop = log.scrollHeight;
  }
  // If an ended trial runs again, its page reloads.
  const reloadIfRerun = () => followExperiment(undefined, { trial: (trial) => { if (trial.id === id && trial.ended_at_ms === null) location.reload(); } });
  if (hasEnded()) { reloadIfRerun(); return; }
  refreshPeriodically();
  followTrial(apiPath, firstEventId, reloadIfRerun);
};

export { showPage };
