// The overview of a search.

import { drawSearch } from "./plots-search.js";
import { recordTrial } from "./points.js";
import { followExperiment, refresh, refreshPeriodically, throttle } from "./updates.js";

const showPage = async () => {
  const { points, updatePlots } = await drawSearch();
  const schedulePlotUpdate = throttle(1000, async () => updatePlots());
  refreshPeriodically();
  followExperiment(points.change, {
    trial: (trial) => {
      recordTrial(points, trial);
      schedulePlotUpdate();
      refresh();
    },
    experiment: refresh,
  });
};

export { showPage };
