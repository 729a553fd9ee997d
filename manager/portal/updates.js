// Keeps a page up to date. The server first sends the whole page, later only the changes. Elements with `data-live` replace the old ones.
// Elements with `data-part` arrive empty if the page already has them.

import { showSelection } from "./selection.js";

// `base` is the path of the pages and the API.
const { base = "" } = document.body.dataset;
const getElement = (id) => document.getElementById(id);
const fetchJson = async (path) => {
  const response = await fetch(base + path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
};

// Leaves the page if its address now belongs to another experiment, whose trials must not be mixed with the shown ones.
const requireSameExperiment = (id) => {
  if (id === document.body.dataset.experiment) return;
  location.replace(`${base}/`);
  throw new Error(`this address now belongs to experiment ${id}`);
};

// Limits calls of `work` to one at a time, with a pause of at least `minPauseMs` between them, and longer after a slow one. All
// requests during a call or a pause become one call. The promise resolves after a call that started after the request. A request with
// `runNow` skips the pause.
const throttle = (minPauseMs, work) => {
  let pending = null, idle = Promise.resolve(), isUrgent = false, endPause = () => {};
  const runWork = async () => { try { await work(); } catch (error) { console.warn(error); } };
  const pause = (ms) => new Promise((resolve) => {
    endPause = resolve;
    setTimeout(resolve, isUrgent ? 0 : ms);
  });
  const scheduleRun = () => pending ??= idle.then(() => {
    pending = null;
    isUrgent = false;
    const startedAt = performance.now(), run = runWork();
    idle = run.then(() => pause(Math.max(minPauseMs, 5 * (performance.now() - startedAt))));
    return run;
  });
  const runNow = () => {
    isUrgent = true;
    endPause();
    return scheduleRun();
  };
  return Object.assign(scheduleRun, { runNow });
};

// The maximum number of parts that a request header names. The server sends the others again.
const MAX_NAMED_PARTS = 500;

// The delay before the page is fetched again after a failure, and the timeout of a fetch, in milliseconds.
const RETRY_DELAY_MS = 3000, REQUEST_TIMEOUT_MS = 60000;

let hasSkippedUpdates = false;
// Fetches the current page. Returns null on failure and schedules another attempt, because the event of the change is not repeated.
const fetchPage = async (parts) => {
  const headers = { accept: "text/html", "trial-manager-has": [...parts.keys()].join(" ") };
  try {
    const response = await fetch(location.href, { headers, signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    // The server sent another page, such as the login page.
    if (response.redirected) return null;
    if (response.ok) return new DOMParser().parseFromString(await response.text(), "text/html");
    console.warn(`${location.pathname}: ${response.status}`);
  } catch (error) { console.warn(error); }
  setTimeout(refresh, RETRY_DELAY_MS);
  return null;
};
// Refreshes the page. A result appears within a second of being printed: the agent and the manager each batch for a quarter of a second.
const refresh = throttle(400, async () => {
  hasSkippedUpdates = false;
  const parts = new Map([...document.querySelectorAll("[data-part]")].slice(0, MAX_NAMED_PARTS).map((part) => [part.dataset.part, part]));
  const newPage = await fetchPage(parts);
  if (!newPage) return;
  requireSameExperiment(newPage.body.dataset.experiment);
  for (const element of document.querySelectorAll("[data-live]")) {
    const replacement = newPage.getElementById(element.id);
    if (!replacement) continue;
    // An element that the user is using stays as it is.
    const isInUse = element.contains(document.activeElement) || (getSelection().type === "Range" && element.contains(getSelection().anchorNode));
    const isUnchanged = replacement.dataset.part && replacement.dataset.part === element.dataset.part;
    if (isInUse) delete replacement.dataset.part;
    hasSkippedUpdates ||= isInUse && !isUnchanged;
    element.hidden = replacement.hidden;
    Object.assign(element.dataset, replacement.dataset);
    if (isInUse || isUnchanged) continue;
    const openStates = [...element.querySelectorAll("details")].map((details) => details.open);
    const scrollOffsets = [...element.querySelectorAll(".scroll")].map((scroller) => scroller.scrollLeft);
    for (const placeholder of replacement.querySelectorAll("[data-part]:empty")) {
      const knownPart = parts.get(placeholder.dataset.part);
      if (knownPart) placeholder.replaceWith(knownPart);
    }
    element.replaceChildren(...replacement.childNodes);
    showSelection();
    element.querySelectorAll("details").forEach((details, index) => { details.open = openStates[index] ?? details.open; });
    element.querySelectorAll(".scroll").forEach((scroller, index) => { scroller.scrollLeft = scrollOffsets[index] ?? 0; });
  }
});

// Updates the skipped elements once the user has left them.
document.addEventListener("focusout", () => { if (hasSkippedUpdates) refresh(); });
document.addEventListener("selectionchange", () => { if (hasSkippedUpdates && getSelection().type !== "Range") refresh(); });

// Follows a stream of events, from `firstEventId` on if given. A hidden page closes the stream, because a browser opens only six connections to
// a manager and the seventh page would wait forever. The page continues where it stopped when it is visible again.
const LOST_MESSAGE = "The connection to the manager is lost. This page may be out of date.";
const ENDED_MESSAGE = "The manager has exited. This page shows the state at that time.";
const connectEvents = (path, firstEventId, listeners) => {
  const showConnectionMessage = (text) => { getElement("connection").textContent = text; };
  let source = null, lastEventId = firstEventId, hasEnded = false, reconnectTimer = null, errorMessage = LOST_MESSAGE;
  const scheduleReconnect = () => { reconnectTimer ??= setTimeout(() => { reconnectTimer = null; reconnect(); refresh(); }, 3000); };
  const openSource = () => {
    const url = lastEventId === undefined ? path : `${path}?after=${encodeURIComponent(lastEventId)}`;
    const openedSource = source = new EventSource(base + url);
    source.onopen = () => { errorMessage = LOST_MESSAGE; showConnectionMessage(""); };
    source.onerror = () => {
      if (hasEnded) return;
      showConnectionMessage(errorMessage);
      // The browser reconnects by itself, unless a proxy of a stopped manager or the manager of another experiment answered.
      if (source?.readyState === EventSource.CLOSED) scheduleReconnect();
    };
    for (const [event, listener] of Object.entries(listeners)) {
      source.addEventListener(event, async (message) => {
        lastEventId = message.lastEventId || lastEventId;
        const data = JSON.parse(message.data);
        if (event === "experiment") requireSameExperiment(data.id);
        if (event === "end") hasEnded = true;
        const handled = listener(data);
        if (event !== "end") return;
        // The exiting manager waits for the pages that received this event. They refresh once more, then disconnect.
        await handled;
        openedSource.close();
        if (path !== EVENTS_PATH) return;
        // Another manager may continue the experiment.
        hasEnded = false;
        errorMessage = ENDED_MESSAGE;
        showConnectionMessage(errorMessage);
        scheduleReconnect();
      });
    }
  };
  const reconnect = () => {
    if (hasEnded) return;
    source?.close();
    source = null;
    if (!document.hidden) openSource();
  };
  document.addEventListener("visibilitychange", reconnect);
  reconnect();
};

const EVENTS_PATH = "/api/v1/events";
// An exiting manager waits only for a moment, so the last refresh does not wait.
const followExperiment = (firstEventId, listeners) => connectEvents(EVENTS_PATH, firstEventId, { experiment: () => {}, ...listeners, end: refresh.runNow });

// Refreshes values that change without events, such as the duration of a running trial.
const refreshPeriodically = () => setInterval(() => { if (!document.hidden && getElement("connection").textContent === "") refresh(); }, 15000);

export { base, connectEvents, fetchJson, followExperiment, getElement, refresh, refreshPeriodically, throttle };
