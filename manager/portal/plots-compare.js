// The plots of the comparison of experiments: their optimisation histories, and the intermediate results of their best trials.

import { metricNamed, named, short, tame } from "./charts.js";
import { check, figureOf, keys, lazily, lookOf, Plot, select, slide, titleOf } from "./plots-frame.js";
import { objectives, ready } from "./points.js";
import { curvePanel, directionOf, hintOf, NOT_POSITIVE, smoothed } from "./plots-curves.js";
import { improvements, NOTHING, sizeFor, trialAddress, trialTold } from "./plots-kinds.js";
import { numbers, roomy, span, spans, spread } from "./plots-scale.js";

// The columns of each experiment, and the number of its trials whose curves are fetched: one half are the best, the other half the newest.
const COLUMNS = "started,ended,latest,space", CURVES = 12;
const NO_LINE = "Select an experiment above.";
// The maximum number of panels of intermediate results.
const PANELS = 12;
// The time between two updates of experiments that run, in milliseconds.
const PERIOD = 15000;

// The colours are those of the tables. They depend on the place of an experiment among all compared ones.
const legendOf = (experiments) => experiments.map(({ name, index }) => ({ label: named(name), kind: "line", ...lookOf(index) }));
const toldOf = (one, at) => [`${named(one.name)} · trial ${one.points.sequence[at]}`, ...trialTold(one.points, one.objective, at).slice(1)];

// The horizontal axes of the histories. `at` is the position of a trial in the columns of its experiment.
const AXES = [
  { label: "trials", place: ({ points }, at) => points.sequence[at] + 1, until: ({ points }) => points.id.length, scale: (low, high, options) => numbers(low, high, { ...options, whole: true, written: (one) => Number.isInteger(one) ? one.toLocaleString("en") : "" }) },
  { label: "time since the start", place: ({ points, begun }, at) => points.ended[at] === null ? null : points.ended[at] - begun, until: ({ begun, until }) => until - begun, scale: spans },
];

// A panel with the history of each experiment. `show` is `best`, `results` or `both`.
const historyPanel = ({ label, place, until, scale }, experiments, { show, smoothing, log, logX }) => {
  const lines = experiments.map((one) => {
    const { index, objective: { values } } = one, where = (at) => place(one, at);
    const rows = values.map((_, at) => at).filter((at) => values[at] !== null && where(at) !== null && (!logX || where(at) > 0)).sort((a, b) => where(a) - where(b));
    // A trial can end after the experiment.
    const end = Math.max(until(one), rows.length ? where(rows.at(-1)) : 0);
    return { one, index, rows, where, best: improvements(one.objective, rows, where), smooth: smoothed(rows.map((at) => values[at]), smoothing), until: end };
  });
  const wantsBest = show !== "results", wantsAll = show !== "best";
  const marks = lines.flatMap((line) => wantsAll ? line.rows.map((at) => ({ line, at, value: line.one.objective.values[at] })) : line.best.map(({ at, value }) => ({ line, at, value })));
  const [low, high] = spread(marks.map(({ value }) => value)), positive = low > 0;
  const y = roomy(numbers(low, high, { log: log && positive }), 0.06);
  const first = logX ? Math.min(...marks.map(({ line, at }) => line.where(at))) : 0;
  const last = Math.max(first + 1, ...lines.map((line) => line.until));
  const x = scale(first, last, { log: logX });
  const paint = (surface, box, colours) => {
    const px = (place) => box.px(x.part(place)), py = (value) => box.py(y.part(value)), size = sizeFor(marks.length, 0.9);
    for (const line of lines) {
      const look = lookOf(line.index), style = { ...look, colour: colours[look.colour], stroke: colours[look.colour] };
      if (wantsAll) surface.marks("dot", Float32Array.from(line.rows, (at) => px(line.where(at))), Float32Array.from(line.rows, (at) => py(line.one.objective.values[at])), size, style.colour, smoothing || wantsBest ? 0.3 : 0.7);
      if (wantsAll && smoothing) surface.line(line.rows.flatMap((at, index) => [px(line.where(at)), py(line.smooth[index])]), style);
      if (!wantsBest || line.best.length === 0) continue;
      const corners = line.best.flatMap(({ at, value }, index) => [...index ? [px(line.where(at)), py(line.best[index - 1].value)] : [], px(line.where(at)), py(value)]);
      surface.line([...corners, px(line.until), py(line.best.at(-1).value)], style);
      surface.marks("dot", Float32Array.from(line.best, ({ at }) => px(line.where(at))), Float32Array.from(line.best, ({ value }) => py(value)), 6, style.colour);
    }
  };
  const metric = experiments[0].objective.name;
  return {
    x, y, positive, paint, labels: [`${label}${logX ? " (log)" : ""}`, `${tame(metric)}${y.log ? " (log)" : ""}`],
    xs: Float64Array.from(marks, ({ line, at }) => x.part(line.where(at))), ys: Float64Array.from(marks, ({ value }) => y.part(value)),
    tell: (mark) => { const { line, at } = marks[mark], ended = line.one.points.ended[at]; return [...toldOf(line.one, at), ...ended === null ? [] : [`${span(ended - line.one.begun)} after the start`]]; },
    address: (mark) => trialAddress(marks[mark].line.one.points, marks[mark].at),
  };
};

// The optimisation histories, over trials and over time.
const histories = (experiments, options) => {
  const known = experiments.filter(({ objective }) => objective.values.some((value) => value !== null));
  if (experiments.length === 0) return { panels: [], empty: NO_LINE };
  if (known.length === 0) return { panels: [], empty: NOTHING };
  const panels = AXES.map((axis) => historyPanel(axis, experiments, options));
  const rows = experiments.flatMap((one) => improvements(one.objective, one.points.sequence.map((_, at) => at), (at) => one.points.sequence[at])
    .map(({ at, value }) => [named(one.name), one.points.sequence[at], short(value, 6), one.points.ended[at] === null ? "" : span(one.points.ended[at] - one.begun)]));
  const table = (most) => ({ head: ["Experiment", "Trial", `Best ${tame(experiments[0].objective.name)}`, "Time since the start"], rows: rows.slice(0, most) });
  return { panels, legend: legendOf(experiments), table, hint: options.log && panels.some(({ positive }) => !positive) ? NOT_POSITIVE : "" };
};

// The intermediate results of the best `most` trials of each experiment. Trials without a result come last.
const bestCurves = (experiments, { most, ...options }) => {
  const names = [...new Set(experiments.flatMap(({ curves }) => curves.metrics.map(({ name }) => name)))].slice(0, PANELS);
  if (experiments.length === 0) return { panels: [], empty: NO_LINE };
  if (names.length === 0) return { panels: [], empty: "Nothing to show: no trial has reported an intermediate result." };
  const metricOf = ({ curves }, name) => curves.metrics.find((metric) => metric.name === name);
  const directions = names.map((name) => experiments.map((one) => metricOf(one, name) && directionOf([one.objective], metricOf(one, name))).find(Boolean) ?? null);
  const chosen = ({ points, objective: { values, better } }, metric) => {
    const place = new Map(points.sequence.map((sequence, at) => [sequence, at]));
    const rows = metric.curves.map((curve) => ({ ...curve, at: place.get(curve.sequence) })).filter(({ at }) => at !== undefined);
    const result = ({ at }) => values[at];
    return rows.sort((a, b) => (result(a) === null) - (result(b) === null) || (result(a) === null ? b.sequence - a.sequence : better(result(a), result(b)) ? -1 : better(result(b), result(a)) ? 1 : 0)).slice(0, most);
  };
  const panels = names.map((name, panel) => {
    const lines = experiments.flatMap((one) => metricOf(one, name) ? chosen(one, metricOf(one, name)).map(({ at, steps, values }, rank) => ({ index: one.index, rank, steps, raw: values, tell: () => toldOf(one, at), address: () => trialAddress(one.points, at) })) : []);
    const looks = (colours) => ({ index, rank }) => { const look = lookOf(index, rank ? 1.1 : 2); return { ...look, colour: colours[look.colour], alpha: rank ? 0.6 : 1 }; };
    return curvePanel(name, lines.reverse(), looks, { ...options, better: directions[panel], title: names.length > 1 ? metricNamed(name) : "" });
  });
  const table = (rows) => ({
    head: ["Metric", "Experiment", "Trial", "Steps", "First", "Last"],
    rows: names.flatMap((name) => experiments.flatMap((one) => metricOf(one, name) ? chosen(one, metricOf(one, name)).map(({ sequence, steps, values }) => [metricNamed(name), named(one.name), sequence, steps.length, short(values[0] ?? NaN, 5), short(values.at(-1) ?? NaN, 5)]) : [])).slice(0, rows),
  });
  return { panels, legend: legendOf(experiments), table, hint: hintOf(panels, directions, options) };
};

// `json` fetches, `paced` limits the rate of updates, and `refresh` fetches the page's tables again.
const show = async ({ json, paced, refresh }) => {
  const summary = document.getElementById("comparison"), base = document.body.dataset.base ?? "";
  const listed = () => JSON.parse(summary.dataset.experiments).map((one, index) => ({ ...one, index }));
  const bring = async (one) => {
    const points = ready(await json(`/e/${one.id}/api/v1/experiment/points?columns=${COLUMNS}`));
    points.base = `${base}/e/${one.id}`;
    return { ...one, points, objective: objectives(points, one.mode, one.metric)[0] };
  };
  let experiments = await Promise.all(listed().map(bring));

  const again = () => { past.zoomed.clear(); smoothing.hidden = showChoice.value === "best"; update(); };
  const [showing, showChoice] = select("Show", [["best", "best so far"], ["results", "results"], ["both", "results and best so far"]], again);
  const [smoothing, smoothingRange] = slide("Smoothing", 0.99, () => update());
  const [logX, logXBox] = check("log x", again), [logY, logYBox] = check("log y", again);
  smoothing.hidden = true;
  const [pastKeys, pastShown] = keys(experiments.map(({ name }) => name), again);
  const past = new Plot(figureOf("histories"), { name: "histories", title: titleOf("histories"), controls: [showing, smoothing, logX, logY], chooser: pastKeys });
  const update = () => past.set(() => histories(pastShown().map((at) => experiments[at]), { show: showChoice.value, smoothing: Number(smoothingRange.value), logX: logXBox.checked, log: logYBox.checked }));
  update();

  const curveAgain = () => { steps.plot.zoomed.clear(); softRange.disabled = bestBox.checked; steps.update(); };
  const [count, countChoice] = select("Trials", [["1", "the best"], ["3", "the best 3"], [String(CURVES), "the best and the newest"]], curveAgain);
  const [soft, softRange] = slide("Smoothing", 0.99, () => steps.update());
  const [best, bestBox] = check("best so far", curveAgain), [curveX, curveXBox] = check("log x", curveAgain), [curveY, curveYBox] = check("log y", curveAgain);
  let curves = null;
  const bringCurves = async () => { curves = await Promise.all(listed().map(({ id }) => json(`/e/${id}/api/v1/experiment/curves?points=200&trials=${CURVES}`))); };
  const [curveKeys, curveShown] = keys(experiments.map(({ name }) => name), curveAgain);
  const drawn = () => bestCurves(curveShown().map((at) => ({ ...experiments[at], curves: curves[at] })), { most: Number(countChoice.value), smoothing: Number(softRange.value), best: bestBox.checked, logX: curveXBox.checked, log: curveYBox.checked });
  const steps = lazily("best-curves", [count, soft, best, curveX, curveY], bringCurves, drawn, paced, curveKeys);

  // The home sends no events, so experiments that run are fetched again.
  const renewed = paced(PERIOD, async () => {
    await refresh();
    const next = listed();
    if (next.length !== experiments.length) { location.reload(); return; }
    experiments = await Promise.all(next.map((one, at) => one.runs || experiments[at].runs ? bring(one) : experiments[at]));
    update();
    steps.news();
  });
  setInterval(() => { if (!document.hidden && experiments.some(({ runs }) => runs)) renewed(); }, PERIOD);
};

export { show };
