// The plots with a mark for each trial: optimisation history, slices by parameter, and histograms.

import { short, stroke, tame, zone } from "./charts.js";
import { axisOf, parameterNames, said, WORDS } from "./points.js";
import { ramp } from "./plots-surface.js";
import { numbers, parameter, roomy, span, spans, spread, times } from "./plots-scale.js";

// The maximum number of parameters in the description of a trial.
const TOLD = 12;

// The marks of states, which differ in shape as well as in colour.
const LOOKS = { SUCCEEDED: { kind: "dot", colour: "accent" }, EARLY_STOPPED: { kind: "diamond", colour: "warn" }, FAILED: { kind: "cross", colour: "bad" }, RUNNING: { kind: "ring", colour: "good" } };
const AWAY = { kind: "cross", colour: "quiet" };
const lookOf = (state) => LOOKS[state] ?? AWAY;
const legendOf = (states) => [...Object.keys(LOOKS), ...states].filter((state, at, all) => states.includes(state) && all.indexOf(state) === at && state !== "WAITING").map((state) => ({ label: WORDS[state] ?? state, ...lookOf(state) }));

// `points.base` is the path of the experiment's pages, if the page is not one of them.
const trialAddress = (points, at) => `${points.base ?? document.body.dataset.base ?? ""}/trials/${encodeURIComponent(points.id[at])}`;
// Describes a trial: number and state, result, parameters.
const trialTold = (points, objective, at) => {
  const { state } = points, value = objective.values[at], latest = objective.latest?.[at];
  const result = value !== null ? `${objective.name}: ${short(value, 6)}` : latest !== null && latest !== undefined ? `latest ${objective.name}: ${short(latest, 6)}` : points.cause?.[at] ? `cause: ${points.cause[at]}` : "no result";
  const names = parameterNames(points).filter((name) => points.parameters[name][at] !== null);
  const lines = names.slice(0, TOLD).map((name) => `${tame(name)}: ${typeof points.parameters[name][at] === "number" ? short(points.parameters[name][at], 6) : said(points.parameters[name][at])}`);
  const host = points.host?.[at] ? [`on ${tame(points.host[at])}${points.attempts[at] > 1 ? `, attempt ${points.attempts[at]}` : ""}`] : [];
  return [`Trial ${points.sequence[at]} · ${WORDS[state[at]] ?? state[at]}`, result, ...lines, ...names.length > TOLD ? [`and ${names.length - TOLD} more`] : [], ...host];
};
const trialTable = (points, objective, rows) => (most) => {
  const names = parameterNames(points).slice(0, TOLD);
  return {
    head: ["Trial", "State", objective.name, ...names.map(tame)],
    rows: rows.slice(0, most).map((at) => [points.sequence[at], WORDS[points.state[at]], short(objective.values[at] ?? objective.latest?.[at] ?? NaN, 6).replace("NaN", "–"), ...names.map((name) => { const value = points.parameters[name][at]; return value === null ? "" : typeof value === "number" ? short(value, 5) : said(value); })]),
  };
};

// Draws all marks of the same look together, so that thousands of marks need few strokes.
const drawMarks = (surface, box, marks, size, alpha) => {
  for (const { kind, colour, at } of marks) {
    const xs = new Float32Array(at.length), ys = new Float32Array(at.length);
    at.forEach((mark, index) => { xs[index] = box.px(box.panel.xs[mark]); ys[index] = box.py(box.panel.ys[mark]); });
    surface.marks(kind, xs, ys, kind === "dot" ? size : size + 2, colour, alpha);
  }
};
const sizeFor = (count, one) => (count > 4000 ? 3 : count > 800 ? 4.5 : 7) * one;
const NOTHING = "Nothing to show yet: no trial has a numeric result.";

// Returns the results that are better than all before them, in the order of their places, among the trials `rows`.
const improvements = ({ counts, values, better }, rows, place) => {
  const results = counts ?? values, found = [];
  for (const at of rows.filter((one) => results[one] !== null).sort((a, b) => place(a) - place(b))) {
    if (found.length === 0 || better(results[at], found.at(-1).value)) found.push({ at, value: results[at] });
  }
  return found;
};

// ---- optimisation history ----
// `by` is `number`, `started` or `ended`. `log` makes the axis of results logarithmic.
const history = (points, objective, { by, log }) => {
  const value = (at) => objective.values[at] ?? objective.latest?.[at] ?? null;
  // Running trials are placed at the latest known time.
  const newest = by === "ended" ? points.started.reduce((most, time, at) => Math.max(most, time ?? 0, points.ended[at] ?? 0), 0) : 0;
  const place = (at) => by === "number" ? points.sequence[at] : by === "started" ? points.started[at] ?? null : points.ended[at] ?? (points.state[at] === "RUNNING" ? newest : null);
  const all = points.id.map((_, at) => at).filter((at) => points.state[at] !== "WAITING" && place(at) !== null);
  const known = all.filter((at) => value(at) !== null);
  if (known.length === 0) return { panels: [], empty: NOTHING };
  const positive = known.every((at) => value(at) > 0);
  const [low, high] = spread(known.map(value));
  const [from, to] = spread(all.map(place));
  const plain = by === "number" ? numbers(from, Math.max(to, from + 1), { whole: true, written: (one) => Number.isInteger(one) && one >= 0 ? one.toLocaleString("en") : "" }) : times(from, to > from ? to : from + 1000);
  const x = plain.within(-0.012, 1.012);
  const y = roomy(numbers(low, high, { log: log && positive }), 0.06);
  // Trials without a result are placed at the lower edge.
  const xs = Float64Array.from(all, (at) => x.part(place(at)));
  const ys = Float64Array.from(all, (at) => value(at) === null ? 0.012 : y.part(value(at)));
  const groups = Map.groupBy ? Map.groupBy(all.keys(), (mark) => points.state[all[mark]]) : all.reduce((map, at, mark) => map.set(points.state[at], [...map.get(points.state[at]) ?? [], mark]), new Map());
  const best = improvements(objective, all, place);
  const steps = best.flatMap(({ at, value }, index) => [...index ? [x.part(place(at)), y.part(best[index - 1].value)] : [], x.part(place(at)), y.part(value)]);
  if (best.length) steps.push(1, y.part(best.at(-1).value));
  const paint = (surface, box, colours) => {
    const size = sizeFor(all.length, box.height > 600 ? 1.2 : 1);
    const order = ["SUCCEEDED", ...[...groups.keys()].filter((state) => state !== "SUCCEEDED")];
    const marks = order.filter((state) => groups.has(state)).map((state) => ({ ...lookOf(state), colour: colours[lookOf(state).colour], at: [...groups.get(state)] }));
    drawMarks(surface, box, marks, size, all.length > 800 ? 0.55 : 0.8);
    surface.line(steps.map((part, at) => at % 2 ? box.py(part) : box.px(part)), { stroke: colours.text, width: 2 });
  };
  const order = [...all].sort((a, b) => points.sequence[b] - points.sequence[a]);
  const label = { number: "trial", started: `start (${zone})`, ended: `end (${zone})` }[by];
  const panel = { x, y, xs, ys, labels: [label, `${objective.name}${y.log ? " (log)" : ""}`], paint, tell: (mark) => trialTold(points, objective, all[mark]), address: (mark) => trialAddress(points, all[mark]) };
  return {
    panels: [panel], legend: [...legendOf([...groups.keys()]), { label: objective.counts ? "best mean so far" : "best so far", kind: "line", colour: "text" }], table: trialTable(points, objective, order),
    hint: log && !positive ? "A logarithmic axis needs results above 0." : all.length > known.length ? "Trials without a result are at the lower edge." : "",
  };
};

// ---- a slice for each parameter ----
// `names` are the parameters with a panel.
const slice = (points, objective, { names, log }) => {
  const rows = points.id.map((_, at) => at).filter((at) => objective.values[at] !== null || points.state[at] === "EARLY_STOPPED" && (objective.latest?.[at] ?? null) !== null);
  if (rows.length === 0) return { panels: [], empty: NOTHING };
  if (names.length === 0) return { panels: [], empty: "Select a parameter.", choosing: true };
  const value = (at) => objective.values[at] ?? objective.latest[at];
  const positive = rows.every((at) => value(at) > 0), [low, high] = spread(rows.map(value));
  const y = roomy(numbers(low, high, { log: log && positive }), 0.06);
  const last = Math.max(1, points.id.length - 1);
  const panels = names.map((name) => {
    const column = points.parameters[name], own = rows.filter((at) => column[at] !== null);
    const x = roomy(parameter(own.map((at) => column[at]), axisOf(points, name)));
    // Marks of the same option are spread sideways. The offset depends on the trial's number, so that it never changes.
    const aside = x.options ? (at) => ((points.sequence[at] * 0.618034) % 1 - 0.5) * 0.6 / x.options.length : () => 0;
    const xs = Float64Array.from(own, (at) => x.part(column[at]) + aside(at));
    const ys = Float64Array.from(own, (at) => y.part(value(at)));
    const paint = (surface, box, colours) => {
      const { colours: steps, step } = ramp(colours, 8);
      const buckets = steps.map((colour) => ({ kind: "dot", colour, at: [] }));
      const early = { kind: "diamond", colour: colours.warn, at: [] };
      own.forEach((at, mark) => (objective.values[at] === null ? early : buckets[step(at / last)]).at.push(mark));
      drawMarks(surface, box, [...buckets, early], sizeFor(own.length, 0.9), 0.85);
    };
    return { x, y, xs, ys, labels: [`${tame(name)}${x.log ? " (log)" : ""}`, `${objective.name}${y.log ? " (log)" : ""}`], paint, tell: (mark) => trialTold(points, objective, own[mark]), address: (mark) => trialAddress(points, own[mark]) };
  });
  const early = rows.some((at) => objective.values[at] === null);
  return {
    panels, ramp: { low: "first", high: "last", label: "trial" }, legend: early ? legendOf(["EARLY_STOPPED"]) : [], table: trialTable(points, objective, rows),
  };
};

// ---- how long trials ran ----
const BARS = 24;
// `by` is `state` or `cause`. `cause` shows only failed trials.
const durations = (points, { by = "state", log }) => {
  const causes = by === "cause";
  const rows = points.id.map((_, at) => at).filter((at) => (!causes || points.state[at] === "FAILED") && points.started[at] && points.ended[at] && points.ended[at] >= points.started[at]);
  if (rows.length === 0) return { panels: [], empty: `Nothing to show yet: no trial has ${causes ? "failed after its start" : "ended"}.` };
  const length = (at) => Math.max(1, points.ended[at] - points.started[at]);
  let [low, high] = spread(rows.map(length));
  if (low === high) [low, high] = [low * 0.9, high * 1.1];
  const x = spans(log ? low : 0, high * 1.0001, { log });
  const kindOf = (at) => causes ? points.cause?.[at] ?? "unknown" : points.state[at];
  const kinds = Map.groupBy ? Map.groupBy(rows, kindOf) : rows.reduce((map, at) => map.set(kindOf(at), [...map.get(kindOf(at)) ?? [], at]), new Map());
  const rank = (kind) => causes ? -kinds.get(kind).length : Object.keys(LOOKS).indexOf(kind);
  const states = [...kinds.keys()].sort((a, b) => rank(a) - rank(b));
  const colourOf = (kind) => causes ? stroke(states.indexOf(kind)) : lookOf(kind).colour, wordOf = (kind) => causes ? tame(kind) : WORDS[kind];
  const counts = Array.from({ length: BARS }, () => Object.fromEntries(states.map((state) => [state, 0])));
  for (const at of rows) counts[Math.min(BARS - 1, Math.floor(x.part(length(at)) * BARS))][kindOf(at)] += 1;
  const totals = counts.map((bar) => states.reduce((sum, state) => sum + bar[state], 0));
  const y = numbers(0, Math.max(...totals) * 1.05, { whole: true, written: (one) => Number.isInteger(one) ? one.toLocaleString("en") : "" });
  const inner = (box, at) => [box.px(at / BARS) + 1, box.px((at + 1) / BARS) - 1];
  const paint = (surface, box, colours) => counts.forEach((bar, at) => {
    const [left, right] = inner(box, at);
    let sum = 0;
    for (const state of states) {
      if (!bar[state]) continue;
      const top = box.py(y.part(sum + bar[state])), bottom = box.py(y.part(sum));
      surface.rect(left, top, Math.max(1, right - left), bottom - top, { fill: colours[colourOf(state)] ?? colourOf(state) });
      sum += bar[state];
    }
  });
  const shown = counts.map((_, at) => at).filter((at) => totals[at] > 0);
  const limits = (at) => [x.value(at / BARS), x.value((at + 1) / BARS)];
  const words = (at) => { const [from, to] = limits(at); return `${span(from)} to ${span(to)}`; };
  const panel = {
    x, y, xs: Float64Array.from(shown, (at) => (at + 0.5) / BARS), ys: Float64Array.from(shown, (at) => y.part(totals[at])), labels: [`duration${log ? " (log)" : ""}`, causes ? "failed trials" : "trials"], paint,
    point: (surface, box, colours, mark) => { const [left, right] = inner(box, shown[mark]); surface.rect(left, box.py(y.part(totals[shown[mark]])), right - left, box.py(0) - box.py(y.part(totals[shown[mark]])), { stroke: colours.text, width: 2 }); },
    hit: (box, px) => { const at = shown.findIndex((one) => { const [left, right] = inner(box, one); return px >= left - 1 && px <= right + 1; }); return at < 0 ? null : at; },
    tell: (mark) => [words(shown[mark]), ...states.filter((state) => counts[shown[mark]][state]).map((state) => `${wordOf(state)}: ${counts[shown[mark]][state]}`)],
  };
  const table = () => ({ head: ["Duration", ...states.map(wordOf)], rows: shown.map((at) => [words(at), ...states.map((state) => counts[at][state])]) });
  return { panels: [panel], legend: states.map((state) => ({ label: wordOf(state), kind: "bar", colour: colourOf(state) })), table };
};
export { drawMarks, durations, history, improvements, legendOf, lookOf, NOTHING, sizeFor, slice, trialAddress, trialTable, trialTold };
