// The plots that the overview and the page of plots share: the optimisation history and the parallel coordinates, with the trials in
// columns and the selected objective.

import { check, element, figureOf, nearing, Plot, select, titleOf } from "./plots-frame.js";
import { named, painted, redrawn } from "./charts.js";
import { parallel } from "./parallel.js";
import { objectives, ready } from "./points.js";
import { history } from "./plots-kinds.js";

// Shows only the tables of one objective. A rule also applies to tables that arrive later. CSS alone cannot compare two attributes.
const rules = new CSSStyleSheet();
const showTablesOf = (objective) => {
  document.adoptedStyleSheets = [rules];
  rules.replaceSync(`[data-objective]:not([data-objective="${objective}"]) { display: none; }`);
};

// Fetches the trials and draws both plots. Returns the trials, the objectives, the selected objective, a function that adds a plot to the
// page, and a function that updates all plots.
const search = async (json) => {
  const summary = document.getElementById("summary");
  // The page names the address, so that the browser loads the data together with the scripts.
  const points = ready(await json(summary.dataset.points));
  const all = () => objectives(points, summary.dataset.mode, summary.dataset.name);
  const plots = [];
  const update = () => { for (const one of plots) one(); };
  const [which, whichChoice] = select("Objective", all().map((one, at) => [String(at), named(one.name)]), () => { showTablesOf(whichChoice.value); past.plot.zoomed.clear(); update(); });
  showTablesOf("0");
  const objective = () => ({ ...all()[Number(whichChoice.value)], at: Number(whichChoice.value) });
  const add = (id, controls, model, settings = {}) => {
    const plot = new Plot(figureOf(id), { name: id, title: titleOf(id), controls, ...settings });
    const own = () => plot.set(model);
    plots.push(own);
    own();
    return { plot, update: own };
  };

  const again = () => { past.plot.zoomed.clear(); past.update(); };
  const [by, byChoice] = select("X", [["number", "number"], ["started", "start"], ["ended", "end"]], again);
  const [log, logBox] = check("log y", again);
  // The overview has no times, which would double its data.
  const controls = [...all().length > 1 ? [which] : [], ...points.ended ? [by] : [], log];
  const past = add("history", controls, () => history(points, objective(), { by: byChoice.value, log: logBox.checked }));
  await painted();
  brushes(points, all, objective, plots);
  return { points, all, objective, add, plots, update };
};

// The parallel coordinates. The address holds the ranges, and a link leads to the table of the trials within them.
const brushes = (points, all, objective, plots) => {
  const place = figureOf("parallel"), ranges = new Map();
  let pending = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const lines = () => {
    const { mode, name, values, at } = objective();
    const others = all().filter((_, other) => other !== at);
    const chosen = parallel(place, points, ranges, { better: mode, title: name, values, others, heading: titleOf("parallel"), pending }, again);
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

export { search };
