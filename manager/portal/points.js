// The trials in columns, as `/api/v1/experiment/points` returns them, with later updates.

import { sanitiseText } from "./charts.js";

const toFinite = (value) => typeof value === "number" && Number.isFinite(value) ? value : null;
const toResult = (value) => toFinite(value !== null && typeof value === "object" ? value.default : value);

const visitValues = (value, prefix, visit) => {
  for (const [name, member] of Object.entries(value ?? {})) {
    if (member !== null && typeof member === "object" && !Array.isArray(member)) visitValues(member, `${prefix}${name}.`, visit);
    else visit(prefix + name, member);
  }
};

// Optional columns, and how to read each from a trial in the event stream.
const OPTIONAL_COLUMNS = {
  created: (trial) => trial.created_at_ms,
  started: (trial) => trial.started_at_ms,
  ended: (trial) => trial.ended_at_ms,
  cause: (trial) => trial.cause,
  latest: (trial) => trial.state === "SUCCEEDED" ? null : toResult(trial.final) ?? toResult(trial.latest),
};

// Prepares the columns for updates.
const preparePoints = (points) => {
  // Without a prototype, no name of a parameter can collide with an inherited member.
  points.parameters = Object.assign(Object.create(null), points.parameters);
  points.indexById = new Map(points.id.map((id, index) => [id, index]));
  return points;
};

// Adds or updates a trial from the event stream.
const recordTrial = (points, trial) => {
  let index = points.indexById.get(trial.id);
  if (index === undefined) {
    index = points.id.length;
    points.indexById.set(trial.id, index);
    points.id.push(trial.id);
    points.sequence.push(trial.sequence);
    points.final.push(null);
    points.state.push(trial.state);
    points.host?.push(null);
    for (const { values } of points.objectives ?? []) values.push(null);
    points.attempts?.push(1);
    points.means?.push(null);
    for (const column of Object.values(points.parameters)) column.push(null);
    visitValues(trial.parameters, "", (name, value) => {
      (points.parameters[name] ??= new Array(points.id.length).fill(null))[index] = value;
    });
  }
  points.state[index] = trial.state;
  points.final[index] = trial.state === "SUCCEEDED" ? toResult(trial.final) : null;
  for (const { metric, values } of points.objectives ?? []) values[index] = trial.state === "SUCCEEDED" ? toFinite(trial.final?.[metric]) : null;
  if (points.means) points.means[index] = trial.estimate && trial.estimate.results >= trial.estimate.wanted ? trial.estimate.mean : null;
  for (const [name, readValue] of Object.entries(OPTIONAL_COLUMNS)) if (points[name]) points[name][index] = readValue(trial);
};

// Returns the objectives of a search, each with its values by trial. Without the column of objectives, there is one. The latest results
// belong to the first objective. `counts` are the values that compete for the best result: the means if points are repeated.
const selectFirstColumns = (points) => ({ latest: points.latest, counts: points.means });
const createComparator = (mode) => mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
const listObjectives = (points, mode, name) => points.objectives
  ? points.objectives.map((objective, index) => ({ name: objective.metric, mode: objective.direction, values: objective.values, better: createComparator(objective.direction), ...index === 0 ? selectFirstColumns(points) : {} }))
  : [{ name, mode, values: points.final, better: createComparator(mode), ...selectFirstColumns(points) }];

// Returns the parameters that at least one trial has, first in the order of the search space, then in the order of the trials.
const listParameters = (points) => {
  const names = Object.keys(points.parameters).filter((name) => points.parameters[name].some((value) => value !== null));
  const order = new Map((points.space ?? []).map((axis, index) => [axis.name, index]));
  return names.map((name, index) => [order.get(name) ?? order.size + index, name]).sort((a, b) => a[0] - b[0]).map(([, name]) => name);
};
const findAxis = (points, name) => points.space?.find((axis) => axis.name === name);

// The states of trials in plain words.
const STATE_NAMES = JSON.parse(document.body.dataset.states ?? "{}");
const formatParameter = (value) => sanitiseText(typeof value === "string" ? value : JSON.stringify(value));

export { findAxis, toFinite, listObjectives, listParameters, preparePoints, formatParameter, recordTrial, STATE_NAMES };
