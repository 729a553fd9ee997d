// The plots page. It fetches the columns once, keeps them up to date, and draws each plot when it comes into view, the first one before
// all others.

import { check, choices, figureOf, lazily, select, slide } from "./plots-frame.js";
import { metricNamed, named, painted } from "./charts.js";
import { parameterNames, take } from "./points.js";
import { durations, slice } from "./plots-kinds.js";
import { bars, rowsOf } from "./plots-bars.js";
import { contour } from "./plots-contour.js";
import { curves } from "./plots-curves.js";
import { pareto } from "./plots-pareto.js";
import { search } from "./plots-search.js";
import { timeline } from "./plots-timeline.js";

// The number of parameters in the slice plot at first.
const PANELS = 24;
// The maximum number of metrics with curves, as in the manager.
const METRICS = 12;

// `json` fetches, `paced` limits the rate of updates, and `follow` listens to events.
const show = async ({ json, paced, follow, tick, refresh }) => {
  const several = figureOf("pareto") !== null;
  const { points, all, objective, add, plots, update } = await search(json);
  if (several) fronts(points, objective, add);

  tabled(objective, add);

  const [sliceLog, sliceLogBox] = check("log y", () => slices.update());
  const [sliceNames, sliceNamesOf] = choices("Parameters", PANELS, () => { slices.plot.zoomed.clear(); slices.update(); });
  const slices = add("slice", [sliceNames, sliceLog], () => slice(points, objective(), { names: sliceNamesOf(parameterNames(points)), log: sliceLogBox.checked }));

  const names = parameterNames(points);
  const [a, aChoice] = select("X", names.map((one) => [one, named(one)]), () => { field.plot.zoomed.clear(); field.update(); });
  const [b, bChoice] = select("Y", names.map((one) => [one, named(one)]), () => { field.plot.zoomed.clear(); field.update(); });
  if (names.length > 1) {
    // Start with the two most important parameters, which the server lists first.
    const rows = [...document.querySelectorAll("#importance meter")].map((one) => one.getAttribute("aria-label"));
    const [first = names[0], second] = rows.filter((one) => names.includes(one));
    aChoice.value = first;
    bChoice.value = second ?? names.find((one) => one !== first);
  }
  const field = add("contour", [a, b], () => contour(points, objective(), { a: aChoice.value, b: bChoice.value }), { high: 0.6 });

  const [longLog, longLogBox] = check("log x", () => { lengths.plot.zoomed.clear(); lengths.update(); });
  const [longBy, longByChoice] = select("Show", [["state", "all trials by state"], ["cause", "failures by cause"]], () => { lengths.plot.zoomed.clear(); lengths.update(); });
  const lengths = add("durations", [longBy, longLog], () => durations(points, { by: longByChoice.value, log: longLogBox.checked }), { high: 0.6 });

  const bulk = { curves: null, timeline: null };
  const [smoothing, smoothingRange] = slide("Smoothing", 0.99, () => steps.update());
  const curveAgain = () => { steps.plot.zoomed.clear(); smoothingRange.disabled = curveBestBox.checked; steps.update(); };
  const [curveBest, curveBestBox] = check("best so far", curveAgain);
  const [curveLogX, curveLogXBox] = check("log x", curveAgain);
  const [curveLog, curveLogBox] = check("log y", curveAgain);
  const drawnCurves = () => curves(points, all(), objective(), bulk.curves, { smoothing: Number(smoothingRange.value), best: curveBestBox.checked, logX: curveLogXBox.checked, log: curveLogBox.checked });
  const [curveCount, curveCountChoice] = select("Trials", [20, 50, 200, 1000].map((count) => [String(count), String(count)]), () => steps.news());
  curveCountChoice.value = "200";
  const [curveMetric, curveMetricChoice] = select("Metric", [["", "all"]], () => { steps.plot.zoomed.clear(); steps.news(); });
  curveMetric.hidden = true;
  const bringCurves = async () => {
    const metric = curveMetricChoice.value;
    bulk.curves = await json(`/api/v1/experiment/curves?${new URLSearchParams({ points: 100, trials: curveCountChoice.value, ...metric ? { metric } : {} })}`);
    const names = bulk.curves.names;
    if (curveMetricChoice.options.length !== names.length + 1) curveMetricChoice.replaceChildren(new Option(names.length > METRICS ? `the first ${METRICS}` : "all", ""), ...names.map((name) => new Option(metricNamed(name), name, false, name === metric)));
    curveMetric.hidden = names.length < 2;
  };
  const steps = lazily("curves", [curveCount, curveMetric, smoothing, curveBest, curveLogX, curveLog], bringCurves, drawnCurves, paced);
  plots.push(() => { if (bulk.curves) steps.update(); });
  const [rows, rowsChoice] = select("Rows", [["trial", "trials"], ["host", "machines"]], () => { gantt.plot.zoomed.clear(); gantt.update(); });
  const gantt = lazily("timeline", [rows], async () => { bulk.timeline = await json("/api/v1/experiment/timeline"); enterMachines(points, bulk.timeline); }, () => timeline(points, bulk.timeline, { by: rowsChoice.value }), paced);

  // The machines of trials cost as much as all other columns, so they come after the plots that show no machines.
  painted().then(gantt.load);
  const again = paced(1000, async () => update());
  tick();
  follow(points.change, { trial: (trial) => { take(points, trial); again(); steps.news(); gantt.news(); refresh().then(again); }, experiment: refresh });
};

// Adds the machine and the number of attempts of each trial, from the timeline of attempts.
const enterMachines = (points, { sequence, host, hosts }) => {
  const place = new Map(points.sequence.map((one, at) => [one, at]));
  points.host = new Array(points.id.length).fill(null);
  points.attempts = new Array(points.id.length).fill(0);
  sequence.forEach((one, row) => {
    const at = place.get(one);
    if (at === undefined) return;
    points.attempts[at] += 1;
    if (host[row] !== null) points.host[at] = hosts[host[row]];
  });
};

// The plots of tables that the page contains.
const tabled = (objective, add) => {
  const said = (id) => document.querySelector(`#${id} .hint`)?.textContent ?? "";
  const importance = () => document.querySelectorAll(`#importance :is([data-objective="${objective().at}"], div:not([data-objective])) > table tr`);
  add("importance-bars", [], () => bars(rowsOf(importance()), { label: "share", written: (value) => `${Math.round(100 * value)} %`, colour: "accent", hint: said("importance"), empty: said("importance") }));
  const failures = () => document.querySelectorAll("#causes tr");
  add("failures", [], () => bars(rowsOf(failures()), { label: "failed trials", written: (value) => Number.isInteger(value) ? String(value) : "", colour: "bad", hint: "", empty: said("causes") }));
};

// The plot of the Pareto front. The page lists the trials on the front.
const fronts = (points, objective, add) => {
  const metrics = points.objectives.map(({ metric }) => [metric, named(metric)]);
  const again = () => { plane.plot.zoomed.clear(); plane.update(); };
  const [a, aChoice] = select("X", metrics, again), [b, bChoice] = select("Y", metrics, again);
  bChoice.value = metrics[1][0];
  const front = () => document.getElementById("front").dataset.front.split(" ").filter(Boolean).map(Number);
  const plane = add("pareto", [a, b], () => pareto(points, objective(), { a: aChoice.value, b: bChoice.value, front: front() }));
};

export { show };
