// The list of experiments. It receives no events.

import { refreshPeriodically } from "./updates.js";

const showPage = async () => refreshPeriodically();

export { showPage };
