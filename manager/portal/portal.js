// Keeps the portal's pages up to date. They come from the server, at first whole, then as far as they have changed: the
// elements marked `data-live` are put in place of the old ones, and what of them is marked `data-part` comes empty where the
// page has it. Foreign text is only ever set as text.

import { dash, draw, join, kept, moment, named, redrawn, short, stroke, tame, tint, zone } from "./charts.js";
import { parallel } from "./parallel.js";
import { finite, ready, take } from "./points.js";

// `base` is the path below which the pages and the API stand.
const { page, base = "" } = document.body.dataset;
const byId = (id) => document.getElementById(id);
const chart = (name) => document.querySelector(`[data-chart="${name}"]`);
const json = async (path) => {
  const response = await fetch(base + path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
};
// Adds what was reported to the curves that it is a point of: the metric's own, and of an object one for each number. NNI's SDK has
// one name for all that it reports, so that its members go by their own.
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

// An address may be another experiment's by now, whose trials must not be mixed with the ones that are shown.
const sameExperiment = (id) => {
  if (id === document.body.dataset.experiment) return;
  location.replace(`${base}/`);
  throw new Error(`experiment ${id} is here now`);
};

// At most one call at a time, and a rest of `pace` milliseconds after each, longer after one that took long; what comes meanwhile
// is one more call. Answers when a call is done that began afterwards.
const paced = (pace, work) => {
  let next = null, free = Promise.resolve();
  const tried = async () => { try { await work(); } catch (error) { console.warn(error); } };
  return () => next ??= free.then(() => {
    next = null;
    const began = performance.now(), done = tried();
    free = done.then(() => new Promise((rested) => setTimeout(rested, Math.max(pace, 5 * (performance.now() - began)))));
    return done;
  });
};

// A header has room for so many names of parts; the others are sent again.
const NAMED = 500;

// The time after which a page that could not be fetched is fetched once more, and the longest that is waited for one, in milliseconds.
const AGAIN = 3000, LONGEST = 60000;

let skipped = false;
// Answers with the page as it stands now, or null where it cannot be had. What changed meanwhile is told once, so that it is fetched
// again until it comes.
const fetched = async (parts) => {
  const headers = { accept: "text/html", "trial-manager-has": [...parts.keys()].join(" ") };
  try {
    const response = await fetch(location.href, { headers, signal: AbortSignal.timeout(LONGEST) });
    // Another page, such as the one to log in, stands for this one.
    if (response.redirected) return null;
    if (response.ok) return new DOMParser().parseFromString(await response.text(), "text/html");
    console.warn(`${location.pathname}: ${response.status}`);
  } catch (error) { console.warn(error); }
  setTimeout(refresh, AGAIN);
  return null;
};
// A result is to be seen within a second of being printed; agent and manager gather for a quarter of one each.
const refresh = paced(400, async () => {
  skipped = false;
  const parts = new Map([...document.querySelectorAll("[data-part]")].slice(0, NAMED).map((one) => [one.dataset.part, one]));
  const fresh = await fetched(parts);
  if (!fresh) return;
  sameExperiment(fresh.body.dataset.experiment);
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next) continue;
    // What somebody works with stays under their hands, and is still what it was.
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

// What was left alone is brought up to date once nobody works with it.
document.addEventListener("focusout", () => { if (skipped) refresh(); });
document.addEventListener("selectionchange", () => { if (skipped && getSelection().type !== "Range") refresh(); });

// Hears a stream of events, from `after` on where that is given. A page that nobody sees lets go of it: a browser holds six
// connections to a manager, and the seventh page would wait for ever. It goes on where it was once it is seen again.
const LOST = "The connection to the manager is lost. What is shown may be old.";
const ENDED = "The manager has ended. What is shown is how things stood then.";
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
      // A browser tries again by itself unless something else answered: what stands in front of a manager that is away, or
      // another experiment's manager.
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
        // A manager that ends waits for those whom it has told: they look once more, and then they go.
        await done;
        own.close();
        if (path !== EVENTS) return;
        // Another may go on with the experiment.
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
const followAll = (after, listeners) => follow(EVENTS, after, { experiment: () => {}, ...listeners, end: refresh });

// What passes by itself, such as the time that a trial has run, needs no event.
const tick = () => setInterval(() => { if (!document.hidden && byId("connection").textContent === "") refresh(); }, 15000);

// ---- the overview -------------------------------------------------------------------------------------

const overview = async () => {
  const points = ready(await json("/api/v1/experiment/points?columns=space"));
  const { optimize_mode: mode } = await json("/api/v1/experiment");
  const better = mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
  const ranges = new Map();

  const best = () => {
    let top = null;
    const so_far = (points.means ?? points.final).map((value) => {
      if (value !== null && (top === null || better(value, top))) top = value;
      return top;
    });
    const { name } = byId("summary").dataset;
    const series = [
      { label: named(name), stroke: tint("quiet"), paths: () => null, points: { show: true, size: points.id.length > 2000 ? 2 : 6, fill: tint("quiet") } },
      { label: points.means ? "best mean so far" : "best so far", stroke: tint("accent"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), steps: true, points: { show: false }, spanGaps: true },
    ];
    const data = points.final.every((value) => value === null) ? [[]] : [points.sequence, points.final, so_far];
    draw(chart("best"), series, data, { x: "trial", y: named(name), address: (at) => `${base}/trials/${encodeURIComponent(points.id[at])}`, empty: "Nothing to show yet: no trial has succeeded with a number." });
  };

  const lines = () => parallel(chart("parallel"), points, ranges, { better: mode, title: byId("summary").dataset.name }, lines);
  redrawn(chart("parallel"), lines);
  const all = paced(1000, async () => { best(); lines(); });
  all();
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

// Curves of one trial that a chart has names for.
const CURVES = 24;
// Rows of its table.
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
  // The table that stands for the curves grows with them; its beginning goes where it gets long.
  const rows = byId("results").querySelector("tbody");
  const list = (metrics) => {
    for (const { name, type, step, value, observed_at_ms: at } of metrics) {
      const row = rows.insertRow();
      const said = typeof value === "number" ? short(value) : typeof value === "string" ? value : JSON.stringify(value);
      for (const text of [name, type === "final" ? "final" : String(step), said, moment(at / 1000)]) row.insertCell().textContent = tame(text);
      row.cells[1].className = row.cells[2].className = "number";
    }
    while (rows.rows.length > ROWS) rows.deleteRow(0);
  };
  const takeSamples = (more) => {
    for (const one of more) if (one.seq > sampled) { sampled = one.seq; samples.push(one); }
    if (samples.length > 4000) samples = samples.filter((_, at) => at % 2 === 0);
  };
  const over = () => "ended" in byId("summary").dataset;
  const show = paced(250, async () => {
    // What counts comes first. The others are shown by whoever wants to see them, unless nothing is known to count.
    const counts = byId("summary").dataset.metric;
    // Each metric of several that count has a chart, as loss and latency share no axis.
    const counted = goals.map((name, at) => at === 0 && !curves.has(name) ? counts : name);
    counted.forEach((name, at) => {
      const figure = chart(`goal-${at}`), curve = curves.get(name);
      figure.hidden = !curve;
      if (curve) draw(figure, [{ label: named(goals[at]), stroke: stroke(at), width: 2, spanGaps: true }], join([curve]), { x: "step", y: named(goals[at]) });
    });
    const others = [...curves.keys()].filter((name) => !counted.includes(name));
    chart("metrics").hidden = curves.size > others.length && others.length === 0;
    const all = !others.includes(counts);
    const names = others.sort((a, b) => (b === counts) - (a === counts)).slice(0, CURVES);
    const left = others.length - names.length;
    byId("curves-left").textContent = left ? `${left} more are in the table and in the API.` : "";
    const series = names.map((name, at) => ({ label: named(name), stroke: stroke(at), dash: dash(at), width: 2, spanGaps: true, show: all ? at < 8 : name === counts }));
    draw(chart("metrics"), series, join(names.map((name) => curves.get(name))), { x: "step", empty: over() ? "It reported no intermediate result." : "No intermediate result yet." });
    const times = samples.map((one) => one.observed_at_ms / 1000);
    const of = (read) => samples.map(({ sample }) => read(sample) ?? null);
    const plot = (name, kind, y, columns) => {
      const figure = chart(name);
      const shown = columns.filter(([, column]) => column.some((value) => value !== null));
      // A machine without GPUs has no charts of them.
      figure.hidden = shown.length === 0 && name !== "memory";
      const lines = shown.map(([title], at) => ({ label: title, stroke: stroke(at), width: 1.5, spanGaps: true }));
      const data = shown.length ? [times, ...shown.map(([, column]) => column)] : [[]];
      draw(figure, lines, data, { x: `time (${zone})`, y, kind, time: true, empty: over() ? "There are no readings of the machine." : "No readings of the machine yet." });
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
      ["processor, of one core", of((sample) => sample.process?.cpu_percent)],
    ]);
    plot("gpu-memory", "bytes", "GPU memory", [
      ...each((gpu) => gpu.memory_used_bytes),
      ["size of one GPU", of((sample) => sample.gpus?.[0]?.memory_total_bytes)],
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
  // An ended trial may be run once more: its page begins anew then.
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
    // Of a trial whose agent is not heard: both streams, as its pod prints them.
    unheard: ({ text, why }) => { unheard = true; append("stdout", text ?? `${why}\n`); },
    trial: refresh,
    end: async () => { await refresh(); rest(); },
  });
};

// Output grows at the end, a few times a second at most: whatever is added has all of it laid out again. A view of more than
// SEEN characters forgets its beginning.
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
  // At first the whole curves, thinned; then what came after. Another attempt's are other curves.
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
  // One metric at a time: what counts at first, where any of them has it.
  const pick = byId("metric");
  const offer = () => {
    const all = [...trials.values()];
    const names = [...new Set(all.flatMap((one) => [...one.curves.keys()]))].sort();
    if (names.length === pick.options.length) return;
    const counts = names.find((name) => all.some((one) => one.metric === name));
    const chosen = names.includes(pick.value) ? pick.value : counts ?? names[0];
    pick.replaceChildren(...names.map((name) => new Option(named(name), name, false, name === chosen)));
    pick.closest("p").hidden = names.length < 2;
  };
  const draws = () => {
    const series = [], curves = [];
    [...trials.values()].forEach((one, at) => {
      if (!one.curves.has(pick.value)) return;
      series.push({ label: `trial ${one.sequence}`, stroke: stroke(at), dash: dash(at), width: 2, spanGaps: true });
      curves.push(one.curves.get(pick.value));
    });
    draw(chart("compare"), series, join(curves), { x: "step", y: named(pick.value), empty: "None of them has reported an intermediate result." });
  };
  pick.addEventListener("change", draws);
  show();
  const trial = ({ id }) => { if (trials.has(id)) { changed.add(id); show(); refresh(); } };
  followAll(list.dataset.change, { trial });
};

// The home of several experiments hears of none of them, and looks again.
const experiments = async () => tick();

// The columns that were chosen last are those of the next visit, unless the address names others.
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
// What is chosen in a table stays chosen however it is sorted, filtered or brought up to date, until something is done with it.
// Chosen rows that are not on this page are members of the form, and are counted.
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
      told.textContent = chosen.size === 0 ? "" : `${chosen.size} chosen${away.length ? `, ${away.length} not on this page` : ""}`;
      const forget = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Forget" });
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
// What was stopped or begun again is chosen no more.
addEventListener("submit", ({ target, submitter, defaultPrevented }) => {
  if (!defaultPrevented && target.dataset.chosen && submitter?.formMethod === "post") choose(target.dataset.chosen, []);
});
addEventListener("pageshow", choosing);
choosing();

// Times are the reader's own: where one points at "5 min ago", and wherever the page says a moment to the second.
const local = () => {
  for (const one of document.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(one.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    one.dataset.local = "";
    one.title = `${at.toLocaleString()} (${one.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    const own = moment(at.getTime() / 1000);
    if (one.classList.contains("exact")) one.textContent = own;
    if (one.dataset.at !== undefined) one.dataset.at = own.slice(11);
  }
  for (const one of document.querySelectorAll(".zone:not([data-local])")) { one.dataset.local = ""; one.textContent = zone; }
};
new MutationObserver(local).observe(document.body, { childList: true, subtree: true });
local();

const pages = { overview, plots, list, trial, compare, experiments };
pages[page]?.().catch((error) => { byId("connection").textContent = `Something could not be loaded: ${error.message}`; });
