// The plots that the overview and the page of plots share: the optimisation history and the parallel coordinates, with the trials in
// columns and the selected objective.

import { createCheckbox, createElement, findFigure, observeNearness, Plot, createSelect, readTitle } from "./plots-frame.js";
import { shortenName, waitForPaint, redrawOnChange } from "./charts.js";
import { drawParallel } from "./parallel.js";
import { listObjectives, preparePoints } from "./points.js";
import { createHistory } from "./plots-kinds.js";
import { base, fetchJson } from "./updates.js";

// Shows only the tables of one objective. A rule also applies to tables that arrive later. CSS alone cannot compare two attributes.
const objectiveRules = new CSSStyleSheet();
const showTablesOf = (objective) => {
  document.adoptedStyleSheets = [objectiveRules];
  objectiveRules.replaceSync(`[data-objective]:not([data-objective="${objective}"]) { display: none; }`);
};

// Fetches the trials and draws both plots. Returns the trials, the objectives, the selected objective, a function that adds a plot to the
// page, and a function that updates all plots.
const drawSearch = async () => {
  const summary = document.getElementById("summary");
  // The page names the address, so that the browser loads the data together with the scripts.
  const points = preparePoints(await fetchJson(summary.dataset.points));
  const listCurrentObjectives = () => listObjectives(points, summary.dataset.mode, summary.dataset.name);
  const plotUpdates = [];
  const updatePlots = () => { for (const updatePlot of plotUpdates) updatePlot(); };
  const [objectiveLabel, objectiveSelect] = createSelect("Objective", listCurrentObjectives().map((objective, index) => [String(index), shortenName(objective.name)]), () => { showTablesOf(objectiveSelect.value); historyPlot.plot.zoomByPanel.clear(); updatePlots(); });
  showTablesOf("0");
  const getObjective = () => ({ ...listCurrentObjectives()[Number(objectiveSelect.value)], index: Number(objectiveSelect.value) });
  const addPlot = (id, controls, createModel, settings = {}) => {
    const plot = new Plot(findFigure(id), { name: id, title: readTitle(id), controls, ...settings });
    const updatePlot = () => plot.set(createModel);
    plotUpdates.push(updatePlot);
    updatePlot();
    return { plot, update: updatePlot };
  };

  const updateHistory = () => { historyPlot.plot.zoomByPanel.clear(); historyPlot.update(); };
  const [xLabel, xSelect] = createSelect("X", [["number", "number"], ["started", "start"], ["ended", "end"]], updateHistory);
  const [logLabel, logBox] = createCheckbox("log y", updateHistory);
  // The overview has no times, which would double its data.
  const controls = [...listCurrentObjectives().length > 1 ? [objectiveLabel] : [], ...points.ended ? [xLabel] : [], logLabel];
  const historyPlot = addPlot("history", controls, () => createHistory(points, getObjective(), { by: xSelect.value, log: logBox.checked }));
  await waitForPaint();
  addParallelCoordinates(points, listCurrentObjectives, getObjective, plotUpdates);
  return { points, listCurrentObjectives, getObjective, addPlot, plotUpdates, updatePlots };
};

// The parallel coordinates. The address holds the ranges, and a link leads to the table of the trials within them.
const addParallelCoordinates = (points, listCurrentObjectives, getObjective, plotUpdates) => {
  const figure = findFigure("parallel"), ranges = new Map();
  let pendingRanges = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const drawLines = () => {
    const { mode, name, values, index } = getObjective();
    const others = listCurrentObjectives().filter((_, other) => other !== index);
    const selection = drawParallel(figure, points, ranges, { direction: mode, title: name, values, others, heading: readTitle("parallel"), pendingRanges }, redraw);
    pendingRanges = {};
    return selection;
  };
  let isVisible = false, isStale = true;
  const redraw = () => {
    isStale = !isVisible;
    if (isStale) return;
    const { hash, filter } = drawLines() ?? {};
    if (hash !== undefined && location.hash.slice(1) !== hash) window.history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    link.hidden = !filter;
    link.href = `${base}/trials?filter=${encodeURIComponent(filter ?? "")}`;
  };
  const link = createElement("a", { class: "brushed" }, "Show these trials in the table");
  figure.after(link);
  redrawOnChange(figure, redraw);
  addEventListener("hashchange", () => { ranges.clear(); pendingRanges = Object.fromEntries(new URLSearchParams(location.hash.slice(1))); redraw(); });
  plotUpdates.push(redraw);
  observeNearness(figure, (isNear) => { isVisible = isNear; if (isVisible && isStale) redraw(); });
};

export { drawSearch };
