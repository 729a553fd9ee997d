// The trials in columns, as `/api/v1/experiment/points` returns them, with later updates.

import { tame } from "./charts.js";

const finite = (value) => typeof value === "number" && Number.isFinite(value) ? value : null;
const number = (value) => finite(value !== null && typeof value === "object" ? value.default : value);

const flat = (value, prefix, tell) => {
  for (const [name, inner] of Object.entries(value ?? {})) {
    if (inner !== null && typeof inner === "object" && !Array.isArray(inner)) flat(inner, `${prefix}${name}.`, tell);
    else tell(prefix + name, inner);
  }
};

// Optional columns, and how to read each from a trial in the event stream.
const MORE = {
  created: (trial) => trial.created_at_ms,
  started: (trial) => trial.started_at_ms,
  ended: (trial) => trial.ended_at_ms,
  cause: (trial) => trial.cause,
  latest: (trial) => trial.state === "SUCCEEDED" ? null : number(trial.final) ?? number(trial.latest),
};

// Prepares the columns for updates.
const ready = (points) => {
  // Without a prototype, no name of a parameter can collide with an inherited member.
  points.parameters = Object.assign(Object.create(null), points.parameters);
  points.place = new Map(points.id.map((id, at) => [id, at]));
  return points;
};

// Adds or updates a trial from the event stream.
const take = (points, trial) => {
  let at = points.place.get(trial.id);
  if (at === undefined) {
    at = points.id.length;
    points.place.set(trial.id, at);
    points.id.push(trial.id);
    points.sequence.push(trial.sequence);
    points.final.push(null);
    points.state.push(trial.state);
    points.host?.push(null);
    for (const { values } of points.objectives ?? []) values.push(null);
    points.attempts?.push(1);
    points.means?.push(null);
    for (const column of Object.values(points.parameters)) column.push(null);
    flat(trial.parameters, "", (name, value) => {
      (points.parameters[name] ??= new Array(points.id.length).fill(null))[at] = value;
    });
  }
  points.state[at] = trial.state;
  points.final[at] = trial.state === "SUCCEEDED" ? number(trial.final) : null;
  for (const { metric, values } of points.objectives ?? []) values[at] = trial.state === "SUCCEEDED" ? finite(trial.final?.[metric]) : null;
  if (points.means) points.means[at] = trial.estimate && trial.estimate.results >= trial.estimate.wanted ? trial.estimate.mean : null;
  for (const [name, of] of Object.entries(MORE)) if (points[name]) points[name][at] = of(trial);
};

// Returns the objectives of a search, each with its values by trial. Without the column of objectives, there is one. The latest results
// belong to the first objective. `counts` are the values that compete for the best result: the means if points are repeated.
const first = (points) => ({ latest: points.latest, counts: points.means });
const better = (mode) => mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
const objectives = (points, mode, name) => points.objectives
  ? points.objectives.map((one, at) => ({ name: one.metric, mode: one.direction, values: one.values, better: better(one.direction), ...at === 0 ? first(points) : {} }))
  : [{ name, mode, values: points.final, better: better(mode), ...first(points) }];

// Returns the parameters that at least one trial has, first in the order of the search space, then in the order of the trials.
const parameterNames = (points) => {
  const present = Object.keys(points.parameters).filter((name) => points.parameters[name].some((value) => value !== null));
  const order = new Map((points.space ?? []).map((axis, at) => [axis.name, at]));
  return present.map((name, at) => [order.get(name) ?? order.size + at, name]).sort((a, b) => a[0] - b[0]).map(([, name]) => name);
};
const axisOf = (points, name) => points.space?.find((axis) => axis.name === name);

// The states of trials in plain words.
const WORDS = JSON.parse(document.body.dataset.states ?? "{}");
const said = (value) => tame(typeof value === "string" ? value : JSON.stringify(value));

export { axisOf, finite, flat, number, objectives, parameterNames, ready, said, take, WORDS };
