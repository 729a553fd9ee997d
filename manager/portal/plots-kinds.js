// The plots with a mark for each trial: optimisation history, slices by parameter, and histograms.

import { formatNumber, chooseColour, sanitiseText, timeZoneName } from "./charts.js";
import { findAxis, listParameters, formatParameter, STATE_NAMES } from "./points.js";
import { createRamp } from "./plots-surface.js";
import { createNumberScale, createParameterScale, padScale, formatDuration, createDurationScale, findRange, createTimeScale } from "./plots-scale.js";
import { base } from "./updates.js";

// The maximum number of parameters in the description of a trial.
const MAX_DESCRIBED_PARAMETERS = 12;

// The marks of states, which differ in shape as well as in colour.
const STATE_MARKS = { SUCCEEDED: { kind: "dot", colour: "accent" }, EARLY_STOPPED: { kind: "diamond", colour: "warn" }, FAILED: { kind: "cross", colour: "bad" }, RUNNING: { kind: "ring", colour: "good" } };
const OTHER_MARK = { kind: "cross", colour: "quiet" };
const chooseMark = (state) => STATE_MARKS[state] ?? OTHER_MARK;
const createLegend = (states) => [...Object.keys(STATE_MARKS), ...states].filter((state, index, allStates) => states.includes(state) && allStates.indexOf(state) === index && state !== "WAITING").map((state) => ({ label: STATE_NAMES[state] ?? state, ...chooseMark(state) }));

// `points.base` is the path of the experiment's pages, if the page is not one of them.
const formatTrialAddress = (points, row) => `${points.base ?? base}/trials/${encodeURIComponent(points.id[row])}`;
// Describes a trial: number and state, result, parameters.
const describeTrial = (points, objective, row) => {
  const { state } = points, value = objective.values[row], latest = objective.latest?.[row];
  const result = value !== null ? `${objective.name}: ${formatNumber(value, 6)}` : latest !== null && latest !== undefined ? `latest ${objective.name}: ${formatNumber(latest, 6)}` : points.cause?.[row] ? `cause: ${points.cause[row]}` : "no result";
  const names = listParameters(points).filter((name) => points.parameters[name][row] !== null);
  const lines = names.slice(0, MAX_DESCRIBED_PARAMETERS).map((name) => `${sanitiseText(name)}: ${typeof points.parameters[name][row] === "number" ? formatNumber(points.parameters[name][row], 6) : formatParameter(points.parameters[name][row])}`);
  const host = points.host?.[row] ? [`on ${sanitiseText(points.host[row])}${points.attempts[row] > 1 ? `, attempt ${points.attempts[row]}` : ""}`] : [];
  return [`Trial ${points.sequence[row]} · ${STATE_NAMES[state[row]] ?? state[row]}`, result, ...lines, ...names.length > MAX_DESCRIBED_PARAMETERS ? [`and ${names.length - MAX_DESCRIBED_PARAMETERS} more`] : [], ...host];
};
const createTrialTable = (points, objective, rows) => (maxRows) => {
  const names = listParameters(points).slice(0, MAX_DESCRIBED_PARAMETERS);
  return {
    head: ["Trial", "State", objective.name, ...names.map(sanitiseText)],
    rows: rows.slice(0, maxRows).map((row) => [points.sequence[row], STATE_NAMES[points.state[row]], formatNumber(objective.values[row] ?? objective.latest?.[row] ?? NaN, 6).replace("NaN", "–"), ...names.map((name) => { const value = points.parameters[name][row]; return value === null ? "" : typeof value === "number" ? formatNumber(value, 5) : formatParameter(value); })]),
  };
};

// Draws all marks of the same look together, so that thousands of marks need few strokes.
const drawMarks = (surface, box, marks, size, alpha) => {
  for (const { kind, colour, marks: marksOfKind } of marks) {
    const xs = new Float32Array(marksOfKind.length), ys = new Float32Array(marksOfKind.length);
    marksOfKind.forEach((mark, index) => { xs[index] = box.px(box.panel.xs[mark]); ys[index] = box.py(box.panel.ys[mark]); });
    surface.drawMarks(kind, xs, ys, kind === "dot" ? size : size + 2, colour, alpha);
  }
};
const chooseMarkSize = (count, factor) => (count > 4000 ? 3 : count > 800 ? 4.5 : 7) * factor;
const NO_RESULT = "Nothing to show yet: no trial has a numeric result.";

// Returns the results that are better than all before them, in the order of their places, among the trials `rows`.
const findImprovements = ({ counts, values, better }, rows, locate) => {
  const results = counts ?? values, improvements = [];
  for (const row of rows.filter((row) => results[row] !== null).sort((a, b) => locate(a) - locate(b))) {
    if (improvements.length === 0 || better(results[row], improvements.at(-1).value)) improvements.push({ row, value: results[row] });
  }
  return improvements;
};

// ---- optimisation history ----
// `by` is `number`, `started` or `ended`. `log` makes the axis of results logarithmic.
const createHistory = (points, objective, { by, log }) => {
  const valueOf = (row) => objective.values[row] ?? objective.latest?.[row] ?? null;
  // Running trials are placed at the latest known time.
  const latestTime = by === "ended" ? points.started.reduce((latest, time, row) => Math.max(latest, time ?? 0, points.ended[row] ?? 0), 0) : 0;
  const locate = (row) => by === "number" ? points.sequence[row] : by === "started" ? points.started[row] ?? null : points.ended[row] ?? (points.state[row] === "RUNNING" ? latestTime : null);
  const rows = points.id.map((_, row) => row).filter((row) => points.state[row] !== "WAITING" && locate(row) !== null);
  const rowsWithResult = rows.filter((row) => valueOf(row) !== null);
  if (rowsWithResult.length === 0) return { panels: [], empty: NO_RESULT };
  const positive = rowsWithResult.every((row) => valueOf(row) > 0);
  const [low, high] = findRange(rowsWithResult.map(valueOf));
  const [from, to] = findRange(rows.map(locate));
  const fullScale = by === "number" ? createNumberScale(from, Math.max(to, from + 1), { whole: true, format: (value) => Number.isInteger(value) && value >= 0 ? value.toLocaleString("en") : "" }) : createTimeScale(from, to > from ? to : from + 1000);
  const x = fullScale.zoomTo(-0.012, 1.012);
  const y = padScale(createNumberScale(low, high, { log: log && positive }), 0.06);
  // Trials without a finite result are placed at the edge of the worst results.
  const [edge, edgePosition] = objective.better(1, 0) ? ["lower", 0.012] : ["upper", 0.988];
  const xs = Float64Array.from(rows, (row) => x.toPosition(locate(row)));
  const ys = Float64Array.from(rows, (row) => valueOf(row) === null ? edgePosition : y.toPosition(valueOf(row)));
  const groups = Map.groupBy ? Map.groupBy(rows.keys(), (mark) => points.state[rows[mark]]) : rows.reduce((map, row, mark) => map.set(points.state[row], [...map.get(points.state[row]) ?? [], mark]), new Map());
  const best = findImprovements(objective, rows, locate);
  const steps = best.flatMap(({ row, value }, index) => [...index ? [x.toPosition(locate(row)), y.toPosition(best[index - 1].value)] : [], x.toPosition(locate(row)), y.toPosition(value)]);
  if (best.length) steps.push(1, y.toPosition(best.at(-1).value));
  const paint = (surface, box, colours) => {
    const size = chooseMarkSize(rows.length, box.height > 600 ? 1.2 : 1);
    const order = ["SUCCEEDED", ...[...groups.keys()].filter((state) => state !== "SUCCEEDED")];
    const marks = order.filter((state) => groups.has(state)).map((state) => ({ ...chooseMark(state), colour: colours[chooseMark(state).colour], marks: [...groups.get(state)] }));
    drawMarks(surface, box, marks, size, rows.length > 800 ? 0.55 : 0.8);
    surface.drawLine(steps.map((part, index) => index % 2 ? box.py(part) : box.px(part)), { stroke: colours.text, width: 2 });
  };
  const order = [...rows].sort((a, b) => points.sequence[b] - points.sequence[a]);
  const label = { number: "trial", started: `start (${timeZoneName})`, ended: `end (${timeZoneName})` }[by];
  const panel = { x, y, xs, ys, labels: [label, `${objective.name}${y.log ? " (log)" : ""}`], paint, describe: (mark) => describeTrial(points, objective, rows[mark]), address: (mark) => formatTrialAddress(points, rows[mark]) };
  return {
    panels: [panel], legend: [...createLegend([...groups.keys()]), { label: objective.counts ? "best mean so far" : "best so far", kind: "line", colour: "text" }], table: createTrialTable(points, objective, order),
    hint: log && !positive ? "A logarithmic axis needs results above 0." : rows.length > rowsWithResult.length ? `Trials without a finite result are at the ${edge} edge.` : "",
  };
};

// ---- a slice for each parameter ----
// `names` are the parameters with a panel.
const createSlices = (points, objective, { names, log }) => {
  const rows = points.id.map((_, row) => row).filter((row) => objective.values[row] !== null || points.state[row] === "EARLY_STOPPED" && (objective.latest?.[row] ?? null) !== null);
  if (rows.length === 0) return { panels: [], empty: NO_RESULT };
  if (names.length === 0) return { panels: [], empty: "Select a parameter.", keepsControls: true };
  const valueOf = (row) => objective.values[row] ?? objective.latest[row];
  const positive = rows.every((row) => valueOf(row) > 0), [low, high] = findRange(rows.map(valueOf));
  const y = padScale(createNumberScale(low, high, { log: log && positive }), 0.06);
  const lastIndex = Math.max(1, points.id.length - 1);
  const panels = names.map((name) => {
    const column = points.parameters[name], panelRows = rows.filter((row) => column[row] !== null);
    const x = padScale(createParameterScale(panelRows.map((row) => column[row]), findAxis(points, name)));
    // Marks of the same option are spread sideways. The offset depends on the trial's number, so that it never changes.
    const spreadSideways = x.options ? (row) => ((points.sequence[row] * 0.618034) % 1 - 0.5) * 0.6 / x.options.length : () => 0;
    const xs = Float64Array.from(panelRows, (row) => x.toPosition(column[row]) + spreadSideways(row));
    const ys = Float64Array.from(panelRows, (row) => y.toPosition(valueOf(row)));
    const paint = (surface, box, colours) => {
      const { colours: steps, toIndex } = createRamp(colours, 8);
      const buckets = steps.map((colour) => ({ kind: "dot", colour, marks: [] }));
      const earlyStopped = { kind: "diamond", colour: colours.warn, marks: [] };
      panelRows.forEach((row, mark) => (objective.values[row] === null ? earlyStopped : buckets[toIndex(row / lastIndex)]).marks.push(mark));
      drawMarks(surface, box, [...buckets, earlyStopped], chooseMarkSize(panelRows.length, 0.9), 0.85);
    };
    return { x, y, xs, ys, labels: [`${sanitiseText(name)}${x.log ? " (log)" : ""}`, `${objective.name}${y.log ? " (log)" : ""}`], paint, describe: (mark) => describeTrial(points, objective, panelRows[mark]), address: (mark) => formatTrialAddress(points, panelRows[mark]) };
  });
  const hasEarlyStopped = rows.some((row) => objective.values[row] === null);
  return {
    panels, ramp: { low: "first", high: "last", label: "trial" }, legend: hasEarlyStopped ? createLegend(["EARLY_STOPPED"]) : [], table: createTrialTable(points, objective, rows),
  };
};

// ---- how long trials ran ----
const BAR_COUNT = 24;
// `by` is `state` or `cause`. `cause` shows only failed trials.
const createDurations = (points, { by = "state", log }) => {
  const byCause = by === "cause";
  const rows = points.id.map((_, row) => row).filter((row) => (!byCause || points.state[row] === "FAILED") && points.started[row] && points.ended[row] && points.ended[row] >= points.started[row]);
  if (rows.length === 0) return { panels: [], empty: `Nothing to show yet: no trial has ${byCause ? "failed after its start" : "ended"}.` };
  const durationOf = (row) => Math.max(1, points.ended[row] - points.started[row]);
  let [low, high] = findRange(rows.map(durationOf));
  if (low === high) [low, high] = [low * 0.9, high * 1.1];
  const x = createDurationScale(log ? low : 0, high * 1.0001, { log });
  const readKind = (row) => byCause ? points.cause?.[row] ?? "unknown" : points.state[row];
  const kinds = Map.groupBy ? Map.groupBy(rows, readKind) : rows.reduce((map, row) => map.set(readKind(row), [...map.get(readKind(row)) ?? [], row]), new Map());
  const rankOf = (kind) => byCause ? -kinds.get(kind).length : Object.keys(STATE_MARKS).indexOf(kind);
  const states = [...kinds.keys()].sort((a, b) => rankOf(a) - rankOf(b));
  const chooseKindColour = (kind) => byCause ? chooseColour(states.indexOf(kind)) : chooseMark(kind).colour, formatKind = (kind) => byCause ? sanitiseText(kind) : STATE_NAMES[kind];
  const counts = Array.from({ length: BAR_COUNT }, () => Object.fromEntries(states.map((state) => [state, 0])));
  for (const row of rows) counts[Math.min(BAR_COUNT - 1, Math.floor(x.toPosition(durationOf(row)) * BAR_COUNT))][readKind(row)] += 1;
  const totals = counts.map((bar) => states.reduce((sum, state) => sum + bar[state], 0));
  const y = createNumberScale(0, Math.max(...totals) * 1.05, { whole: true, format: (value) => Number.isInteger(value) ? value.toLocaleString("en") : "" });
  const locateBar = (box, index) => [box.px(index / BAR_COUNT) + 1, box.px((index + 1) / BAR_COUNT) - 1];
  const paint = (surface, box, colours) => counts.forEach((bar, index) => {
    const [left, right] = locateBar(box, index);
    let sum = 0;
    for (const state of states) {
      if (!bar[state]) continue;
      const top = box.py(y.toPosition(sum + bar[state])), bottom = box.py(y.toPosition(sum));
      surface.drawRect(left, top, Math.max(1, right - left), bottom - top, { fill: colours[chooseKindColour(state)] ?? chooseKindColour(state) });
      sum += bar[state];
    }
  });
  const visibleBars = counts.map((_, index) => index).filter((index) => totals[index] > 0);
  const limitsOf = (index) => [x.toValue(index / BAR_COUNT), x.toValue((index + 1) / BAR_COUNT)];
  const formatLimits = (index) => { const [from, to] = limitsOf(index); return `${formatDuration(from)} to ${formatDuration(to)}`; };
  const panel = {
    x, y, xs: Float64Array.from(visibleBars, (index) => (index + 0.5) / BAR_COUNT), ys: Float64Array.from(visibleBars, (index) => y.toPosition(totals[index])), labels: [`duration${log ? " (log)" : ""}`, byCause ? "failed trials" : "trials"], paint,
    highlight: (surface, box, colours, mark) => { const [left, right] = locateBar(box, visibleBars[mark]); surface.drawRect(left, box.py(y.toPosition(totals[visibleBars[mark]])), right - left, box.py(0) - box.py(y.toPosition(totals[visibleBars[mark]])), { stroke: colours.text, width: 2 }); },
    findMark: (box, px) => { const index = visibleBars.findIndex((bar) => { const [left, right] = locateBar(box, bar); return px >= left - 1 && px <= right + 1; }); return index < 0 ? null : index; },
    describe: (mark) => [formatLimits(visibleBars[mark]), ...states.filter((state) => counts[visibleBars[mark]][state]).map((state) => `${formatKind(state)}: ${counts[visibleBars[mark]][state]}`)],
  };
  const table = () => ({ head: ["Duration", ...states.map(formatKind)], rows: visibleBars.map((index) => [formatLimits(index), ...states.map((state) => counts[index][state])]) });
  return { panels: [panel], legend: states.map((state) => ({ label: formatKind(state), kind: "bar", colour: chooseKindColour(state) })), table };
};
export { drawMarks, createDurations, createHistory, findImprovements, createLegend, chooseMark, NO_RESULT, chooseMarkSize, createSlices, formatTrialAddress, createTrialTable, describeTrial };
