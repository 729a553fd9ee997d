// The list of trials.

import { accessStorage } from "./charts.js";
import { base, followExperiment, getElement, refresh, refreshPeriodically } from "./updates.js";

// Restores the columns of the last visit, unless the address names others.
const restoreColumns = () => {
  const key = `columns:${base}:${document.body.dataset.experiment}`;
  const query = new URLSearchParams(location.search), requestedColumns = query.getAll("column");
  document.querySelector("[data-usual]")?.addEventListener("click", () => accessStorage(() => localStorage.removeItem(key)));
  if (requestedColumns.length) { accessStorage(() => localStorage.setItem(key, JSON.stringify(requestedColumns))); return; }
  const storedColumns = JSON.parse(accessStorage(() => localStorage.getItem(key)) ?? "[]");
  if (storedColumns.length === 0) return;
  for (const column of storedColumns) query.append("column", column);
  location.replace(`${location.pathname}?${query}`);
};

const showPage = async () => {
  restoreColumns();
  refreshPeriodically();
  followExperiment(getElement("list").dataset.change, { trial: refresh });
};

export { showPage };
