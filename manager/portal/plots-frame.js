// The frame of a plot: panels with axes, a legend, zoom, the selected mark, downloads, and the data as a table. The frame knows nothing
// about trials: each panel describes its marks and their pages.
//
// A model is `{ panels, legend, ramp, table, empty, high, hint }`. A panel is `{ title, x, y, labels: [x, y], paint, xs, ys, tell, address }`:
// two scales, a function that draws on a surface, the positions of its marks from 0 to 1, the description of a mark, and its page.

import { dash, LOADING, named, note, scale as enlarged, tame } from "./charts.js";
import { CanvasSurface, SvgSurface, cut, ramp, save, theme, widthOf } from "./plots-surface.js";

// The pointer selects marks within `REACH` pixels. A drag of less than `DRAG` pixels is a click.
const REACH = 24, DRAG = 6;
// The number of rows of the table below a plot, and the factor by which *More rows* increases it.
const ROWS = 200, MORE = 5;
// A plot is drawn when it is less than `AHEAD` pixels outside the window.
const AHEAD = 400;

const element = (name, attributes = {}, ...children) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) one.setAttribute(key, value);
  one.append(...children);
  return one;
};
const button = (words, label, work) => {
  const one = element("button", { type: "button", class: "second small", "aria-label": label }, words);
  one.addEventListener("click", work);
  return one;
};

// Returns the place of a plot on the page, and its title.
const figureOf = (name) => document.querySelector(`[data-plot="${name}"]`);
const titleOf = (name) => document.getElementById(`${name}-title`).textContent;

// The controls in the bar of a plot: each is a label and its input.
const select = (label, options, work) => {
  const choice = element("select", {}, ...options.map(([value, words]) => new Option(words, value)));
  choice.addEventListener("change", work);
  return [element("label", {}, `${label} `, choice), choice];
};
const check = (label, work) => {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", work);
  return [element("label", {}, box, ` ${label}`), box];
};
// A list of names with boxes, of which the first `most` are selected at first. Returns the element, and a function that offers names and
// returns the selected ones.
const choices = (label, most, work) => {
  const picked = new Map(), summary = element("summary", {}, label), list = element("div", { role: "group", "aria-label": label });
  const details = element("details", { class: "choice" }, summary, list);
  const isPicked = (name, at) => picked.get(name) ?? at < most;
  const offered = (name, at) => {
    const [one, box] = check(named(name), () => { picked.set(name, box.checked); work(); });
    box.checked = isPicked(name, at);
    return one;
  };
  return [details, (names) => {
    if (list.children.length !== names.length) list.replaceChildren(...names.map(offered));
    const chosen = names.filter(isPicked);
    summary.textContent = `${label}: ${chosen.length} of ${names.length}`;
    details.hidden = names.length < 2;
    return chosen;
  }];
};
const slide = (label, most, work) => {
  const range = element("input", { type: "range", min: "0", max: String(most), step: "0.01", value: "0" }), said = element("output", {}, "0");
  range.addEventListener("input", () => { said.textContent = range.value; work(); });
  return [element("label", {}, `${label} `, range, " ", said), range];
};

// The look of a line among several: one of eight colours of the style sheet, then dashed, then dotted.
const COLOURS = 8;
const lookOf = (at, width = 2) => ({ colour: `c${at % COLOURS}`, width, dash: dash(at) });
// The names of lines, each with a box that shows or hides the line. Returns the element, and a function that returns the positions of the
// visible lines.
const keys = (names, work) => {
  const boxes = names.map(() => element("input", { type: "checkbox", checked: "" }));
  const look = (at) => `mark c${at % COLOURS} ${["", "dashed", "dotted"][Math.floor(at / COLOURS) % 3]}`;
  const labels = names.map((name, at) => element("label", { class: "key" }, boxes[at], element("span", { class: look(at), "aria-hidden": "true" }), named(name)));
  const list = element("div", { class: "keys", role: "group", "aria-label": "Lines" }, ...labels);
  list.addEventListener("change", work);
  return [list, () => [...boxes.keys()].filter((at) => boxes[at].checked)];
};

// Calls `seen` with `true` when `figure` comes near the window, and with `false` when it leaves. The first call is immediate, so that a
// visible plot need not wait for the observer.
const nearing = (figure, seen) => {
  const { top, bottom } = figure.getBoundingClientRect();
  let last = top < innerHeight + AHEAD && bottom > -AHEAD;
  seen(last);
  new IntersectionObserver((entries) => {
    const now = entries.at(-1).isIntersecting;
    if (now !== last) seen(last = now);
  }, { rootMargin: `${AHEAD}px` }).observe(figure);
};

// The data of a plot as a table below it. `make` returns the function that returns at most `most` rows, `{ head, rows }`.
class DataTable {
  constructor(title, make) {
    Object.assign(this, { title, make, most: ROWS });
    this.details = element("details", { class: "plot-table" }, element("summary", {}, "As a table"));
    this.details.addEventListener("toggle", () => this.fill());
    this.more = element("p", { class: "hint" }, "", button("More rows", `${title}: more rows`, () => { this.most *= MORE; this.fill(); }));
  }
  // Updates the table if it is open.
  fill() {
    const table = this.details.open && this.make();
    if (!table) return;
    const { head, rows } = table(this.most);
    const cell = (name) => (value) => element(name, name === "th" ? { scope: "col" } : typeof value === "number" ? { class: "number" } : {}, String(value ?? ""));
    const filled = element("table", {}, element("thead", {}, element("tr", {}, ...head.map(cell("th")))), element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))));
    const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${this.title} as a table` }, filled);
    this.more.firstChild.textContent = `The first ${this.most} rows. `;
    // The button keeps the focus.
    const isFull = rows.length >= this.most;
    if (!isFull) this.more.remove();
    this.details.querySelector(".scroll")?.remove();
    this.details.firstChild.after(scroll);
    if (isFull && !this.more.isConnected) this.details.append(this.more);
  }
}

class Plot {
  // `chooser` are the names of the lines, see `keys`. On the page, it replaces the legend, which is only in downloaded files.
  constructor(figure, { name, title, controls = [], chooser = "", high = 0.36 }) {
    Object.assign(this, { figure, name, title, chooser, high, zoomed: new Map(), current: null, model: null });
    this.reset = button("Show all", `${title}: show all`, () => this.show());
    this.reset.hidden = true;
    const files = [button("PNG", `${title} as PNG`, () => this.download("png")), button("SVG", `${title} as SVG`, () => this.download("svg"))];
    this.bar = element("div", { class: "plot-bar" }, ...controls, element("span", { class: "files" }, this.reset, ...files));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", role: "status" });
    this.tip.hidden = true;
    this.over = element("canvas", { "aria-hidden": "true", class: "over" });
    this.host = element("div", { class: "plot-host", tabindex: "0", role: "application", "aria-label": title, "aria-describedby": "plot-keys" }, this.canvas, this.over);
    this.table = new DataTable(title, () => this.made()?.table);
    this.message = note("");
    figure.replaceChildren(this.bar, chooser, element("div", { class: "plot-body" }, this.host, this.tip), this.message, this.table.details);
    this.listen();
    nearing(figure, (visible) => { this.visible = visible; if (visible && this.stale) this.draw(); });
    new ResizeObserver(() => { if (this.roomOf() !== this.width) this.late(); }).observe(this.host);
    const again = () => this.late();
    addEventListener("theme", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  // Shows the model that `make` returns, immediately or when the plot comes into view. Only then is the model made, because a page has
  // many plots, and a window few.
  set(make) {
    this.make = make;
    this.late();
    this.table.fill();
  }
  late() { this.stale = true; if (this.visible) this.draw(); }
  // Returns the current model.
  made() {
    if (!this.make) return this.model;
    this.model = this.make();
    this.make = null;
    if (this.current && !this.model.panels[this.current.panel]) this.current = null;
    return this.model;
  }

  // Returns the width of the picture on the page.
  roomOf() { return Math.max(260, this.host.clientWidth); }

  draw() {
    const began = performance.now(), model = this.made();
    if (!model) return;
    this.stale = false;
    const empty = model.panels.length === 0;
    this.host.hidden = empty;
    this.bar.hidden = empty && !model.choosing;
    this.table.details.hidden = empty || !model.table;
    this.message.textContent = empty ? model.empty : model.hint ?? "";
    this.message.hidden = !this.message.textContent;
    // A plot that loads keeps its room, so that the page does not move.
    if (empty) { if (!model.loading) this.figure.dataset.drawn = 0; return; }
    const width = this.width = this.roomOf();
    this.lay(width, 0);
    for (const canvas of [this.canvas, this.over]) { canvas.style.width = `${width}px`; canvas.style.height = `${this.height}px`; }
    this.paint(new CanvasSurface(this.canvas, width, this.height, devicePixelRatio || 1));
    this.highlight();
    this.reset.hidden = this.zoomed.size === 0;
    this.figure.dataset.drawn = this.boxes.reduce((sum, { panel }) => sum + panel.xs.length, 0);
    performance.measure(`plot ${this.name}`, { start: began });
  }

  // Computes the layout of the legend and the panels in a picture of this width, below `top`.
  lay(width, top) {
    const one = this.one = enlarged(), size = this.size = 13 * one, { model } = this;
    const items = [];
    let x = 4, row = 0;
    for (const item of this.chooser && top === 0 ? [] : model.legend ?? []) {
      const label = cut(item.label, width - 34 * one, size), wide = widthOf(label, size) + 34 * one;
      if (x + wide > width && x > 4) { x = 4; row += 1; }
      items.push({ ...item, label, x, row });
      x += wide;
    }
    if (model.ramp) {
      const wide = widthOf(`${model.ramp.low}  ${model.ramp.high}  ${model.ramp.label}`, size) + 130 * one;
      if (x + wide > width && x > 4) { x = 4; row += 1; }
      items.push({ ramp: model.ramp, x, row });
    }
    this.items = items;
    const head = top + (items.length ? (row + 1) * 22 * one + 6 * one : 6 * one);
    const count = model.panels.length;
    const most = Math.max(1, Math.min(count, Math.floor(width / (300 * one))));
    // Distributes the panels evenly over the rows.
    const columns = Math.ceil(count / Math.ceil(count / most));
    const each = width / columns;
    const tall = model.high ? model.high(each, one) : Math.min(460 * one, Math.max(250 * one, each * (count === 1 ? this.high : 0.62)));
    this.boxes = model.panels.map((panel, at) => {
      const zoom = this.zoomed.get(at);
      const [xs, ys] = [zoom ? panel.x.within(zoom[0], zoom[1]) : panel.x, zoom ? panel.y.within(zoom[2], zoom[3]) : panel.y];
      // The names of options can be closer together than numbers.
      const ticks = ys.ticks(Math.floor((tall - 70 * one) / ((ys.options ? 18 : 30) * one)));
      const side = Math.min(0.35 * each, Math.max(28 * one, ...ticks.map(([, words]) => widthOf(words, size)))) + (panel.labels[1] ? 30 : 12) * one;
      const left = each * (at % columns) + side, above = head + Math.floor(at / columns) * tall + (panel.title ? 22 : 6) * one;
      return { panel, zoom: zoom ?? [0, 1, 0, 1], x: xs, y: ys, ticks, left, side, top: above, width: each - side - 12 * one, height: tall - (panel.title ? 22 : 6) * one - 46 * one };
    });
    this.height = Math.ceil(head + Math.ceil(count / columns) * tall);
  }

  paint(surface) {
    const colours = theme();
    this.legend(surface, colours);
    for (const box of this.boxes) {
      const { panel, x, y, left, top, width, height } = box, { size, one } = this;
      const right = left + width, bottom = top + height;
      const at = { x: (part) => left + part * width, y: (part) => bottom - part * height }, [a, b, c, d] = box.zoom;
      // Convert a position on the whole scale, of which a zoom shows a section, into pixels.
      box.px = (part) => at.x((part - a) / (b - a));
      box.py = (part) => at.y((part - c) / (d - c));
      if (panel.title) surface.text(cut(tame(panel.title), width, size), left, top - 8 * one, { fill: colours.text, size, weight: 600 });
      for (const [value, words] of box.ticks) {
        const place = at.y(y.part(value));
        if (place < top - 1 || place > bottom + 1) continue;
        surface.line([left, place, right, place], { stroke: colours.grid });
        surface.text(cut(words, box.side - (panel.labels[1] ? 28 : 10) * one, size), left - 7 * one, place + size * 0.35, { fill: colours.quiet, size, align: "right" });
      }
      const marks = this.across(x, width);
      for (const [value, words] of marks) {
        const place = at.x(x.part(value));
        if (place < left - 1 || place > right + 1) continue;
        surface.line([place, top, place, bottom], { stroke: colours.grid });
        // A label stays within the picture, whose right margin is narrow.
        const half = widthOf(words, size) / 2;
        surface.text(words, Math.min(Math.max(left, place), right + 10 * one - half), bottom + 18 * one, { fill: colours.quiet, size, align: "center" });
      }
      surface.text(cut(panel.labels[0], width, size), left + width / 2, bottom + 38 * one, { fill: colours.quiet, size, align: "center" });
      if (panel.labels[1]) surface.text(cut(panel.labels[1], height, size), left - box.side + 14 * one, top + height / 2, { fill: colours.quiet, size, align: "center", turned: true });
      surface.within(left, top, width, height, () => panel.paint(surface, box, colours));
      surface.line([left, top, left, bottom, right, bottom], { stroke: colours.line });
    }
  }
  // Returns as many ticks along the width as have room for their labels.
  across(scale, width) {
    for (let most = Math.max(2, Math.floor(width / (56 * this.one))); most > 1; most -= 1) {
      const ticks = scale.ticks(most);
      const wide = Math.max(0, ...ticks.map(([, words]) => widthOf(words, this.size))) + 10 * this.one;
      const parts = ticks.map(([value]) => scale.part(value) * width);
      if (parts.every((part, at) => at === 0 || part - parts[at - 1] >= wide)) return ticks.map(([value, words]) => [value, scale.options ? cut(words, Math.max(wide, width / ticks.length), this.size) : words]);
    }
    return scale.ticks(1).map(([value, words]) => [value, cut(words, width / 2, this.size)]);
  }
  legend(surface, colours) {
    const { one, size } = this;
    const first = this.boxes[0].top - (this.model.panels[0].title ? 22 : 6) * one - (Math.max(0, ...this.items.map((item) => item.row)) + 1) * 22 * one;
    for (const item of this.items) {
      const y = first + item.row * 22 * one + 6 * one, colour = colours[item.colour] ?? item.colour;
      if (item.ramp) {
        const { colours: steps } = ramp(colours);
        const wide = 96 * one / steps.length, from = item.x + widthOf(item.ramp.low, size) + 8 * one;
        surface.text(item.ramp.low, item.x + 4 * one, y + size * 0.35, { fill: colours.quiet, size });
        steps.forEach((step, at) => surface.rect(from + at * wide, y - 6 * one, wide + 0.5, 12 * one, { fill: step }));
        surface.text(`${item.ramp.high}  ${item.ramp.label}`, from + 104 * one, y + size * 0.35, { fill: colours.quiet, size });
        continue;
      }
      if (item.kind === "line") surface.line([item.x + 2 * one, y, item.x + 20 * one, y], { stroke: colour, width: 2.5 * one, dash: item.dash });
      else if (item.kind === "bar") surface.rect(item.x + 4 * one, y - 6 * one, 14 * one, 12 * one, { fill: colour });
      else surface.marks(item.kind, [item.x + 11 * one], [y], 9 * one, colour);
      surface.text(item.label, item.x + 25 * one, y + size * 0.35, { fill: colours.text, size });
    }
  }
  place(box, mark) { return [box.px(box.panel.xs[mark]), box.py(box.panel.ys[mark])]; }
  // Highlights the selected mark on the canvas above the plot.
  highlight() {
    const { current, over } = this, width = parseFloat(this.canvas.style.width);
    const surface = new CanvasSurface(over, width, this.height, devicePixelRatio || 1);
    const box = current && this.boxes[current.panel];
    if (!box || current.mark >= box.panel.xs.length) return;
    const colours = theme(), [x, y] = this.place(box, current.mark);
    surface.within(box.left - 8, box.top - 8, box.width + 16, box.height + 16, () => {
      if (box.panel.point) box.panel.point(surface, box, colours, current.mark);
      else surface.marks("ring", [x], [y], 14 * this.one, colours.text);
    });
  }

  // ---- the pointer and the keyboard ----
  listen() {
    const { host } = this;
    let from = null;
    const here = (event) => { const { left, top } = host.getBoundingClientRect(); return [event.clientX - left, event.clientY - top]; };
    host.addEventListener("pointermove", (event) => {
      const [x, y] = here(event);
      if (!from) { this.point(this.near(x, y)); return; }
      if (Math.hypot(x - from.x, y - from.y) > DRAG) this.stretch(from, x, y);
    });
    host.addEventListener("pointerleave", () => { if (!from && document.activeElement !== host) this.point(null); });
    host.addEventListener("pointerdown", (event) => {
      const [x, y] = here(event), panel = this.boxes?.findIndex((box) => x >= box.left && x <= box.left + box.width && y >= box.top && y <= box.top + box.height);
      if (event.button !== 0 || !(panel >= 0)) return;
      from = { x, y, panel };
      host.setPointerCapture(event.pointerId);
    });
    host.addEventListener("pointerup", (event) => {
      if (!from) return;
      const [x, y] = here(event), start = from;
      from = null;
      this.frame?.remove();
      this.frame = null;
      if (Math.hypot(x - start.x, y - start.y) > DRAG) { this.zoom(start, x, y); return; }
      const before = this.current, near = this.near(x, y);
      const same = near && before && near.panel === before.panel && near.mark === before.mark;
      this.point(near);
      // On touch screens, the first tap selects a mark and the second opens it.
      if (near && (event.pointerType !== "touch" || same)) this.open(event);
    });
    host.addEventListener("pointercancel", () => { from = null; this.frame?.remove(); this.frame = null; });
    host.addEventListener("dblclick", () => this.show());
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("blur", () => this.point(null));
  }
  near(x, y) {
    let best = null, least = REACH;
    for (const [panel, box] of (this.boxes ?? []).entries()) {
      if (x < box.left - REACH || x > box.left + box.width + REACH || y < box.top - REACH || y > box.top + box.height + REACH) continue;
      if (box.panel.hit) { const mark = box.panel.hit(box, x, y); if (mark !== null) return { panel, mark }; continue; }
      for (let mark = 0; mark < box.panel.xs.length; mark += 1) {
        const [px, py] = this.place(box, mark), far = Math.hypot(px - x, py - y);
        if (far < least && px >= box.left - 2 && px <= box.left + box.width + 2) { least = far; best = { panel, mark }; }
      }
    }
    return best;
  }
  point(mark) {
    if (mark?.panel === this.current?.panel && mark?.mark === this.current?.mark) return;
    this.current = mark;
    this.highlight();
    this.tip.hidden = !mark;
    this.host.style.cursor = mark && this.model.panels[mark.panel].address?.(mark.mark) ? "pointer" : "crosshair";
    if (!mark) return;
    const box = this.boxes[mark.panel], [title, ...lines] = box.panel.tell(mark.mark);
    this.tip.replaceChildren(element("strong", {}, title), ...lines.map((line) => element("div", {}, line)));
    const [x, y] = this.place(box, mark.mark);
    const { offsetWidth: wide, offsetHeight: tall } = this.tip, room = this.host.clientWidth;
    this.tip.style.left = `${Math.max(0, x + 16 + wide > room ? x - wide - 16 : x + 16)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.height - tall, y - tall / 2))}px`;
  }
  open(event) {
    const { current } = this;
    const address = current && this.model.panels[current.panel].address?.(current.mark);
    if (!address) return;
    if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener"); else location.assign(address);
  }
  stretch(from, x, y) {
    const box = this.boxes[from.panel];
    this.frame ??= this.host.appendChild(element("div", { class: "zoom-frame" }));
    const [x1, x2] = [from.x, x].sort((a, b) => a - b).map((one) => Math.max(box.left, Math.min(box.left + box.width, one)));
    let [y1, y2] = [from.y, y].sort((a, b) => a - b).map((one) => Math.max(box.top, Math.min(box.top + box.height, one)));
    if (y2 - y1 < 3 * DRAG) [y1, y2] = [box.top, box.top + box.height];
    Object.assign(this.frame.style, { left: `${x1}px`, top: `${y1}px`, width: `${x2 - x1}px`, height: `${y2 - y1}px` });
  }
  zoom(from, x, y) {
    const box = this.boxes[from.panel], clamp = (part) => Math.max(0, Math.min(1, part));
    let [x1, x2] = [from.x, x].sort((a, b) => a - b).map((one) => clamp((one - box.left) / box.width));
    let [y1, y2] = [from.y, y].sort((a, b) => b - a).map((one) => clamp(1 - (one - box.top) / box.height));
    if ((x2 - x1) * box.width < 3 * DRAG) [x1, x2] = [0, 1];
    if ((y2 - y1) * box.height < 3 * DRAG) [y1, y2] = [0, 1];
    this.into(from.panel, [x1, x2, y1, y2]);
  }
  // Zooms into a section of the visible part of a panel.
  into(panel, [x1, x2, y1, y2]) {
    const [a, b, c, d] = this.zoomed.get(panel) ?? [0, 1, 0, 1];
    const next = [a + x1 * (b - a), a + x2 * (b - a), c + y1 * (d - c), c + y2 * (d - c)];
    if (next[1] - next[0] < 1e-9 || next[3] - next[2] < 1e-9) return;
    this.zoomed.set(panel, next);
    this.current = null;
    this.tip.hidden = true;
    this.draw();
  }
  show() { this.zoomed.clear(); this.current = null; this.tip.hidden = true; this.draw(); }
  key(event) {
    if (event.altKey || !this.boxes?.length) return;
    const panel = this.current?.panel ?? 0, box = this.boxes[panel], seen = this.inOrder(box);
    const now = this.current ? seen.indexOf(this.current.mark) : -1;
    const to = (at) => seen.length ? { panel, mark: seen[Math.max(0, Math.min(seen.length - 1, at))] } : null;
    const other = (by) => { const next = (panel + by + this.boxes.length) % this.boxes.length, marks = this.inOrder(this.boxes[next]); return marks.length ? { panel: next, mark: marks[0] } : null; };
    const moves = { ArrowRight: () => to(now + 1), ArrowLeft: () => to(now < 0 ? 0 : now - 1), PageDown: () => to(now + 20), PageUp: () => to(now - 20), Home: () => to(0), End: () => to(seen.length - 1), ArrowDown: () => other(1), ArrowUp: () => other(-1) };
    if (moves[event.key]) this.point(moves[event.key]());
    else if (event.key === "Enter") this.open(event);
    else if (event.key === "Escape" || event.key === "0") this.show();
    else if (event.key === "+" || event.key === "=") {
      const [x, y] = this.current ? this.place(box, this.current.mark) : [box.left + box.width / 2, box.top + box.height / 2];
      const middle = (part) => [Math.max(0, part - 0.3), Math.min(1, part + 0.3)];
      this.into(panel, [...middle((x - box.left) / box.width), ...middle(1 - (y - box.top) / box.height)]);
    } else if (event.key === "-") {
      const zoom = this.zoomed.get(panel);
      if (zoom) { const wide = ([a, b]) => [Math.max(0, a - (b - a) / 2), Math.min(1, b + (b - a) / 2)]; const next = [...wide(zoom.slice(0, 2)), ...wide(zoom.slice(2))]; if (next.join() === "0,1,0,1") this.zoomed.delete(panel); else this.zoomed.set(panel, next); this.draw(); }
    } else return;
    event.preventDefault();
  }
  inOrder(box) {
    const inside = [];
    for (let mark = 0; mark < box.panel.xs.length; mark += 1) { const [x, y] = this.place(box, mark); if (x >= box.left - 1 && x <= box.left + box.width + 1 && y >= box.top - 1 && y <= box.top + box.height + 1) inside.push([x, mark]); }
    return inside.sort((a, b) => a[0] - b[0]).map(([, mark]) => mark);
  }

  // ---- the files ----
  async download(kind) {
    if (this.stale) this.draw();
    const width = Math.max(720, this.host.clientWidth), colours = theme();
    const name = `${document.body.dataset.experiment ?? "plot"}-${this.name}.${kind}`;
    this.lay(width, 36 * enlarged());
    const height = this.height + 8;
    const canvas = document.createElement("canvas");
    const surface = kind === "svg" ? new SvgSurface(width, height) : new CanvasSurface(canvas, width, height, 2);
    surface.rect(0, 0, width, height, { fill: colours.card });
    surface.text(`${this.title} · ${document.title.split(" · ").at(-1)}`, 8, 24 * enlarged(), { fill: colours.text, size: 16 * enlarged(), weight: 600 });
    this.paint(surface);
    this.draw();
    if (kind === "svg") save(new Blob([surface.toString()], { type: "image/svg+xml" }), name);
    else canvas.toBlob((blob) => save(blob, name), "image/png");
  }
}

// A plot that fetches its data when it comes into view, and again after a change while it is visible.
const lazily = (id, controls, bring, model, paced, chooser = "") => {
  const place = figureOf(id);
  const plot = new Plot(place, { name: id, title: titleOf(id), controls, chooser });
  let old = true, seen = false, failed = null;
  const update = () => plot.set(failed ? () => ({ panels: [], empty: failed }) : model);
  const fetched = paced(5000, async () => {
    old = false;
    try { await bring(); failed = null; } catch (error) { old = true; failed = `Cannot load this plot: ${error.message}`; }
    update();
  });
  plot.set(() => LOADING);
  nearing(place, (near) => { seen = near; if (seen && old) fetched(); });
  return { plot, update, load: () => { if (old) fetched(); }, news: () => { old = true; if (seen) fetched(); } };
};

export { check, choices, DataTable, element, figureOf, keys, lazily, lookOf, nearing, Plot, select, slide, titleOf };
