// The timeline of attempts, with a row for each trial or machine: waiting, running, retried.

import { LOADING_MODEL, sanitiseText, timeZoneName } from "./charts.js";
import { STATE_NAMES } from "./points.js";
import { createOptionScale, createNumberScale, formatDuration, createTimeScale } from "./plots-scale.js";
import { chooseMark, createLegend, formatTrialAddress } from "./plots-kinds.js";

const UNKNOWN_MACHINE = "unknown machine";

// Packs the intervals of a machine into as few rows as possible without overlaps: each into the first free row.
const packIntervals = (rows, startOf, endOf) => {
  const rowEnds = [];
  return rows.map((attempt) => {
    let row = rowEnds.findIndex((rowEnd) => rowEnd <= startOf(attempt));
    if (row < 0) row = rowEnds.length;
    rowEnds[row] = endOf(attempt);
    return row;
  });
};

// Returns the number of waiting attempts over time, as `[time, number]` at each change, and the largest number.
const countWaiting = (spans) => {
  const changes = spans.flatMap(([start, until]) => [[start, 1], [until, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const steps = [];
  let count = 0, maxCount = 0;
  for (const [time, change] of changes) {
    count += change;
    maxCount = Math.max(maxCount, count);
    if (steps.at(-1)?.[0] === time) steps.at(-1)[1] = count; else steps.push([time, count]);
  }
  return { steps, maxCount };
};

const createTimeline = (points, answer, { by }) => {
  if (!answer) return LOADING_MODEL;
  if (answer.sequence.length === 0) return { panels: [], empty: "Nothing to show yet: no trial has been submitted." };
  const attempts = answer.sequence.map((_, attempt) => attempt), { now } = answer;
  const startOf = (attempt) => answer.began[attempt] ?? answer.ended[attempt] ?? now;
  const endOf = (attempt) => answer.ended[attempt] ?? now;
  let first = Infinity, last = -Infinity;
  for (const attempt of attempts) { if (answer.submitted[attempt] < first) first = answer.submitted[attempt]; if (endOf(attempt) > last) last = endOf(attempt); }
  const x = createTimeScale(first, Math.max(last, first + 1000));
  const rowOf = new Float64Array(attempts.length);
  let y, rowCount;
  let queue = null;
  if (by === "host") {
    const names = [...answer.hosts.map(sanitiseText), UNKNOWN_MACHINE], groups = names.map(() => []), lanes = [];
    const waitingAttempts = attempts.filter((attempt) => startOf(attempt) > answer.submitted[attempt]);
    if (waitingAttempts.length) queue = countWaiting(waitingAttempts.map((attempt) => [answer.submitted[attempt], startOf(attempt)]));
    // An attempt that waits has no machine yet. The first row shows the number of such attempts.
    if (queue) lanes.push(`waiting, at most ${queue.maxCount}`);
    for (const attempt of attempts) if (answer.began[attempt] !== null || answer.ended[attempt] !== null) groups[answer.host[attempt] ?? names.length - 1].push(attempt);
    groups.forEach((group, index) => {
      if (group.length === 0) return;
      group.sort((a, b) => answer.submitted[a] - answer.submitted[b]);
      const laneIndexes = packIntervals(group, startOf, endOf), from = lanes.length;
      const count = laneIndexes.reduce((highest, lane) => Math.max(highest, lane), 0) + 1;
      for (let lane = 0; lane < count; lane += 1) lanes.push(count > 1 ? `${names[index]} ${lane + 1}` : names[index]);
      group.forEach((attempt, groupIndex) => { rowOf[attempt] = from + laneIndexes[groupIndex]; });
    });
    // The first machine is at the top.
    rowCount = lanes.length;
    y = createOptionScale([...lanes].reverse());
    for (const attempt of attempts) rowOf[attempt] = rowCount - 1 - rowOf[attempt];
  } else {
    const [low, high] = [answer.sequence[0], answer.sequence.at(-1)];
    rowCount = high - low + 1;
    y = createReversedScale(low - 0.5, high + 0.5);
    for (const attempt of attempts) rowOf[attempt] = high - answer.sequence[attempt];
  }
  const toRowPosition = (value) => (value + 0.5) / rowCount;
  const xs = Float64Array.from(attempts, (attempt) => (x.toPosition(startOf(attempt)) + x.toPosition(endOf(attempt))) / 2), ys = Float64Array.from(attempts, (attempt) => toRowPosition(rowOf[attempt]));
  const chooseBarStyle = (attempt) => answer.retried[attempt] ? { kind: "bar", colour: "retry" } : chooseMark(answer.state[attempt]);
  const computeBarHeight = (box) => Math.max(1, Math.min(22, (box.py(0) - box.py(1 / rowCount)) * 0.74));
  const locateBar = (box, attempt) => { const left = box.px(x.toPosition(startOf(attempt))), right = box.px(x.toPosition(endOf(attempt))); return [left, Math.max(right, left + 1.2)]; };
  const paintQueue = (surface, box, colours) => {
    const barHeight = computeBarHeight(box), base = box.py(toRowPosition(rowCount - 1)) + barHeight / 2;
    queue.steps.forEach(([from, count], index) => {
      const left = box.px(x.toPosition(from)), right = box.px(x.toPosition(queue.steps[index + 1]?.[0] ?? from)), high = barHeight * count / queue.maxCount;
      if (count) surface.drawRect(left, base - high, Math.max(right - left, 0.5), high, { fill: colours.quiet, alpha: 0.6 });
    });
  };
  const paint = (surface, box, colours) => {
    const barHeight = computeBarHeight(box);
    if (queue) paintQueue(surface, box, colours);
    for (const attempt of attempts) {
      const centre = box.py(ys[attempt]);
      if (centre < box.top - barHeight || centre > box.top + box.height + barHeight) continue;
      const [left, right] = locateBar(box, attempt), from = box.px(x.toPosition(answer.submitted[attempt]));
      if (left - from > 0.8 && by !== "host") surface.drawRect(from, centre - barHeight / 4, left - from, barHeight / 2, { fill: colours.quiet, alpha: 0.35 });
      if (answer.began[attempt] !== null || answer.ended[attempt] !== null) surface.drawRect(left, centre - barHeight / 2, right - left, barHeight, { fill: colours[chooseBarStyle(attempt).colour], alpha: 0.9 });
    }
  };
  const trialIndexBySequence = new Map(points.sequence.map((sequence, index) => [sequence, index]));
  const describeAttempt = (attempt) => {
    const waitMs = startOf(attempt) - answer.submitted[attempt];
    const state = answer.retried[attempt] ? "retried" : STATE_NAMES[answer.state[attempt]] ?? answer.state[attempt];
    return [`Trial ${answer.sequence[attempt]}, attempt ${answer.attempt[attempt]} · ${state}`, answer.began[attempt] === null ? `waiting for ${formatDuration(waitMs)}` : `ran for ${formatDuration(endOf(attempt) - startOf(attempt))}, waited ${formatDuration(waitMs)}`,
      ...answer.host[attempt] === null ? [] : [`on ${sanitiseText(answer.hosts[answer.host[attempt]])}`], ...answer.waited_for[attempt] ? [`waited for: ${sanitiseText(answer.waited_for[attempt])}`] : []];
  };
  const states = [...new Set(attempts.filter((attempt) => !answer.retried[attempt]).map((attempt) => answer.state[attempt]))];
  const legend = createLegend(states).map((item) => ({ ...item, kind: "bar" }));
  if (by !== "host" || queue) legend.unshift({ label: "waiting", kind: "bar", colour: "quiet" });
  if (answer.retried.some(Boolean)) legend.push({ label: "retried", kind: "bar", colour: "retry" });
  const panel = {
    x, y, xs, ys, labels: [`time (${timeZoneName})`, by === "host" ? "" : "trial"], paint, bars: true,
    highlight: (surface, box, colours, attempt) => { const [left, right] = locateBar(box, attempt), barHeight = computeBarHeight(box) + 3; surface.drawRect(left - 1, box.py(ys[attempt]) - barHeight / 2, right - left + 2, barHeight, { stroke: colours.text, width: 2 }); },
    findMark: (box, px, py) => {
      let nearest = null, minDistance = Math.max(8, computeBarHeight(box) / 2 + 2);
      for (const attempt of attempts) { const distance = Math.abs(box.py(ys[attempt]) - py), [left, right] = locateBar(box, attempt); if (distance < minDistance && px >= Math.min(left, box.px(x.toPosition(answer.submitted[attempt]))) - 4 && px <= right + 4) { minDistance = distance; nearest = attempt; } }
      return nearest;
    },
    describe: describeAttempt, address: (attempt) => { const trial = trialIndexBySequence.get(answer.sequence[attempt]); return trial === undefined ? null : formatTrialAddress(points, trial); },
  };
  const table = (maxRows) => ({
    head: ["Trial", "Attempt", "State", "Machine", "Waited", "Waited for", "Ran"],
    rows: attempts.slice(-maxRows).reverse().map((attempt) => [answer.sequence[attempt], answer.attempt[attempt], answer.retried[attempt] ? "retried" : STATE_NAMES[answer.state[attempt]], answer.host[attempt] === null ? "" : sanitiseText(answer.hosts[answer.host[attempt]]), formatDuration(startOf(attempt) - answer.submitted[attempt]), sanitiseText(answer.waited_for[attempt] ?? ""), answer.began[attempt] === null ? "" : formatDuration(endOf(attempt) - startOf(attempt))]),
  });
  const computeHeight = (_, fontScale) => Math.max(240, Math.min(640, 90 + rowCount * (by === "host" ? 30 : 14))) * fontScale;
  return { panels: [panel], legend, table, computeHeight, hint: answer.left_out ? `${answer.left_out} older attempts are not shown.` : "" };
};

// A scale of numbers with the lowest number at the top.
const createReversedScale = (low, high) => {
  const scale = createNumberScale(low, high, { whole: true, format: (value) => Number.isInteger(value) ? value.toLocaleString("en") : "" });
  return { ...scale, toPosition: (value) => 1 - scale.toPosition(value), toValue: (part) => scale.toValue(1 - part), zoomTo: (from, to) => createReversedScale(scale.toValue(1 - to), scale.toValue(1 - from)) };
};

export { createTimeline, countWaiting };
