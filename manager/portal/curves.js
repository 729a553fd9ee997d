// The curves of a trial: the intermediate results of each metric, as points of a step and a value.

import { toFinite } from "./points.js";

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

export { addReport };
