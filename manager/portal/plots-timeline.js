// The timeline of attempts, with a row for each trial or machine: waiting, running, retried.

import { LOADING, tame, zone } from "./charts.js";
import { WORDS } from "./points.js";
import { kinds, numbers, span, times } from "./plots-scale.js";
import { lookOf, legendOf, trialAddress } from "./plots-kinds.js";

const UNKNOWN = "unknown machine";

// Packs the intervals of a machine into as few rows as possible without overlaps: each into the first free row.
const packed = (rows, began, ended) => {
  const free = [];
  return rows.map((at) => {
    let row = free.findIndex((until) => until <= began(at));
    if (row < 0) row = free.length;
    free[row] = ended(at);
    return row;
  });
};

// Returns the number of waiting attempts over time, as `[time, number]` at each change, and the largest number.
const waiting = (spans) => {
  const changes = spans.flatMap(([from, until]) => [[from, 1], [until, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const steps = [];
  let count = 0, most = 0;
  for (const [time, by] of changes) {
    count += by;
    most = Math.max(most, count);
    if (steps.at(-1)?.[0] === time) steps.at(-1)[1] = count; else steps.push([time, count]);
  }
  return { steps, most };
};

const timeline = (points, answer, { by }) => {
  if (!answer) return LOADING;
  if (answer.sequence.length === 0) return { panels: [], empty: "Nothing to show yet: no trial has been submitted." };
  const all = answer.sequence.map((_, at) => at), { now } = answer;
  const began = (at) => answer.began[at] ?? answer.ended[at] ?? now;
  const ended = (at) => answer.ended[at] ?? now;
  let first = Infinity, last = -Infinity;
  for (const at of all) { if (answer.submitted[at] < first) first = answer.submitted[at]; if (ended(at) > last) last = ended(at); }
  const x = times(first, Math.max(last, first + 1000));
  const row = new Float64Array(all.length);
  let y, rows;
  let queue = null;
  if (by === "host") {
    const names = [...answer.hosts.map(tame), UNKNOWN], groups = names.map(() => []), lanes = [];
    const waits = all.filter((at) => began(at) > answer.submitted[at]);
    if (waits.length) queue = waiting(waits.map((at) => [answer.submitted[at], began(at)]));
    // An attempt that waits has no machine yet. The first row shows the number of such attempts.
    if (queue) lanes.push(`waiting, at most ${queue.most}`);
    for (const at of all) if (answer.began[at] !== null || answer.ended[at] !== null) groups[answer.host[at] ?? names.length - 1].push(at);
    groups.forEach((group, index) => {
      if (group.length === 0) return;
      group.sort((a, b) => answer.submitted[a] - answer.submitted[b]);
      const places = packed(group, began, ended), from = lanes.length;
      const count = places.reduce((most, place) => Math.max(most, place), 0) + 1;
      for (let lane = 0; lane < count; lane += 1) lanes.push(count > 1 ? `${names[index]} ${lane + 1}` : names[index]);
      group.forEach((at, index2) => { row[at] = from + places[index2]; });
    });
    // The first machine is at the top.
    rows = lanes.length;
    y = kinds([...lanes].reverse());
    for (const at of all) row[at] = rows - 1 - row[at];
  } else {
    const [low, high] = [answer.sequence[0], answer.sequence.at(-1)];
    rows = high - low + 1;
    y = reversed(low - 0.5, high + 0.5);
    for (const at of all) row[at] = high - answer.sequence[at];
  }
  const part = (value) => (value + 0.5) / rows;
  const xs = Float64Array.from(all, (at) => (x.part(began(at)) + x.part(ended(at))) / 2), ys = Float64Array.from(all, (at) => part(row[at]));
  const colourOf = (at) => answer.retried[at] ? { kind: "bar", colour: "retry" } : lookOf(answer.state[at]);
  const thick = (box) => Math.max(1, Math.min(22, (box.py(0) - box.py(1 / rows)) * 0.74));
  const bar = (box, at) => { const left = box.px(x.part(began(at))), right = box.px(x.part(ended(at))); return [left, Math.max(right, left + 1.2)]; };
  const paintQueue = (surface, box, colours) => {
    const tall = thick(box), base = box.py(part(rows - 1)) + tall / 2;
    queue.steps.forEach(([from, count], at) => {
      const left = box.px(x.part(from)), right = box.px(x.part(queue.steps[at + 1]?.[0] ?? from)), high = tall * count / queue.most;
      if (count) surface.rect(left, base - high, Math.max(right - left, 0.5), high, { fill: colours.quiet, alpha: 0.6 });
    });
  };
  const paint = (surface, box, colours) => {
    const tall = thick(box);
    if (queue) paintQueue(surface, box, colours);
    for (const at of all) {
      const middle = box.py(ys[at]);
      if (middle < box.top - tall || middle > box.top + box.height + tall) continue;
      const [left, right] = bar(box, at), from = box.px(x.part(answer.submitted[at]));
      if (left - from > 0.8 && by !== "host") surface.rect(from, middle - tall / 4, left - from, tall / 2, { fill: colours.quiet, alpha: 0.35 });
      if (answer.began[at] !== null || answer.ended[at] !== null) surface.rect(left, middle - tall / 2, right - left, tall, { fill: colours[colourOf(at).colour], alpha: 0.9 });
    }
  };
  const place = new Map(points.sequence.map((sequence, at) => [sequence, at]));
  const tell = (at) => {
    const waited = began(at) - answer.submitted[at];
    const state = answer.retried[at] ? "retried" : WORDS[answer.state[at]] ?? answer.state[at];
    return [`Trial ${answer.sequence[at]}, attempt ${answer.attempt[at]} · ${state}`, answer.began[at] === null ? `waiting for ${span(waited)}` : `ran for ${span(ended(at) - began(at))}, waited ${span(waited)}`,
      ...answer.host[at] === null ? [] : [`on ${tame(answer.hosts[answer.host[at]])}`], ...answer.waited_for[at] ? [`waited for: ${tame(answer.waited_for[at])}`] : []];
  };
  const states = [...new Set(all.filter((at) => !answer.retried[at]).map((at) => answer.state[at]))];
  const legend = legendOf(states).map((item) => ({ ...item, kind: "bar" }));
  if (by !== "host" || queue) legend.unshift({ label: "waiting", kind: "bar", colour: "quiet" });
  if (answer.retried.some(Boolean)) legend.push({ label: "retried", kind: "bar", colour: "retry" });
  const panel = {
    x, y, xs, ys, labels: [`time (${zone})`, by === "host" ? "" : "trial"], paint, bars: true,
    point: (surface, box, colours, at) => { const [left, right] = bar(box, at), tall = thick(box) + 3; surface.rect(left - 1, box.py(ys[at]) - tall / 2, right - left + 2, tall, { stroke: colours.text, width: 2 }); },
    hit: (box, px, py) => {
      let best = null, least = Math.max(8, thick(box) / 2 + 2);
      for (const at of all) { const far = Math.abs(box.py(ys[at]) - py), [left, right] = bar(box, at); if (far < least && px >= Math.min(left, box.px(x.part(answer.submitted[at]))) - 4 && px <= right + 4) { least = far; best = at; } }
      return best;
    },
    tell, address: (at) => { const trial = place.get(answer.sequence[at]); return trial === undefined ? null : trialAddress(points, trial); },
  };
  const table = (most) => ({
    head: ["Trial", "Attempt", "State", "Machine", "Waited", "Waited for", "Ran"],
    rows: all.slice(-most).reverse().map((at) => [answer.sequence[at], answer.attempt[at], answer.retried[at] ? "retried" : WORDS[answer.state[at]], answer.host[at] === null ? "" : tame(answer.hosts[answer.host[at]]), span(began(at) - answer.submitted[at]), tame(answer.waited_for[at] ?? ""), answer.began[at] === null ? "" : span(ended(at) - began(at))]),
  });
  const high = (_, one) => Math.max(240, Math.min(640, 90 + rows * (by === "host" ? 30 : 14))) * one;
  return { panels: [panel], legend, table, high, hint: answer.left_out ? `${answer.left_out} older attempts are not shown.` : "" };
};

// A scale of numbers with the lowest number at the top.
const reversed = (low, high) => {
  const plain = numbers(low, high, { whole: true, written: (one) => Number.isInteger(one) ? one.toLocaleString("en") : "" });
  return { ...plain, part: (value) => 1 - plain.part(value), value: (part) => plain.value(1 - part), within: (from, to) => reversed(plain.value(1 - to), plain.value(1 - from)) };
};

export { packed, timeline, waiting };
