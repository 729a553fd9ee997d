// Keeps the pages of the portal up to date. The server first sends the whole page, later only the changes. Elements with `data-live`
// replace the old ones. Elements with `data-part` arrive empty if the page already has them. Text from trials and users is only set as
// text, never as HTML.

import { dash, draw, join, kept, metricNamed, moment, short, stroke, tame, zone } from "./charts.js";
import { finite, take } from "./points.js";

// `base` is the path of the pages and the API.
const { page, base = "" } = document.body.dataset;
const byId = (id) => document.getElementById(id);
const chart = (name) => document.querySelector(`[data-chart="${name}"]`);
const json = async (path) => {
  const response = await fetch(base + path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
};
// Adds a report to its curves: the curve of the metric, or one curve for each number in an object. NNI's SDK uses one name for all
// reports, so the curves of its objects have only the names of the members.
const enter = (curves, { name, step, value }) => {
  const put = (curve, number) => {
    if (!curves.has(curve)) curves.set(curve, []);
    curves.get(curve).push([step, number]);
  };
  if (Array.isArray(value)) return;
  if (value === null || typeof value !== "object") { put(name, finite(value)); return; }
  const missing = ["NaN", "Infinity", "-Infinity"];
  for (const [member, inner] of Object.entries(value)) {
    if (typeof inner !== "number" && !missing.includes(inner)) continue;
    put(member === "default" ? name : name === "default" ? member : `${name}.${member}`, finite(inner));
  }
};

// Leaves the page if its address now belongs to another experiment, whose trials must not be mixed with the shown ones.
const sameExperiment = (id) => {
  if (id === document.body.dataset.experiment) return;
  location.replace(`${base}/`);
  throw new Error(`this address now belongs to experiment ${id}`);
};

// Limits calls of `work` to one at a time, with a pause of at least `pace` milliseconds between them, and longer after a slow one. All
// requests during a call or a pause become one call. The promise resolves after a call that started after the request. A request with
// `now` skips the pause.
const paced = (pace, work) => {
  let next = null, free = Promise.resolve(), urgent = false, endPause = () => {};
  const tried = async () => { try { await work(); } catch (error) { console.warn(error); } };
  const pause = (duration) => new Promise((ended) => {
    endPause = ended;
    setTimeout(ended, urgent ? 0 : duration);
  });
  const request = () => next ??= free.then(() => {
    next = null;
    urgent = false;
    const began = performance.now(), done = tried();
    free = done.then(() => pause(Math.max(pace, 5 * (performance.now() - began))));
    return done;
  });
  const now = () => {
    urgent = true;
    endPause();
    return request();
  };
  return Object.assign(request, { now });
};

// The maximum number of parts that a request header names. The server sends the others again.
const NAMED = 500;

// The delay before the page is fetched again after a failure, and the timeout of a fetch, in milliseconds.
const AGAIN = 3000, LONGEST = 60000;

let skipped = false;
// Fetches the current page. Returns null on failure and schedules another attempt, because the event of the change is not repeated.
const fetched = async (parts) => {
  const headers = { accept: "text/html", "trial-manager-has": [...parts.keys()].join(" ") };
  try {
    const response = await fetch(location.href, { headers, signal: AbortSignal.timeout(LONGEST) });
    // The server sent another page, such as the login page.
    if (response.redirected) return null;
    if (response.ok) return new DOMParser().parseFromString(await response.text(), "text/html");
    console.warn(`${location.pathname}: ${response.status}`);
  } catch (error) { console.warn(error); }
  setTimeout(refresh, AGAIN);
  return null;
};
// Refreshes the page. A result appears within a second of being printed: the agent and the manager each batch for a quarter of a second.
const refresh = paced(400, async () => {
  skipped = false;
  const parts = new Map([...document.querySelectorAll("[data-part]")].slice(0, NAMED).map((one) => [one.dataset.part, one]));
  const fresh = await fetched(parts);
  if (!fresh) return;
  sameExperiment(fresh.body.dataset.experiment);
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next) continue;
    // An element that the user is using stays as it is.
    const inUse = old.contains(document.activeElement) || (getSelection().type === "Range" && old.contains(getSelection().anchorNode));
    const same = next.dataset.part && next.dataset.part === old.dataset.part;
    if (inUse) delete next.dataset.part;
    skipped ||= inUse && !same;
    old.hidden = next.hidden;
    Object.assign(old.dataset, next.dataset);
    if (inUse || same) continue;
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    for (const one of next.querySelectorAll("[data-part]:empty")) {
      const known = parts.get(one.dataset.part);
      if (known) one.replaceWith(known);
    }
    old.replaceChildren(...next.childNodes);
    choosing();
    old.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? one.open; });
    old.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] ?? 0; });
  }
});

// Updates the skipped elements once the user has left them.
document.addEventListener("focusout", () => { if (skipped) refresh(); });
document.addEventListener("selectionchange", () => { if (skipped && getSelection().type !== "Range") refresh(); });

// Follows a stream of events, from `after` on if given. A hidden page closes the stream, because a browser opens only six connections to
// a manager and the seventh page would wait forever. The page continues where it stopped when it is visible again.
const LOST = "The connection to the manager is lost. This page may be out of date.";
const ENDED = "The manager has exited. This page shows the state at that time.";
const follow = (path, after, listeners) => {
  const say = (text) => { byId("connection").textContent = text; };
  let source = null, seen = after, over = false, again = null, lost = LOST;
  const later = () => { again ??= setTimeout(() => { again = null; turn(); refresh(); }, 3000); };
  const hear = () => {
    const place = seen === undefined ? path : `${path}?after=${encodeURIComponent(seen)}`;
    const own = source = new EventSource(base + place);
    source.onopen = () => { lost = LOST; say(""); };
    source.onerror = () => {
      if (over) return;
      say(lost);
      // The browser reconnects by itself, unless a proxy of a stopped manager or the manager of another experiment answered.
      if (source?.readyState === EventSource.CLOSED) later();
    };
    for (const [event, listener] of Object.entries(listeners)) {
      source.addEventListener(event, async (message) => {
        seen = message.lastEventId || seen;
        const data = JSON.parse(message.data);
        if (event === "experiment") sameExperiment(data.id);
        if (event === "end") over = true;
        const done = listener(data);
        if (event !== "end") return;
        // The exiting manager waits for the pages that received this event. They refresh once more, then disconnect.
        await done;
        own.close();
        if (path !== EVENTS) return;
        // Another manager may continue the experiment.
        over = false;
        lost = ENDED;
        say(lost);
        later();
      });
    }
  };
  const turn = () => {
    if (over) return;
    source?.close();
    source = null;
    if (!document.hidden) hear();
  };
  document.addEventListener("visibilitychange", turn);
  turn();
};

const EVENTS = "/api/v1/events";
// An exiting manager waits only for a moment, so the last refresh does not wait.
const followAll = (after, listeners) => follow(EVENTS, after, { experiment: () => {}, ...listeners, end: refresh.now });

// Refreshes values that change without events, such as the duration of a running trial.
const tick = () => setInterval(() => { if (!document.hidden && byId("connection").textContent === "") refresh(); }, 15000);

// ---- the overview -------------------------------------------------------------------------------------

const overview = async () => {
  const { search } = await import("./plots-search.js");
  const { points, update } = await search(json);
  const all = paced(1000, async () => update());
  tick();
  followAll(points.change, {
    trial: (trial) => {
      take(points, trial);
      all();
      refresh();
    },
    experiment: refresh,
  });
};

// ---- the plots ----------------------------------------------------------------------------------------

const plots = async () => {
  const { show } = await import("./plots.js");
  await show({ json, paced, follow: followAll, tick, refresh });
};

// ---- one trial ----------------------------------------------------------------------------------------

// The maximum number of curves in the chart of a trial.
const CURVES = 24;
// The maximum number of rows in the table of its results.
const ROWS = 1000;

const trial = async () => {
  const { trial: id, after } = byId("summary").dataset, goals = JSON.parse(byId("summary").dataset.goals ?? "[]");
  const own = `/api/v1/trials/${encodeURIComponent(id)}`;
  let curves = new Map(), samples = [], seen = -1, sampled = -1;
  const take = (metrics) => {
    for (const metric of metrics) {
      if (metric.seq <= seen) continue;
      seen = metric.seq;
      if (metric.type === "intermediate") enter(curves, metric);
    }
  };
  // Adds reports to the table of the curves, and removes the oldest rows if it becomes too long.
  const rows = byId("results").querySelector("tbody");
  const list = (metrics) => {
    for (const { name, type, step, value, observed_at_ms: at } of metrics) {
      const row = rows.insertRow();
      const said = typeof value === "number" ? short(value) : typeof value === "string" ? value : JSON.stringify(value);
      for (const text of [name === "default" ? "result" : name, type === "final" ? "final" : String(step), said, moment(at / 1000)]) row.insertCell().textContent = tame(text);
      row.cells[1].className = row.cells[2].className = "number";
    }
    while (rows.rows.length > ROWS) rows.deleteRow(0);
    byId("results").hidden = rows.rows.length === 0;
  };
  const takeSamples = (more) => {
    for (const one of more) if (one.seq > sampled) { sampled = one.seq; samples.push(one); }
    if (samples.length > 4000) samples = samples.filter((_, at) => at % 2 === 0);
  };
  const over = () => "ended" in byId("summary").dataset;
  const show = paced(250, async () => {
    // The metric of the objective comes first. Other curves are hidden until the user shows them, unless that metric has no curve.
    const counts = byId("summary").dataset.metric;
    // With several objectives, each has its own chart, because metrics such as loss and latency cannot share an axis.
    const counted = goals.map((name, at) => at === 0 && !curves.has(name) ? counts : name);
    // A single value is no curve. The table contains it.
    const isDrawn = (name) => curves.has(name) && (curves.get(name).length > 1 || !over());
    counted.forEach((name, at) => {
      const figure = chart(`goal-${at}`), curve = curves.get(name);
      figure.hidden = !isDrawn(name);
      if (!figure.hidden) draw(figure, [{ label: metricNamed(goals[at]), stroke: stroke(at), width: 2, spanGaps: true }], join([curve]), { x: "step", y: metricNamed(goals[at]) });
    });
    const others = [...curves.keys()].filter((name) => !counted.includes(name) && isDrawn(name));
    chart("metrics").hidden = counted.some(isDrawn) && others.length === 0;
    const all = !others.includes(counts);
    const names = others.sort((a, b) => (b === counts) - (a === counts)).slice(0, CURVES);
    byId("curves-hint").hidden = curves.size === 0;
    byId("curves-click").hidden = others.length < 2;
    const left = others.length - names.length;
    byId("curves-left").textContent = left ? `${left} more metrics are in the table and in the API.` : "";
    const series = names.map((name, at) => ({ label: metricNamed(name), stroke: stroke(at), dash: dash(at), width: 2, spanGaps: true, show: all ? at < 8 : name === counts }));
    draw(chart("metrics"), series, join(names.map((name) => curves.get(name))), { x: "step", empty: curves.size ? "Each metric has a single value, which is in the table." : over() ? "This trial reported no intermediate results." : "No intermediate results yet." });
    // A trial of less than a second has no samples.
    chart("memory").closest("section").hidden = over() && samples.length === 0;
    const times = samples.map((one) => one.observed_at_ms / 1000);
    const of = (read) => samples.map(({ sample }) => read(sample) ?? null);
    const plot = (name, kind, y, columns) => {
      const figure = chart(name);
      const shown = columns.filter(([, column]) => column.some((value) => value !== null));
      // The charts of GPUs are hidden on machines without GPUs.
      figure.hidden = shown.length === 0 && name !== "memory";
      const lines = shown.map(([title], at) => ({ label: title, stroke: stroke(at), width: 1.5, spanGaps: true }));
      const data = shown.length ? [times, ...shown.map(([, column]) => column)] : [[]];
      draw(figure, lines, data, { x: `time (${zone})`, y, kind, time: true, empty: over() ? "This trial has no machine samples." : "No machine samples yet." });
    };
    const gpus = Math.max(0, ...samples.map(({ sample }) => sample.gpus?.length ?? 0));
    const each = (read, title = "") => [...Array(gpus).keys()].map((at) => [`GPU ${at}${title}`, of((sample) => sample.gpus?.[at] && read(sample.gpus[at]))]);
    plot("memory", "bytes", "memory", [
      ["processes", of((sample) => sample.process?.memory_bytes)],
      ["container", of((sample) => sample.cgroup?.memory_bytes)],
      ["limit", of((sample) => sample.cgroup?.memory_limit_bytes)],
    ]);
    plot("load", "percent", "use", [
      ...each((gpu) => gpu.utilization_percent),
      ["processor, % of one core", of((sample) => sample.process?.cpu_percent)],
    ]);
    plot("gpu-memory", "bytes", "GPU memory", [
      ...each((gpu) => gpu.memory_used_bytes),
      ["memory of one GPU", of((sample) => sample.gpus?.[0]?.memory_total_bytes)],
    ]);
    plot("power", "watts", "GPU power", each((gpu) => gpu.power_watts));
  });
  const fetchAll = async () => {
    const [metrics, machine] = await Promise.all([json(`${own}/metrics?points=2000`), json(`${own}/samples?points=1000`)]);
    take(metrics.metrics);
    takeSamples(machine.samples);
    show();
  };
  await fetchAll();
  for (const label of document.querySelectorAll("label.follow")) label.hidden = "ended" in byId("summary").dataset;
  const { controls, pieces } = await import("./log.js");
  timed = pieces;
  for (const stream of ["stdout", "stderr"]) { searched[stream] = controls(stream); const log = byId(`log-${stream}`); log.scrollTop = log.scrollHeight; }
  // If an ended trial runs again, its page reloads.
  const rest = () => followAll(undefined, { trial: (one) => { if (one.id === id && one.ended_at_ms === null) location.reload(); } });
  if ("ended" in byId("summary").dataset) { rest(); return; }
  tick();
  let first = after === undefined, unheard = false;
  follow(`${own}/events`, after, {
    attempt: () => {
      if (first && !unheard) { first = false; return; }
      first = unheard = false;
      curves = new Map(); samples = []; seen = -1; sampled = -1;
      byId("results").querySelector("tbody").replaceChildren();
      for (const stream of ["stdout", "stderr"]) { waiting[stream] = []; byId(`log-${stream}`).textContent = ""; }
      show();
    },
    metrics: (metrics) => { take(metrics); list(metrics); show(); },
    samples: (more) => { takeSamples(more); show(); },
    log: ({ stream, text, times }) => append(stream, text, times),
    // If the agent of a trial is silent, its pod's log replaces both streams.
    unheard: ({ text, why }) => { unheard = true; append("stdout", text ?? `${why}\n`); },
    trial: refresh,
    end: async () => { await refresh.now(); rest(); },
  });
};

// Appends output at most a few times per second, because each addition lays out the whole view again. The view drops its beginning
// above this number of characters.
const SEEN = 256 * 1024;
const waiting = { stdout: [], stderr: [] }, searched = {};
let timed = null;
const append = (stream, text, times = []) => {
  const kept = waiting[stream];
  kept.push({ text, times });
  let length = kept.reduce((sum, one) => sum + one.text.length, 0);
  while (length > SEEN && kept.length > 1) length -= kept.shift().text.length;
  grow();
};
const grow = paced(250, async () => {
  for (const [stream, parts] of Object.entries(waiting)) {
    if (parts.length === 0) continue;
    waiting[stream] = [];
    const log = byId(`log-${stream}`), nodes = [];
    let begun = (log.lastChild?.textContent ?? "\n").endsWith("\n");
    for (const { text, times } of parts) {
      nodes.push(...timed(text, times, begun));
      begun = text.endsWith("\n");
    }
    log.append(...nodes);
    searched[stream]?.();
    let length = log.textContent.length;
    while (length > SEEN && log.childNodes.length > 1) { length -= log.firstChild.textContent.length; log.firstChild.remove(); }
    if (document.querySelector(`[data-follow=${stream}]`)?.checked) log.scrollTop = log.scrollHeight;
  }
});

// ---- several trials -----------------------------------------------------------------------------------

const compare = async () => {
  const list = byId("compared");
  if (!list) return;
  const trials = new Map([...list.querySelectorAll("[data-trial]")].map(({ dataset }) => [dataset.trial, { ...dataset, curves: new Map(), seen: -1 }]));
  let changed = new Set(trials.keys());
  // Fetches the whole curves first, thinned, and later only new points. A new attempt starts new curves.
  const bring = async (one) => {
    const path = `/api/v1/trials/${encodeURIComponent(one.trial)}/metrics?type=intermediate`;
    for (;;) {
      const page = await json(one.seen < 0 ? `${path}&points=1000` : `${path}&after=${one.seen}`);
      if (one.seen >= 0 && page.attempt !== one.attempt) { Object.assign(one, { curves: new Map(), seen: -1 }); continue; }
      one.attempt = page.attempt;
      for (const metric of page.metrics) enter(one.curves, metric);
      one.seen = page.next ?? page.metrics.at(-1)?.seq ?? one.seen;
      if (page.next === null) return;
    }
  };
  const show = paced(1000, async () => {
    const news = changed;
    changed = new Set();
    await Promise.all([...news].map((id) => bring(trials.get(id)).catch((error) => { changed.add(id); throw error; })));
    offer();
    draws();
  });
  // Offers one metric at a time, initially the metric of the objective if a trial has it.
  const pick = byId("metric");
  const offer = () => {
    const all = [...trials.values()];
    const names = [...new Set(all.flatMap((one) => [...one.curves.keys()]))].sort();
    if (names.length === pick.options.length) return;
    const counts = names.find((name) => all.some((one) => one.metric === name));
    const chosen = names.includes(pick.value) ? pick.value : counts ?? names[0];
    pick.replaceChildren(...names.map((name) => new Option(metricNamed(name), name, false, name === chosen)));
    pick.closest("p").hidden = names.length < 2;
  };
  const { comparedTrials } = await import("./plots-trials.js");
  const better = list.dataset.mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
  const drawn = comparedTrials([...trials.values()], better, base);
  const draws = () => drawn(pick.value);
  pick.addEventListener("change", draws);
  show();
  const trial = ({ id }) => { if (trials.has(id)) { changed.add(id); show(); refresh(); } };
  followAll(list.dataset.change, { trial });
};

// The home of several experiments receives no events, so it refreshes periodically.
const experiments = async () => tick();
const comparison = async () => {
  if (!byId("comparison")) return;
  const { show } = await import("./plots-compare.js");
  await show({ json, paced, refresh });
};

// Restores the columns of the last visit, unless the address names others.
const columns = () => {
  const key = `columns:${base}:${document.body.dataset.experiment}`;
  const asked = new URLSearchParams(location.search), chosen = asked.getAll("column");
  document.querySelector("[data-usual]")?.addEventListener("click", () => kept(() => localStorage.removeItem(key)));
  if (chosen.length) { kept(() => localStorage.setItem(key, JSON.stringify(chosen))); return; }
  const last = JSON.parse(kept(() => localStorage.getItem(key)) ?? "[]");
  if (last.length === 0) return;
  for (const column of last) asked.append("column", column);
  location.replace(`${location.pathname}?${asked}`);
};
const list = async () => {
  columns();
  tick();
  followAll(byId("list").dataset.change, { trial: refresh });
};

addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
// Keeps the selected rows of a table when it is sorted, filtered or refreshed, until an action uses them. The form includes selected rows
// of other pages, and shows their number.
const chosenKey = (name) => `chosen:${base}:${document.body.dataset.experiment ?? ""}:${name}`;
const chosenOf = (name) => new Set(JSON.parse(kept(() => sessionStorage.getItem(chosenKey(name))) ?? "[]"));
const choose = (name, chosen) => kept(() => sessionStorage.setItem(chosenKey(name), JSON.stringify([...chosen])));
const choosing = () => {
  for (const form of document.querySelectorAll("form[data-chosen]")) {
    const name = form.dataset.chosen, chosen = chosenOf(name);
    const boxes = [...document.querySelectorAll(`input[type=checkbox][name="${name}"][form="${form.id}"]`)];
    for (const box of boxes) box.checked = chosen.has(box.value);
    for (const all of document.querySelectorAll(`input[data-all="${name}"]`)) {
      const some = boxes.filter((box) => box.checked).length;
      all.hidden = false;
      all.checked = some > 0 && some === boxes.length;
      all.indeterminate = some > 0 && some < boxes.length;
    }
    const shown = new Set(boxes.map((box) => box.value)), away = [...chosen].filter((value) => !shown.has(value));
    for (const one of form.querySelectorAll("input[data-away]")) one.remove();
    for (const value of away) {
      const member = Object.assign(document.createElement("input"), { type: "hidden", name, value });
      member.dataset.away = "";
      form.append(member);
    }
    for (const button of form.querySelectorAll("button:not([type=button])")) button.disabled = chosen.size === 0;
    const told = form.querySelector(".away");
    if (told && told.dataset.chosen !== `${chosen.size} ${away.length}`) {
      told.dataset.chosen = `${chosen.size} ${away.length}`;
      told.textContent = chosen.size === 0 ? "" : `${chosen.size} selected${away.length ? `, ${away.length} not on this page` : ""}`;
      const forget = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Clear" });
      forget.addEventListener("click", () => { choose(name, []); choosing(); });
      if (chosen.size) told.append(" ", forget);
    }
  }
};
document.addEventListener("change", ({ target }) => {
  if (target.dataset.all) {
    const name = target.dataset.all, chosen = chosenOf(name);
    for (const { value } of document.querySelectorAll(`input[type=checkbox][name="${name}"]`)) if (target.checked) chosen.add(value); else chosen.delete(value);
    choose(name, chosen);
    choosing();
    return;
  }
  const form = target.type === "checkbox" && target.form?.dataset.chosen === target.name ? target.form : null;
  if (!form) return;
  const chosen = chosenOf(target.name);
  if (target.checked) chosen.add(target.value); else chosen.delete(target.value);
  choose(target.name, chosen);
  choosing();
});
// Clears the selection after an action on the selected rows.
addEventListener("submit", ({ target, submitter, defaultPrevented }) => {
  if (!defaultPrevented && target.dataset.chosen && submitter?.formMethod === "post") choose(target.dataset.chosen, []);
});
addEventListener("pageshow", choosing);
choosing();

// Shows times in the browser's time zone: in the tooltip of "5 min ago", and wherever the page shows a time to the second.
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const local = () => {
  for (const one of document.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(one.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    one.dataset.local = "";
    one.title = `${whole.format(at)} (${one.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    const own = moment(at.getTime() / 1000);
    if (one.classList.contains("exact")) one.textContent = own;
    if (one.dataset.at !== undefined) one.dataset.at = own.slice(11);
  }
  for (const one of document.querySelectorAll(".zone:not([data-local])")) { one.dataset.local = ""; one.textContent = zone; }
};
new MutationObserver(local).observe(document.body, { childList: true, subtree: true });
local();

const pages = { overview, plots, list, trial, compare, comparison, experiments };
pages[page]?.().catch((error) => { byId("connection").textContent = `Cannot load the data of this page: ${error.message}`; });
