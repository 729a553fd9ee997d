// Keeps the portal's pages up to date and draws their charts. Whole pages come from the server: what
// changes is fetched again as a page, and the parts marked `data-live` are put in place of the old ones.
// Foreign text is only ever set as text.
"use strict";

(() => {
  const page = document.body.dataset.page;
  const byId = (id) => document.getElementById(id);
  const chart = (name) => document.querySelector(`[data-chart="${name}"]`);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // A colour that is asked for whenever something is drawn, so that it is the present theme's.
  const tint = (name) => Object.assign(() => colour(name), { css: `var(--${name})` });
  const STROKES = ["#2f7fd6", "#d9762b", "#3a9b5c", "#b04bb5", "#b8453e", "#5f6fd8", "#8a7a1f", "#2a9aa5"];
  const json = async (path) => {
    const response = await fetch(path);
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response.json();
  };
  const number = (value) => {
    const scalar = value !== null && typeof value === "object" ? value.default : value;
    return typeof scalar === "number" && Number.isFinite(scalar) ? scalar : null;
  };

  // At most one call at a time and one per `pace` milliseconds; what comes meanwhile is one more call.
  const paced = (pace, work) => {
    let waiting = false, busy = false;
    const run = async () => {
      if (busy) { waiting = true; return; }
      busy = true;
      try { await work(); } catch (error) { console.warn(error); }
      setTimeout(() => { busy = false; if (waiting) { waiting = false; run(); } }, pace);
    };
    return run;
  };

  const refresh = paced(1000, async () => {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(old.id);
      // What somebody works with stays under their hands.
      const inUse = old.contains(document.activeElement) || (getSelection().type === "Range" && old.contains(getSelection().anchorNode));
      if (!next || inUse || old.innerHTML === next.innerHTML) continue;
      const chosen = [...old.querySelectorAll("input:checked")].map((box) => box.value);
      const open = [...old.querySelectorAll("details")].map((one) => one.open);
      const scrolled = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      old.replaceChildren(...next.childNodes);
      for (const box of old.querySelectorAll("input[type=checkbox]")) box.checked = chosen.includes(box.value);
      old.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? one.open; });
      old.querySelectorAll(".scroll").forEach((one, at) => { one.scrollLeft = scrolled[at] ?? 0; });
    }
  });

  const follow = (path, listeners) => {
    const source = new EventSource(path);
    source.onopen = () => { byId("connection").textContent = ""; };
    source.onerror = () => {
      byId("connection").textContent = "The connection to the manager is lost. What is shown may be old.";
    };
    for (const [event, listener] of Object.entries(listeners)) {
      source.addEventListener(event, (message) => listener(JSON.parse(message.data), source));
    }
    return source;
  };

  // ---- charts -------------------------------------------------------------------------------------------

  const plots = new Map();
  const axes = (x, y) => [x, y].map((label, at) => ({
    label, labelSize: label ? 20 : 0, font: "13px system-ui", labelFont: "13px system-ui",
    size: at ? 70 : 40, stroke: tint("quiet"), grid: { stroke: tint("grid") }, ticks: { stroke: tint("grid") },
  }));
  const draw = (figure, series, data, labels, time = false) => {
    if (!figure) return;
    if (!data[0] || data[0].length < (time ? 2 : 1)) {
      if (!plots.has(figure)) figure.replaceChildren(note("Nothing to show yet."));
      return;
    }
    const shape = JSON.stringify([series.map((one) => one.label), labels]);
    const known = plots.get(figure);
    if (known && known.shape === shape) { known.plot.setData(data); return; }
    figure.replaceChildren();
    const options = {
      width: Math.max(200, figure.clientWidth - 18), height: 240, series: [{ label: labels[0] }, ...series],
      axes: axes(...labels), scales: { x: { time } }, cursor: { drag: { x: true, y: false } },
      // The marks of the legend are drawn once, by the style sheet.
      legend: { markers: { stroke: (_, at) => series[at - 1].stroke.css ?? series[at - 1].stroke } },
    };
    plots.set(figure, { shape, plot: new uPlot(options, data, figure) });
  };
  const note = (text) => {
    const line = document.createElement("p");
    line.className = "hint";
    line.textContent = text;
    return line;
  };
  const redraw = () => { for (const { plot } of plots.values()) plot.redraw(false); if (parallel) parallel(); };
  let parallel = null;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", paced(200, async () => {
    for (const [figure, { plot }] of plots) plot.setSize({ width: Math.max(200, figure.clientWidth - 18), height: 240 });
    if (parallel) parallel();
  }));
  const stroke = (at) => STROKES[at % STROKES.length];

  // Curves of several series over their own places: joined on the places that any of them has.
  const join = (curves) => {
    const places = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].sort((a, b) => a - b);
    const at = new Map(places.map((place, index) => [place, index]));
    return [places, ...curves.map((curve) => {
      const column = new Array(places.length).fill(undefined);
      for (const [place, value] of curve) column[at.get(place)] = value;
      return column;
    })];
  };

  // ---- the overview -------------------------------------------------------------------------------------

  const overview = async () => {
    const points = await json("/api/v1/experiment/points");
    const { optimize_mode: mode } = await json("/api/v1/experiment");
    const better = mode === "minimize" ? (a, b) => a < b : (a, b) => a > b;
    const place = new Map(points.id.map((id, at) => [id, at]));
    const ranges = new Map();

    const best = () => {
      let top = null;
      const so_far = points.final.map((value) => {
        if (value !== null && (top === null || better(value, top))) top = value;
        return top;
      });
      const series = [
        { label: "result", stroke: tint("quiet"), paths: () => null, points: { show: true, size: points.id.length > 2000 ? 2 : 6, fill: tint("quiet") } },
        { label: "best so far", stroke: tint("accent"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, spanGaps: true },
      ];
      draw(chart("best"), series, points.final.some((value) => value !== null) ? [points.sequence, points.final, so_far] : [[]], ["trial", "final result"]);
    };

    parallel = () => drawParallel(chart("parallel"), points, ranges, mode);
    const all = paced(1000, async () => { best(); parallel(); });
    all();
    follow(`/api/v1/events?after=${points.change}`, {
      trial: (trial) => {
        let at = place.get(trial.id);
        if (at === undefined) {
          at = points.id.length;
          place.set(trial.id, at);
          points.id.push(trial.id);
          points.sequence.push(trial.sequence);
          points.final.push(null);
          points.state.push(trial.state);
          for (const column of Object.values(points.parameters)) column.push(null);
          flat(trial.parameters, "", (name, value) => {
            (points.parameters[name] ??= new Array(points.id.length).fill(null))[at] = value;
          });
        }
        points.state[at] = trial.state;
        points.final[at] = trial.state === "SUCCEEDED" ? number(trial.final) : null;
        all();
        refresh();
      },
      experiment: refresh,
    });
  };

  const flat = (value, prefix, tell) => {
    for (const [name, inner] of Object.entries(value ?? {})) {
      if (inner !== null && typeof inner === "object" && !Array.isArray(inner)) flat(inner, `${prefix}${name}.`, tell);
      else tell(prefix + name, inner);
    }
  };

  // Parallel coordinates: an axis per parameter and one for the result; a line per trial, the better the
  // stronger its colour.
  const drawParallel = (figure, points, ranges, mode) => {
    if (!figure) return;
    const rows = points.id.map((_, at) => at).filter((at) => points.final[at] !== null);
    if (rows.length === 0) { figure.replaceChildren(note("Nothing to show yet.")); return; }
    const names = Object.keys(points.parameters).slice(0, 10);
    const scales = [...names, "result"].map((name) => {
      const column = name === "result" ? points.final : points.parameters[name];
      const values = rows.map((at) => column[at]);
      if (values.every((value) => typeof value === "number" || value === null)) {
        const numbers = values.filter((value) => value !== null);
        let [low, high] = [Infinity, -Infinity];
        for (const value of numbers) { if (value < low) low = value; if (value > high) high = value; }
        const log = low > 0 && high / low > 100;
        const map = log ? Math.log : (value) => value;
        const span = map(high) - map(low) || 1;
        const at = (part) => short(log ? Math.exp(map(low) + part * span) : low + part * (high - low));
        return { name, column, where: (value) => value === null ? null : (map(value) - map(low)) / span, at, step: 0.02, low: short(low), high: short(high) };
      }
      const kinds = [...new Set(values.map(String))].sort();
      const index = new Map(kinds.map((kind, at) => [kind, at]));
      const last = kinds.length - 1;
      const at = (part) => kinds[Math.round(part * last)];
      return { name, column, where: (value) => last < 1 ? 0.5 : (index.get(String(value)) ?? 0) / last, at, step: last < 1 ? 1 : 1 / last, low: String(kinds[0]), high: String(kinds[last]) };
    });
    const width = Math.max(300, figure.clientWidth - 18), height = 330, top = 40, bottom = 30;
    const canvas = figure.querySelector("canvas") ?? document.createElement("canvas");
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    if (!canvas.parentNode) {
      const board = document.createElement("div");
      board.className = "board";
      board.append(canvas);
      canvas.setAttribute("aria-hidden", "true");
      figure.replaceChildren(board, note(""));
      // What is inside an image is not read out; what is inside a group is.
      figure.setAttribute("role", "group");
    }
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const x = (at) => 60 + (width - 120) * (scales.length < 2 ? 0 : at / (scales.length - 1));
    const y = (part) => height - bottom - part * (height - top - bottom);
    const result = scales[scales.length - 1];
    const good = (at) => { const part = result.where(points.final[at]); return mode === "minimize" ? 1 - part : part; };
    const chosen = (at) => scales.every((scale) => {
      const range = ranges.get(scale.name);
      if (!range) return true;
      const part = scale.where(scale.column[at]);
      return part !== null && part >= range[0] - 1e-6 && part <= range[1] + 1e-6;
    });
    rows.sort((a, b) => good(a) - good(b));
    const strong = colour("accent"), weak = colour("quiet");
    // Where lines are many each is faint, or they would all be one.
    const faint = Math.min(1, Math.sqrt(200 / rows.length));
    for (const at of rows) {
      const inside = chosen(at);
      pen.globalAlpha = faint * (inside ? 0.08 + 0.9 * good(at) ** 3 : 0.03);
      pen.strokeStyle = inside && good(at) > 0.5 ? strong : weak;
      pen.lineWidth = inside && good(at) > 0.9 ? 1.6 : 1;
      pen.beginPath();
      let drawing = false;
      scales.forEach((scale, column) => {
        const part = scale.where(scale.column[at]);
        if (part === null || Number.isNaN(part)) { drawing = false; return; }
        if (drawing) pen.lineTo(x(column), y(part)); else pen.moveTo(x(column), y(part));
        drawing = true;
      });
      pen.stroke();
    }
    pen.globalAlpha = 1;
    pen.font = "13px system-ui";
    pen.fillStyle = colour("text");
    pen.textAlign = "center";
    scales.forEach((scale, column) => {
      pen.strokeStyle = colour("quiet");
      pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(x(column), top); pen.lineTo(x(column), height - bottom); pen.stroke();
      const room = Math.max(6, Math.floor((width - 120) / scales.length / 7));
      pen.fillText(cut(scale.name, room), x(column), 16);
      pen.fillText(cut(scale.high, room), x(column), 33);
      pen.fillText(cut(scale.low, room), x(column), height - 10);
      const range = ranges.get(scale.name);
      if (range) {
        pen.fillStyle = colour("accent");
        pen.fillRect(x(column) - 4, y(range[1]), 8, Math.max(3, y(range[0]) - y(range[1])));
        pen.fillStyle = colour("text");
      }
    });
    const inside = rows.filter(chosen).length;
    figure.lastChild.textContent = `${inside} of ${rows.length} trials are within the ranges.`;
    ends(canvas.parentNode, scales, ranges, (column, part) => [x(column), y(part)], `${inside} of ${rows.length} trials`);
    const part = (event) => Math.min(1, Math.max(0, (height - bottom - (event.clientY - canvas.getBoundingClientRect().top)) / (height - top - bottom)));
    canvas.onpointerdown = (event) => {
      const from = event.clientX - canvas.getBoundingClientRect().left;
      const column = scales.findIndex((_, at) => Math.abs(x(at) - from) < 20);
      if (column < 0) return;
      const start = part(event);
      canvas.setPointerCapture(event.pointerId);
      canvas.onpointerup = (end) => {
        const stop = part(end);
        if (Math.abs(stop - start) < 0.02) ranges.delete(scales[column].name);
        else ranges.set(scales[column].name, [Math.min(start, stop), Math.max(start, stop)]);
        canvas.onpointerup = null;
        parallel();
      };
    };
  };
  // Both ends of every axis as sliders: they do by keyboard what dragging does, and say where they stand.
  const ends = (board, scales, ranges, place, count) => {
    const names = JSON.stringify(scales.map((scale) => scale.name));
    if (board.dataset.axes !== names) {
      board.dataset.axes = names;
      for (const old of board.querySelectorAll("[role=slider]")) old.remove();
      for (const scale of scales) for (const label of ["at least", "at most"]) {
        const end = document.createElement("div");
        const told = { role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 100,
          "aria-label": `${scale.name}, ${label}`, "aria-describedby": "parallel-keys" };
        for (const [name, value] of Object.entries(told)) end.setAttribute(name, value);
        board.append(end);
      }
    }
    board.querySelectorAll("[role=slider]").forEach((end, index) => {
      const column = Math.floor(index / 2), which = index % 2, scale = scales[column];
      const range = ranges.get(scale.name) ?? [0, 1];
      const [left, top] = place(column, range[which]);
      end.style.left = `${left}px`; end.style.top = `${top}px`;
      end.setAttribute("aria-valuenow", Math.round(100 * range[which]));
      end.setAttribute("aria-valuetext", `${scale.at(range[which])}; ${count}`);
      end.onkeydown = (event) => {
        if (event.altKey || event.ctrlKey || event.metaKey) return;
        const far = Math.max(scale.step, 0.1);
        const moves = { ArrowUp: scale.step, ArrowRight: scale.step, ArrowDown: -scale.step, ArrowLeft: -scale.step, PageUp: far, PageDown: -far, Home: -1, End: 1 };
        const next = [...range];
        if (event.key in moves) {
          const [low, high] = which ? [range[0], 1] : [0, range[1]];
          next[which] = Math.min(high, Math.max(low, Math.round((range[which] + moves[event.key]) * 1e6) / 1e6));
        } else if (["Escape", "Delete", "Backspace"].includes(event.key)) next.splice(0, 2, 0, 1);
        else return;
        event.preventDefault();
        if (next[0] === 0 && next[1] === 1) ranges.delete(scale.name); else ranges.set(scale.name, next);
        parallel();
      };
    });
  };
  const cut = (text, room) => text.length > room ? `${text.slice(0, room - 1)}…` : text;
  const short = (value) => String(Number(value.toPrecision(4)));

  // ---- one trial ----------------------------------------------------------------------------------------

  const trial = async () => {
    const { trial: id, after } = byId("summary").dataset;
    const base = `/api/v1/trials/${encodeURIComponent(id)}`;
    let curves = new Map(), samples = [], seen = -1, sampled = -1;
    const take = (metrics) => {
      for (const metric of metrics) {
        if (metric.seq <= seen) continue;
        seen = metric.seq;
        if (metric.type !== "intermediate") continue;
        if (!curves.has(metric.name)) curves.set(metric.name, []);
        curves.get(metric.name).push([metric.step, number(metric.value)]);
      }
    };
    const takeSamples = (more) => {
      for (const one of more) if (one.seq > sampled) { sampled = one.seq; samples.push(one); }
      if (samples.length > 4000) samples = samples.filter((_, at) => at % 2 === 0);
    };
    const show = paced(250, async () => {
      const names = [...curves.keys()].slice(0, 8);
      const counts = byId("summary").dataset.metric;
      const all = !names.includes(counts);
      const series = names.map((name, at) => ({ label: name, stroke: stroke(at), width: 2, spanGaps: true, show: all || name === counts }));
      draw(chart("metrics"), series, join(names.map((name) => curves.get(name))), ["step", "value"]);
      const times = samples.map((one) => one.observed_at_ms / 1000);
      const of = (read) => samples.map(({ sample }) => read(sample) ?? null);
      const known = (columns) => columns.filter(([, column]) => column.some((value) => value !== null));
      const plot = (name, columns, label) => {
        const shown = known(columns);
        const lines = shown.map(([title], at) => ({ label: title, stroke: stroke(at), width: 1.5, spanGaps: true }));
        draw(chart(name), lines, shown.length ? [times, ...shown.map(([, column]) => column)] : [[]], ["", label], true);
      };
      const gpus = Math.max(0, ...samples.map(({ sample }) => sample.gpus?.length ?? 0));
      const each = (title, read) => [...Array(gpus).keys()].map((at) => [`GPU ${at} ${title}`, of((sample) => sample.gpus?.[at] && read(sample.gpus[at]))]);
      const mega = (bytes) => bytes === undefined || bytes === null ? null : bytes / 1e6;
      plot("memory", [
        ["processes", of((sample) => mega(sample.process?.memory_bytes))],
        ["container", of((sample) => mega(sample.cgroup?.memory_bytes))],
        ["limit", of((sample) => mega(sample.cgroup?.memory_limit_bytes))],
        ...each("memory", (gpu) => mega(gpu.memory_used_bytes)),
      ], "MB");
      plot("load", [
        ["processor, % of a core", of((sample) => sample.process?.cpu_percent)],
        ...each("use, %", (gpu) => gpu.utilization_percent),
        ...each("power, W", (gpu) => gpu.power_watts),
      ], "% or W");
    });
    const fetchAll = async () => {
      const [metrics, machine] = await Promise.all([json(`${base}/metrics?points=2000`), json(`${base}/samples?points=1000`)]);
      take(metrics.metrics);
      takeSamples(machine.samples);
      show();
    };
    await fetchAll();
    for (const label of document.querySelectorAll("label.follow")) label.hidden = "ended" in byId("summary").dataset;
    for (const stream of ["stdout", "stderr"]) { const log = byId(`log-${stream}`); log.scrollTop = log.scrollHeight; }
    if ("ended" in byId("summary").dataset) return;
    let first = after === undefined;
    follow(`${base}/events${after === undefined ? "" : `?after=${encodeURIComponent(after)}`}`, {
      attempt: () => {
        if (first) { first = false; return; }
        curves = new Map(); samples = []; seen = -1; sampled = -1;
        for (const stream of ["stdout", "stderr"]) byId(`log-${stream}`).textContent = "";
        show();
      },
      metrics: (metrics) => { take(metrics); show(); },
      samples: (more) => { takeSamples(more); show(); },
      log: ({ stream, text }) => append(stream, text),
      trial: refresh,
      end: (_, source) => { source.close(); byId("connection").textContent = ""; refresh(); },
    });
  };

  // Output grows at the end; a view of more than about two million characters forgets its beginning.
  const append = (stream, text) => {
    const log = byId(`log-${stream}`);
    log.append(tame(text));
    let length = log.textContent.length;
    while (length > 2e6 && log.childNodes.length > 1) { length -= log.firstChild.textContent.length; log.firstChild.remove(); }
    if (document.querySelector(`[data-follow=${stream}]`)?.checked) log.scrollTop = log.scrollHeight;
  };
  // As the server does: no escape sequence, control character or mark of direction reaches the page.
  const tame = (text) => text.replace(/\r\n/g, "\n").replace(/\u001b\[[^\u0040-\u007e]*[\u0040-\u007e]/g, "")
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/\u007f/g, "\u2421")
    .replace(/[\u0080-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

  // ---- several trials -----------------------------------------------------------------------------------

  const compare = async () => {
    const ids = new URLSearchParams(location.search).getAll("trial");
    const pages = await Promise.all(ids.map((id) => json(`/api/v1/trials/${encodeURIComponent(id)}/metrics?type=intermediate&points=1000`)));
    const series = [], curves = [];
    pages.forEach(({ metrics }, at) => {
      for (const name of new Set(metrics.map((metric) => metric.name))) {
        series.push({ label: `${ids[at]} ${name}`, stroke: stroke(series.length), width: 2, spanGaps: true });
        curves.push(metrics.filter((metric) => metric.name === name).map((metric) => [metric.step, number(metric.value)]));
      }
    });
    draw(chart("compare"), series, join(curves), ["step", "value"]);
  };

  const list = async () => { follow(`/api/v1/events?after=${byId("list").dataset.change}`, { trial: refresh }); };

  addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  const pages = { overview, list, trial, compare };
  pages[page]?.().catch((error) => { byId("connection").textContent = `Something could not be loaded: ${error.message}`; });
})();
