// The plots page. It fetches the columns once, keeps them up to date, and draws each plot when it comes into view, the first one before
// all others.

import { check, element, figureOf, lazily, nearing, Plot, select, slide, titleOf } from "./plots-frame.js";
import { named, painted, redrawn } from "./charts.js";
import { parallel } from "./parallel.js";
import { objectives, parameterNames, ready, take } from "./points.js";
import { durations, history, slice } from "./plots-kinds.js";
import { contour } from "./plots-contour.js";
import { curves } from "./plots-curves.js";
import { pareto } from "./plots-pareto.js";
import { timeline } from "./plots-timeline.js";

const figure = (name) => document.querySelector(`[data-plot="${name}"]`);
const title = (name) => document.getElementById(`${name}-title`).textContent;
// `json` fetches, `paced` limits the rate of updates, and `follow` listens to events.
const show = async ({ json, paced, follow, tick, refresh }) => {
  const several = figureOf("pareto") !== null;
  // The page names the address, so that the browser loads the data together with the scripts.
  const { mode, name, points: address } = document.getElementById("summary").dataset;
  const points = ready(await json(address));
  const all = () => objectives(points, mode, document.getElementById("summary").dataset.name ?? name);
  const [which, whichChoice] = select("Objective", all().map((one, at) => [String(at), named(one.name)]), () => { past.plot.zoomed.clear(); for (const update of plots) update(); });
  const objective = () => all()[Number(whichChoice.value)];
  const plots = [];
  const add = (id, controls, model, settings = {}) => {
    const plot = new Plot(figureOf(id), { name: id, title: titleOf(id), controls, ...settings });
    const update = () => plot.set(model);
    plots.push(update);
    update();
    return { plot, update };
  };

  const [by, byChoice] = select("X", [["number", "number"], ["started", "start"], ["ended", "end"]], () => { past.plot.zoomed.clear(); past.update(); });
  const [pastLog, pastLogBox] = check("log y", () => { past.plot.zoomed.clear(); past.update(); });
  const past = add("history", [...several ? [which] : [], by, pastLog], () => history(points, objective(), { by: byChoice.value, log: pastLogBox.checked }));
  await painted();

  brushes(points, objective, plots);
  if (several) fronts(points, objective, add);

  const [sliceLog, sliceLogBox] = check("log y", () => slices.update());
  const slices = add("slice", [sliceLog], () => slice(points, objective(), { log: sliceLogBox.checked }));

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
  const steps = lazily("curves", [smoothing, curveBest, curveLogX, curveLog], async () => { bulk.curves = await json("/api/v1/experiment/curves?points=100"); }, drawnCurves, paced);
  plots.push(() => { if (bulk.curves) steps.update(); });
  const [rows, rowsChoice] = select("Rows", [["trial", "trials"], ["host", "machines"]], () => { gantt.plot.zoomed.clear(); gantt.update(); });
  const gantt = lazily("timeline", [rows], async () => { bulk.timeline = await json("/api/v1/experiment/timeline"); enterMachines(points, bulk.timeline); }, () => timeline(points, bulk.timeline, { by: rowsChoice.value }), paced);

  // The machines of trials cost as much as all other columns, so they come after the plots that show no machines.
  painted().then(gantt.load);
  const again = paced(1000, async () => { for (const update of plots) update(); });
  tick();
  follow(points.change, { trial: (trial) => { take(points, trial); again(); steps.news(); gantt.news(); refresh().then(() => { if (several) again(); }); }, experiment: refresh });
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

// The plot of the Pareto front. The page lists the trials on the front.
const fronts = (points, objective, add) => {
  const metrics = points.objectives.map(({ metric }) => [metric, named(metric)]);
  const again = () => { plane.plot.zoomed.clear(); plane.update(); };
  const [a, aChoice] = select("X", metrics, again), [b, bChoice] = select("Y", metrics, again);
  bChoice.value = metrics[1][0];
  const front = () => document.getElementById("front").dataset.front.split(" ").filter(Boolean).map(Number);
  const plane = add("pareto", [a, b], () => pareto(points, objective(), { a: aChoice.value, b: bChoice.value, front: front() }));
};

// The parallel coordinates. The address holds the ranges, and a link leads to the table of the trials within them.
const brushes = (points, objective, plots) => {
  const place = figureOf("parallel"), ranges = new Map();
  let pending = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const lines = () => {
    const { mode, name, values } = objective();
    const chosen = parallel(place, points, ranges, { better: mode, title: name, values, name: "parallel", heading: titleOf("parallel"), pending }, again);
    pending = {};
    return chosen;
  };
  let seen = false, stale = true;
  const again = () => {
    stale = !seen;
    if (stale) return;
    const { hash, filter } = lines() ?? {};
    if (hash !== undefined && location.hash.slice(1) !== hash) window.history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    link.hidden = !filter;
    link.href = `${document.body.dataset.base ?? ""}/trials?filter=${encodeURIComponent(filter ?? "")}`;
  };
  const link = element("a", { class: "brushed" }, "Show these trials in the table");
  place.after(link);
  redrawn(place, again);
  addEventListener("hashchange", () => { ranges.clear(); pending = Object.fromEntries(new URLSearchParams(location.hash.slice(1))); again(); });
  plots.push(again);
  nearing(place, (near) => { seen = near; if (seen && stale) again(); });
};

export { show };
