// Keeps the pages of the portal up to date. The server first sends the whole page, later only the changes. Elements with `data-live`
// replace the old ones. Elements with `data-part` arrive empty if the page already has them. Text from trials and users is only set as
// text, never as HTML.

import { chooseDash, draw, joinCurves, accessStorage, formatMetricName, formatTime, formatNumber, chooseColour, sanitiseText, timeZoneName } from "./charts.js";
import { toFinite, recordTrial } from "./points.js";

// `base` is the path of the pages and the API.
const { page, base = "" } = document.body.dataset;
const getElement = (id) => document.getElementById(id);
const findChart = (name) => document.querySelector(`[data-chart="${name}"]`);
const fetchJson = async (path) => {
  const response = await fetch(base + path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
};
// Adds a report to its curves: the curve of the metric, or one curve for each number in an object. NNI's SDK uses one name for all
// reports, so the curves of its objects have only the names of the members.
const addReport = (curves, { name, step, value }) => {
  const addPoint = (curve, number) => {
    if (!curves.has(curve)) curves.set(curve, []);
    curves.get(curve).push([step, number]);
  };
  if (Array.isArray(value)) return;
  if (value === null || typeof value !== "object") { addPoint(name, toFinite(value)); return; }
  const nonFinite = ["NaN", "Infinity", "-Infinity"];
  for (const [member, memberValue] of Object.entries(value)) {
    if (typeof memberValue !== "number" && !nonFinite.includes(memberValue)) continue;
    addPoint(member === "default" ? name : name === "default" ? member : `${name}.${member}`, toFinite(memberValue));
  }
};

// Leaves the page if its address now belongs to another experiment, whose trials must not be mixed with the shown ones.
const requireSameExperiment = (id) => {
  if (id === document.body.dataset.experiment) return;
  location.replace(`${base}/`);
  throw new Error(`this address now belongs to experiment ${id}`);
};

// Limits calls of `work` to one at a time, with a pause of at least `minPauseMs` between them, and longer after a slow one. All
// requests during a call or a pause become one call. The promise resolves after a call that started after the request. A request with
// `runNow` skips the pause.
const throttle = (minPauseMs, work) => {
  let pending = null, idle = Promise.resolve(), isUrgent = false, endPause = () => {};
  const runWork = async () => { try { await work(); } catch (error) { console.warn(error); } };
  const pause = (ms) => new Promise((resolve) => {
    endPause = resolve;
    setTimeout(resolve, isUrgent ? 0 : ms);
  });
  const scheduleRun = () => pending ??= idle.then(() => {
    pending = null;
    isUrgent = false;
    const startedAt = performance.now(), run = runWork();
    idle = run.then(() => pause(Math.max(minPauseMs, 5 * (performance.now() - startedAt))));
    return run;
  });
  const runNow = () => {
    isUrgent = true;
    endPause();
    return scheduleRun();
  };
  return Object.assign(scheduleRun, { runNow });
};

// The maximum number of parts that a request header names. The server sends the others again.
const MAX_NAMED_PARTS = 500;

// The delay before the page is fetched again after a failure, and the timeout of a fetch, in milliseconds.
const RETRY_DELAY_MS = 3000, REQUEST_TIMEOUT_MS = 60000;

let hasSkippedUpdates = false;
// Fetches the current page. Returns null on failure and schedules another attempt, because the event of the change is not repeated.
const fetchPage = async (parts) => {
  const headers = { accept: "text/html", "trial-manager-has": [...parts.keys()].join(" ") };
  try {
    const response = await fetch(location.href, { headers, signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    // The server sent another page, such as the login page.
    if (response.redirected) return null;
    if (response.ok) return new DOMParser().parseFromString(await response.text(), "text/html");
    console.warn(`${location.pathname}: ${response.status}`);
  } catch (error) { console.warn(error); }
  setTimeout(refresh, RETRY_DELAY_MS);
  return null;
};
// Refreshes the page. A result appears within a second of being printed: the agent and the manager each batch for a quarter of a second.
const refresh = throttle(400, async () => {
  hasSkippedUpdates = false;
  const parts = new Map([...document.querySelectorAll("[data-part]")].slice(0, MAX_NAMED_PARTS).map((part) => [part.dataset.part, part]));
  const newPage = await fetchPage(parts);
  if (!newPage) return;
  requireSameExperiment(newPage.body.dataset.experiment);
  for (const element of document.querySelectorAll("[data-live]")) {
    const replacement = newPage.getElementById(element.id);
    if (!replacement) continue;
    // An element that the user is using stays as it is.
    const isInUse = element.contains(document.activeElement) || (getSelection().type === "Range" && element.contains(getSelection().anchorNode));
    const isUnchanged = replacement.dataset.part && replacement.dataset.part === element.dataset.part;
    if (isInUse) delete replacement.dataset.part;
    hasSkippedUpdates ||= isInUse && !isUnchanged;
    element.hidden = replacement.hidden;
    Object.assign(element.dataset, replacement.dataset);
    if (isInUse || isUnchanged) continue;
    const openStates = [...element.querySelectorAll("details")].map((details) => details.open);
    const scrollOffsets = [...element.querySelectorAll(".scroll")].map((scroller) => scroller.scrollLeft);
    for (const placeholder of replacement.querySelectorAll("[data-part]:empty")) {
      const knownPart = parts.get(placeholder.dataset.part);
      if (knownPart) placeholder.replaceWith(knownPart);
    }
    element.replaceChildren(...replacement.childNodes);
    showSelection();
    element.querySelectorAll("details").forEach((details, index) => { details.open = openStates[index] ?? details.open; });
    element.querySelectorAll(".scroll").forEach((scroller, index) => { scroller.scrollLeft = scrollOffsets[index] ?? 0; });
  }
});

// Updates the skipped elements once the user has left them.
document.addEventListener("focusout", () => { if (hasSkippedUpdates) refresh(); });
document.addEventListener("selectionchange", () => { if (hasSkippedUpdates && getSelection().type !== "Range") refresh(); });

// Follows a stream of events, from `firstEventId` on if given. A hidden page closes the stream, because a browser opens only six connections to
// a manager and the seventh page would wait forever. The page continues where it stopped when it is visible again.
const LOST_MESSAGE = "The connection to the manager is lost. This page may be out of date.";
const ENDED_MESSAGE = "The manager has exited. This page shows the state at that time.";
const connectEvents = (path, firstEventId, listeners) => {
  const showConnectionMessage = (text) => { getElement("connection").textContent = text; };
  let source = null, lastEventId = firstEventId, hasEnded = false, reconnectTimer = null, errorMessage = LOST_MESSAGE;
  const scheduleReconnect = () => { reconnectTimer ??= setTimeout(() => { reconnectTimer = null; reconnect(); refresh(); }, 3000); };
  const openSource = () => {
    const url = lastEventId === undefined ? path : `${path}?after=${encodeURIComponent(lastEventId)}`;
    const openedSource = source = new EventSource(base + url);
    source.onopen = () => { errorMessage = LOST_MESSAGE; showConnectionMessage(""); };
    source.onerror = () => {
      if (hasEnded) return;
      showConnectionMessage(errorMessage);
      // The browser reconnects by itself, unless a proxy of a stopped manager or the manager of another experiment answered.
      if (source?.readyState === EventSource.CLOSED) scheduleReconnect();
    };
    for (const [event, listener] of Object.entries(listeners)) {
      source.addEventListener(event, async (message) => {
        lastEventId = message.lastEventId || lastEventId;
        const data = JSON.parse(message.data);
        if (event === "experiment") requireSameExperiment(data.id);
        if (event === "end") hasEnded = true;
        const handled = listener(data);
        if (event !== "end") return;
        // The exiting manager waits for the pages that received this event. They refresh once more, then disconnect.
        await handled;
        openedSource.close();
        if (path !== EVENTS_PATH) return;
        // Another manager may continue the experiment.
        hasEnded = false;
        errorMessage = ENDED_MESSAGE;
        showConnectionMessage(errorMessage);
        scheduleReconnect();
      });
    }
  };
  const reconnect = () => {
    if (hasEnded) return;
    source?.close();
    source = null;
    if (!document.hidden) openSource();
  };
  document.addEventListener("visibilitychange", reconnect);
  reconnect();
};

const EVENTS_PATH = "/api/v1/events";
// An exiting manager waits only for a moment, so the last refresh does not wait.
const followExperiment = (firstEventId, listeners) => connectEvents(EVENTS_PATH, firstEventId, { experiment: () => {}, ...listeners, end: refresh.runNow });

// Refreshes values that change without events, such as the duration of a running trial.
const refreshPeriodically = () => setInterval(() => { if (!document.hidden && getElement("connection").textContent === "") refresh(); }, 15000);

// ---- the overview -------------------------------------------------------------------------------------

const showOverview = async () => {
  const { drawSearch } = await import("./plots-search.js");
  const { points, updatePlots } = await drawSearch(fetchJson);
  const schedulePlotUpdate = throttle(1000, async () => updatePlots());
  refreshPeriodically();
  followExperiment(points.change, {
    trial: (trial) => {
      recordTrial(points, trial);
      schedulePlotUpdate();
      refresh();
    },
    experiment: refresh,
  });
};

// ---- the plots ----------------------------------------------------------------------------------------

const showPlots = async () => {
  const { drawPlots } = await import("./plots.js");
  await drawPlots({ fetchJson, throttle, followExperiment, refreshPeriodically, refresh });
};

// ---- one trial ----------------------------------------------------------------------------------------

// The maximum number of curves in the chart of a trial.
const MAX_CURVES = 24;
// The maximum number of rows in the table of its results.
const MAX_TABLE_ROWS = 1000;

const showTrial = async () => {
  const { trial: id, after: firstEventId } = getElement("summary").dataset, goals = JSON.parse(getElement("summary").dataset.goals ?? "[]");
  const apiPath = `/api/v1/trials/${encodeURIComponent(id)}`;
  let curves = new Map(), samples = [], lastReport = -1, lastSample = -1;
  const addReports = (metrics) => {
    for (const metric of metrics) {
      if (metric.seq <= lastReport) continue;
      lastReport = metric.seq;
      if (metric.type === "intermediate") addReport(curves, metric);
    }
  };
  // Adds reports to the table of the curves, and removes the oldest rows if it becomes too long.
  const tableBody = getElement("results").querySelector("tbody");
  const listReports = (metrics) => {
    for (const { name, type, step, value, observed_at_ms: observedAtMs } of metrics) {
      const row = tableBody.insertRow();
      const formatted = typeof value === "number" ? formatNumber(value) : typeof value === "string" ? value : JSON.stringify(value);
      for (const text of [name === "default" ? "result" : name, type === "final" ? "final" : String(step), formatted, formatTime(observedAtMs / 1000)]) row.insertCell().textContent = sanitiseText(text);
      row.cells[1].className = row.cells[2].className = "number";
    }
    while (tableBody.rows.length > MAX_TABLE_ROWS) tableBody.deleteRow(0);
    getElement("results").hidden = tableBody.rows.length === 0;
  };
  const addSamples = (newSamples) => {
    for (const sample of newSamples) if (sample.seq > lastSample) { lastSample = sample.seq; samples.push(sample); }
    if (samples.length > 4000) samples = samples.filter((_, index) => index % 2 === 0);
  };
  const hasEnded = () => "ended" in getElement("summary").dataset;
  const drawCharts = throttle(250, async () => {
    // The metric of the objective comes first. Other curves are hidden until the user shows them, unless that metric has no curve.
    const objectiveMetric = getElement("summary").dataset.metric;
    // With several objectives, each has its own chart, because metrics such as loss and latency cannot share an axis.
    const goalMetrics = goals.map((name, index) => index === 0 && !curves.has(name) ? objectiveMetric : name);
    // A single value is no curve. The table contains it.
    const isDrawn = (name) => curves.has(name) && (curves.get(name).length > 1 || !hasEnded());
    goalMetrics.forEach((name, index) => {
      const figure = findChart(`goal-${index}`), curve = curves.get(name);
      figure.hidden = !isDrawn(name);
      if (!figure.hidden) draw(figure, [{ label: formatMetricName(goals[index]), stroke: chooseColour(index), width: 2, spanGaps: true }], joinCurves([curve]), { x: "step", y: formatMetricName(goals[index]) });
    });
    const otherMetrics = [...curves.keys()].filter((name) => !goalMetrics.includes(name) && isDrawn(name));
    findChart("metrics").hidden = goalMetrics.some(isDrawn) && otherMetrics.length === 0;
    const showsAll = !otherMetrics.includes(objectiveMetric);
    const names = otherMetrics.sort((a, b) => (b === objectiveMetric) - (a === objectiveMetric)).slice(0, MAX_CURVES);
    getElement("curves-hint").hidden = curves.size === 0;
    getElement("curves-click").hidden = otherMetrics.length < 2;
    const hiddenCount = otherMetrics.length - names.length;
    getElement("curves-left").textContent = hiddenCount ? `${hiddenCount} more metrics are in the table and in the API.` : "";
    const series = names.map((name, index) => ({ label: formatMetricName(name), stroke: chooseColour(index), dash: chooseDash(index), width: 2, spanGaps: true, show: showsAll ? index < 8 : name === objectiveMetric }));
    draw(findChart("metrics"), series, joinCurves(names.map((name) => curves.get(name))), { x: "step", empty: curves.size ? "Each metric has a single value, which is in the table." : hasEnded() ? "This trial reported no intermediate results." : "No intermediate results yet." });
    // A trial of less than a second has no samples.
    findChart("memory").closest("section").hidden = hasEnded() && samples.length === 0;
    const times = samples.map((sample) => sample.observed_at_ms / 1000);
    const columnOf = (read) => samples.map(({ sample }) => read(sample) ?? null);
    const drawSamples = (name, kind, y, columns) => {
      const figure = findChart(name);
      const presentColumns = columns.filter(([, column]) => column.some((value) => value !== null));
      // The charts of GPUs are hidden on machines without GPUs.
      figure.hidden = presentColumns.length === 0 && name !== "memory";
      const lines = presentColumns.map(([title], index) => ({ label: title, stroke: chooseColour(index), width: 1.5, spanGaps: true }));
      const data = presentColumns.length ? [times, ...presentColumns.map(([, column]) => column)] : [[]];
      draw(figure, lines, data, { x: `time (${timeZoneName})`, y, kind, time: true, empty: hasEnded() ? "This trial has no machine samples." : "No machine samples yet." });
    };
    const gpuCount = Math.max(0, ...samples.map(({ sample }) => sample.gpus?.length ?? 0));
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
  });
  const fetchHistory = async () => {
    const [metrics, machine] = await Promise.all([fetchJson(`${apiPath}/metrics?points=2000`), fetchJson(`${apiPath}/samples?points=1000`)]);
    addReports(metrics.metrics);
    addSamples(machine.samples);
    drawCharts();
  };
  await fetchHistory();
  for (const label of document.querySelectorAll("label.follow")) label.hidden = "ended" in getElement("summary").dataset;
  const { createControls, splitOutput } = await import("./log.js");
  renderOutput = splitOutput;
  for (const stream of ["stdout", "stderr"]) { updateSearch[stream] = createControls(stream); const log = getElement(`log-${stream}`); log.scrollTop = log.scrollHeight; }
  // If an ended trial runs again, its page reloads.
  const reloadIfRerun = () => followExperiment(undefined, { trial: (trial) => { if (trial.id === id && trial.ended_at_ms === null) location.reload(); } });
  if ("ended" in getElement("summary").dataset) { reloadIfRerun(); return; }
  refreshPeriodically();
  let isFirstAttempt = firstEventId === undefined, showsPodLog = false;
  connectEvents(`${apiPath}/events`, firstEventId, {
    attempt: () => {
      if (isFirstAttempt && !showsPodLog) { isFirstAttempt = false; return; }
      isFirstAttempt = showsPodLog = false;
      curves = new Map(); samples = []; lastReport = -1; lastSample = -1;
      getElement("results").querySelector("tbody").replaceChildren();
      for (const stream of ["stdout", "stderr"]) { pendingOutput[stream] = []; getElement(`log-${stream}`).textContent = ""; }
      drawCharts();
    },
    metrics: (metrics) => { addReports(metrics); listReports(metrics); drawCharts(); },
    samples: (newSamples) => { addSamples(newSamples); drawCharts(); },
    log: ({ stream, text, times }) => queueOutput(stream, text, times),
    // If the agent of a trial is silent, its pod's log replaces both streams.
    unheard: ({ text, why }) => { showsPodLog = true; queueOutput("stdout", text ?? `${why}\n`); },
    trial: refresh,
    end: async () => { await refresh.runNow(); reloadIfRerun(); },
  });
};

// Appends output at most a few times per second, because each addition lays out the whole view again. The view drops its beginning
// above this number of characters.
const MAX_LOG_CHARACTERS = 256 * 1024;
const pendingOutput = { stdout: [], stderr: [] }, updateSearch = {};
let renderOutput = null;
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
      nodes.push(...renderOutput(text, times, startsLine));
      startsLine = text.endsWith("\n");
    }
    log.append(...nodes);
    updateSearch[stream]?.();
    let length = log.textContent.length;
    while (length > MAX_LOG_CHARACTERS && log.childNodes.length > 1) { length -= log.firstChild.textContent.length; log.firstChild.remove(); }
    if (document.querySelector(`[data-follow=${stream}]`)?.checked) log.scrollTop = log.scrollHeight;
  }
});

// ---- several trials -----------------------------------------------------------------------------------

const showTrialComparison = async () => {
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
  const { createTrialComparison } = await import("./plots-trials.js");
  const isBetter = comparedList.dataset.mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
  const drawMetric = createTrialComparison([...trials.values()], isBetter, base);
  const drawSelectedMetric = () => drawMetric(metricSelect.value);
  metricSelect.addEventListener("change", drawSelectedMetric);
  schedulePlotUpdate();
  const handleTrial = ({ id }) => { if (trials.has(id)) { changedTrials.add(id); schedulePlotUpdate(); refresh(); } };
  followExperiment(comparedList.dataset.change, { trial: handleTrial });
};

// The home of several experiments receives no events, so it refreshes periodically.
const showExperiments = async () => refreshPeriodically();
const showExperimentComparison = async () => {
  if (!getElement("comparison")) return;
  const { drawComparison } = await import("./plots-compare.js");
  await drawComparison({ fetchJson, throttle, refresh });
};

// Restores the columns of the last visit, unless the address names others.
const restoreColumns = () => {
  const key = `columns:${base}:${document.body.dataset.experiment}`;
  const query = new URLSearchParams(location.search), requestedColumns = query.getAll("column");
  document.querySelector("[data-usual]")?.addEventListener("click", () => accessStorage(() => localStorage.removeItem(key)));
  if (requestedColumns.length) { accessStorage(() => localStorage.setItem(key, JSON.stringify(requestedColumns))); return; }
  const storedColumns = JSON.parse(accessStorage(() => localStorage.getItem(key)) ?? "[]");
  if (storedColumns.length === 0) return;
  for (const column of storedColumns) query.append("column", column);
  location.replace(`${location.pathname}?${query}`);
};
const showTrialList = async () => {
  restoreColumns();
  refreshPeriodically();
  followExperiment(getElement("list").dataset.change, { trial: refresh });
};

addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
// Keeps the selected rows of a table when it is sorted, filtered or refreshed, until an action uses them. The form includes selected rows
// of other pages, and shows their number.
const selectionKey = (name) => `chosen:${base}:${document.body.dataset.experiment ?? ""}:${name}`;
const readSelection = (name) => new Set(JSON.parse(accessStorage(() => sessionStorage.getItem(selectionKey(name))) ?? "[]"));
const storeSelection = (name, selected) => accessStorage(() => sessionStorage.setItem(selectionKey(name), JSON.stringify([...selected])));
const showSelection = () => {
  for (const form of document.querySelectorAll("form[data-chosen]")) {
    const name = form.dataset.chosen, selected = readSelection(name);
    const boxes = [...document.querySelectorAll(`input[type=checkbox][name="${name}"][form="${form.id}"]`)];
    for (const box of boxes) box.checked = selected.has(box.value);
    for (const selectAll of document.querySelectorAll(`input[data-all="${name}"]`)) {
      const checkedCount = boxes.filter((box) => box.checked).length;
      selectAll.hidden = false;
      selectAll.checked = checkedCount > 0 && checkedCount === boxes.length;
      selectAll.indeterminate = checkedCount > 0 && checkedCount < boxes.length;
    }
    const valuesOnPage = new Set(boxes.map((box) => box.value)), otherPages = [...selected].filter((value) => !valuesOnPage.has(value));
    for (const input of form.querySelectorAll("input[data-away]")) input.remove();
    for (const value of otherPages) {
      const input = Object.assign(document.createElement("input"), { type: "hidden", name, value });
      input.dataset.away = "";
      form.append(input);
    }
    for (const button of form.querySelectorAll("button:not([type=button])")) button.disabled = selected.size === 0;
    const status = form.querySelector(".away");
    if (status && status.dataset.chosen !== `${selected.size} ${otherPages.length}`) {
      status.dataset.chosen = `${selected.size} ${otherPages.length}`;
      status.textContent = selected.size === 0 ? "" : `${selected.size} selected${otherPages.length ? `, ${otherPages.length} not on this page` : ""}`;
      const clearButton = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Clear" });
      clearButton.addEventListener("click", () => { storeSelection(name, []); showSelection(); });
      if (selected.size) status.append(" ", clearButton);
    }
  }
};
document.addEventListener("change", ({ target }) => {
  if (target.dataset.all) {
    const name = target.dataset.all, selected = readSelection(name);
    for (const { value } of document.querySelectorAll(`input[type=checkbox][name="${name}"]`)) if (target.checked) selected.add(value); else selected.delete(value);
    storeSelection(name, selected);
    showSelection();
    return;
  }
  const form = target.type === "checkbox" && target.form?.dataset.chosen === target.name ? target.form : null;
  if (!form) return;
  const selected = readSelection(target.name);
  if (target.checked) selected.add(target.value); else selected.delete(target.value);
  storeSelection(target.name, selected);
  showSelection();
});
// Clears the selection after an action on the selected rows.
addEventListener("submit", ({ target, submitter, defaultPrevented }) => {
  if (!defaultPrevented && target.dataset.chosen && submitter?.formMethod === "post") storeSelection(target.dataset.chosen, []);
});
addEventListener("pageshow", showSelection);
showSelection();

// Shows times in the browser's time zone: in the tooltip of "5 min ago", and wherever the page shows a time to the second.
const timestampFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const localiseTimes = () => {
  for (const time of document.querySelectorAll("time[datetime]:not([data-local])")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.dataset.local = "";
    time.title = `${timestampFormat.format(date)} (${time.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    const localTime = formatTime(date.getTime() / 1000);
    if (time.classList.contains("exact")) time.textContent = localTime;
    if (time.dataset.at !== undefined) time.dataset.at = localTime.slice(11);
  }
  for (const zoneName of document.querySelectorAll(".zone:not([data-local])")) { zoneName.dataset.local = ""; zoneName.textContent = timeZoneName; }
};
new MutationObserver(localiseTimes).observe(document.body, { childList: true, subtree: true });
localiseTimes();

const showPage = { overview: showOverview, plots: showPlots, list: showTrialList, trial: showTrial, compare: showTrialComparison, comparison: showExperimentComparison, experiments: showExperiments };
showPage[page]?.().catch((error) => { getElement("connection").textContent = `Cannot load the data of this page: ${error.message}`; });
