// The frame of a plot: panels with axes, a legend, zoom, the selected mark, downloads, and the data as a table. The frame knows nothing
// about trials: each panel describes its marks and their pages.
//
// A model is `{ panels, legend, ramp, table, empty, computeHeight, hint }`. A panel is `{ title, x, y, labels: [x, y], paint, xs, ys, describe, address }`:
// two scales, a function that draws on a surface, the positions of its marks from 0 to 1, the description of a mark, and its page.

import { chooseDash, LOADING_MODEL, shortenName, createHint, readFontScale, sanitiseText } from "./charts.js";
import { CanvasSurface, SvgSurface, truncateText, createRamp, saveFile, readColours, measureText } from "./plots-surface.js";
import { throttle } from "./updates.js";

// The pointer selects marks within `SELECTION_DISTANCE` pixels. A drag of less than `MIN_DRAG_DISTANCE` pixels is a click.
const SELECTION_DISTANCE = 24, MIN_DRAG_DISTANCE = 6;
// The number of rows of the table below a plot, and the factor by which *More rows* increases it.
const INITIAL_ROWS = 200, ROW_FACTOR = 5;
// A plot is drawn when it is less than `DRAW_MARGIN` pixels outside the window.
const DRAW_MARGIN = 400;

const createElement = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const createButton = (text, label, handleClick) => {
  const button = createElement("button", { type: "button", class: "second small", "aria-label": label }, text);
  button.addEventListener("click", handleClick);
  return button;
};

// Returns the place of a plot on the page, and its title.
const findFigure = (name) => document.querySelector(`[data-plot="${name}"]`);
const readTitle = (name) => document.getElementById(`${name}-title`).textContent;

// The controls in the bar of a plot: each is a label and its input.
const createSelect = (label, options, handleChange) => {
  const choice = createElement("select", {}, ...options.map(([value, text]) => new Option(text, value)));
  choice.addEventListener("change", handleChange);
  return [createElement("label", {}, `${label} `, choice), choice];
};
const createCheckbox = (label, handleChange) => {
  const box = createElement("input", { type: "checkbox" });
  box.addEventListener("change", handleChange);
  return [createElement("label", {}, box, ` ${label}`), box];
};
// A list of names with boxes, of which the first `initialCount` are selected at first. Returns the element, and a function that offers names and
// returns the selected ones.
const createNameList = (label, initialCount, handleChange) => {
  const selection = new Map(), summary = createElement("summary", {}, label), list = createElement("div", { role: "group", "aria-label": label });
  const details = createElement("details", { class: "choice" }, summary, list);
  const isSelected = (name, index) => selection.get(name) ?? index < initialCount;
  const createNameBox = (name, index) => {
    const [label, box] = createCheckbox(shortenName(name), () => { selection.set(name, box.checked); handleChange(); });
    box.checked = isSelected(name, index);
    return label;
  };
  return [details, (names) => {
    if (list.children.length !== names.length) list.replaceChildren(...names.map(createNameBox));
    const selected = names.filter(isSelected);
    summary.textContent = `${label}: ${selected.length} of ${names.length}`;
    details.hidden = names.length < 2;
    return selected;
  }];
};
const createSlider = (label, max, handleChange) => {
  const range = createElement("input", { type: "range", min: "0", max: String(max), step: "0.01", value: "0" }), output = createElement("output", {}, "0");
  range.addEventListener("input", () => { output.textContent = range.value; handleChange(); });
  return [createElement("label", {}, `${label} `, range, " ", output), range];
};

// The look of a line among several: one of eight colours of the style sheet, then dashed, then dotted.
const COLOUR_COUNT = 8;
const chooseLineStyle = (index, width = 2) => ({ colour: `c${index % COLOUR_COUNT}`, width, dash: chooseDash(index) });
// The names of lines, each with a box that shows or hides the line. Returns the element, and a function that returns the positions of the
// visible lines.
const createLineList = (names, handleChange) => {
  const boxes = names.map(() => createElement("input", { type: "checkbox", checked: "" }));
  const formatMarkClass = (index) => `mark c${index % COLOUR_COUNT} ${["", "dashed", "dotted"][Math.floor(index / COLOUR_COUNT) % 3]}`;
  const labels = names.map((name, index) => createElement("label", { class: "key" }, boxes[index], createElement("span", { class: formatMarkClass(index), "aria-hidden": "true" }), shortenName(name)));
  const list = createElement("div", { class: "keys", role: "group", "aria-label": "Lines" }, ...labels);
  list.addEventListener("change", handleChange);
  return [list, () => [...boxes.keys()].filter((index) => boxes[index].checked)];
};

// Calls `handleNearness` with `true` when `figure` comes near the window, and with `false` when it leaves. The first call is immediate, so that a
// visible plot need not wait for the observer.
const observeNearness = (figure, handleNearness) => {
  const { top, bottom } = figure.getBoundingClientRect();
  let wasNear = top < innerHeight + DRAW_MARGIN && bottom > -DRAW_MARGIN;
  handleNearness(wasNear);
  new IntersectionObserver((entries) => {
    const isNear = entries.at(-1).isIntersecting;
    if (isNear !== wasNear) handleNearness(wasNear = isNear);
  }, { rootMargin: `${DRAW_MARGIN}px` }).observe(figure);
};

// The data of a plot as a table below it. `make` returns the function that returns at most `maxRows` rows, `{ head, rows }`.
class DataTable {
  constructor(title, make) {
    Object.assign(this, { title, make, maxRows: INITIAL_ROWS });
    this.details = createElement("details", { class: "plot-table" }, createElement("summary", {}, "As a table"));
    this.details.addEventListener("toggle", () => this.fill());
    this.more = createElement("p", { class: "hint" }, "", createButton("More rows", `${title}: more rows`, () => { this.maxRows *= ROW_FACTOR; this.fill(); }));
  }
  // Updates the table if it is open.
  fill() {
    const table = this.details.open && this.make();
    if (!table) return;
    const { head, rows } = table(this.maxRows);
    const cell = (name) => (value) => createElement(name, name === "th" ? { scope: "col" } : typeof value === "number" ? { class: "number" } : {}, String(value ?? ""));
    const body = createElement("table", {}, createElement("thead", {}, createElement("tr", {}, ...head.map(cell("th")))), createElement("tbody", {}, ...rows.map((row) => createElement("tr", {}, ...row.map(cell("td"))))));
    const scroll = createElement("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${this.title} as a table` }, body);
    this.more.firstChild.textContent = `The first ${this.maxRows} rows. `;
    // The button keeps the focus.
    const isFull = rows.length >= this.maxRows;
    if (!isFull) this.more.remove();
    this.details.querySelector(".scroll")?.remove();
    this.details.firstChild.after(scroll);
    if (isFull && !this.more.isConnected) this.details.append(this.more);
  }
}

class Plot {
  // `chooser` are the names of the lines, see `createLineList`. On the page, it replaces the legend, which is only in downloaded files.
  constructor(figure, { name, title, controls = [], chooser = "", heightRatio = 0.36 }) {
    Object.assign(this, { figure, name, title, chooser, heightRatio, zoomByPanel: new Map(), current: null, model: null });
    this.reset = createButton("Show all", `${title}: show all`, () => this.showAll());
    this.reset.hidden = true;
    const files = [createButton("PNG", `${title} as PNG`, () => this.download("png")), createButton("SVG", `${title} as SVG`, () => this.download("svg"))];
    this.bar = createElement("div", { class: "plot-bar" }, ...controls, createElement("span", { class: "files" }, this.reset, ...files));
    this.canvas = createElement("canvas", { "aria-hidden": "true" });
    this.tip = createElement("div", { class: "tip", role: "status" });
    this.tip.hidden = true;
    this.overlay = createElement("canvas", { "aria-hidden": "true", class: "over" });
    this.host = createElement("div", { class: "plot-host", tabindex: "0", role: "application", "aria-label": title, "aria-describedby": "plot-keys" }, this.canvas, this.overlay);
    this.table = new DataTable(title, () => this.getModel()?.table);
    this.message = createHint("");
    figure.replaceChildren(this.bar, chooser, createElement("div", { class: "plot-body" }, this.host, this.tip), this.message, this.table.details);
    this.addListeners();
    observeNearness(figure, (visible) => { this.visible = visible; if (visible && this.stale) this.draw(); });
    new ResizeObserver(() => { if (this.measureWidth() !== this.width) this.invalidate(); }).observe(this.host);
    const redraw = () => this.invalidate();
    addEventListener("theme", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  // Shows the model that `make` returns, immediately or when the plot comes into view. Only then is the model made, because a page has
  // many plots, and a window few.
  set(make) {
    this.make = make;
    this.invalidate();
    this.table.fill();
  }
  invalidate() { this.stale = true; if (this.visible) this.draw(); }
  // Returns the current model.
  getModel() {
    if (!this.make) return this.model;
    this.model = this.make();
    this.make = null;
    if (this.current && !this.model.panels[this.current.panel]) this.current = null;
    return this.model;
  }

  // Returns the width of the picture on the page.
  measureWidth() { return Math.max(260, this.host.clientWidth); }

  draw() {
    const startedAt = performance.now(), model = this.getModel();
    if (!model) return;
    this.stale = false;
    const isEmpty = model.panels.length === 0;
    this.host.hidden = isEmpty;
    this.bar.hidden = isEmpty && !model.keepsControls;
    this.table.details.hidden = isEmpty || !model.table;
    this.message.textContent = isEmpty ? model.empty : model.hint ?? "";
    this.message.hidden = !this.message.textContent;
    // A plot that loads keeps its room, so that the page does not move.
    if (isEmpty) { if (!model.loading) this.figure.dataset.drawn = 0; return; }
    const width = this.width = this.measureWidth();
    this.computeLayout(width, 0);
    for (const canvas of [this.canvas, this.overlay]) { canvas.style.width = `${width}px`; canvas.style.height = `${this.height}px`; }
    this.paint(new CanvasSurface(this.canvas, width, this.height, devicePixelRatio || 1));
    this.highlight();
    this.reset.hidden = this.zoomByPanel.size === 0;
    this.figure.dataset.drawn = this.boxes.reduce((sum, { panel }) => sum + panel.xs.length, 0);
    performance.measure(`plot ${this.name}`, { start: startedAt });
  }

  // Computes the layout of the legend and the panels in a picture of this width, below `top`.
  computeLayout(width, top) {
    const fontScale = this.fontScale = readFontScale(), size = this.size = 13 * fontScale, { model } = this;
    const items = [];
    let x = 4, row = 0;
    for (const item of this.chooser && top === 0 ? [] : model.legend ?? []) {
      const label = truncateText(item.label, width - 34 * fontScale, size), itemWidth = measureText(label, size) + 34 * fontScale;
      if (x + itemWidth > width && x > 4) { x = 4; row += 1; }
      items.push({ ...item, label, x, row });
      x += itemWidth;
    }
    if (model.ramp) {
      const itemWidth = measureText(`${model.ramp.low}  ${model.ramp.high}  ${model.ramp.label}`, size) + 130 * fontScale;
      if (x + itemWidth > width && x > 4) { x = 4; row += 1; }
      items.push({ ramp: model.ramp, x, row });
    }
    this.items = items;
    const topMargin = top + (items.length ? (row + 1) * 22 * fontScale + 6 * fontScale : 6 * fontScale);
    const count = model.panels.length;
    const maxColumns = Math.max(1, Math.min(count, Math.floor(width / (300 * fontScale))));
    // Distributes the panels evenly over the rows.
    const columns = Math.ceil(count / Math.ceil(count / maxColumns));
    const panelWidth = width / columns;
    const panelHeight = model.computeHeight ? model.computeHeight(panelWidth, fontScale) : Math.min(460 * fontScale, Math.max(250 * fontScale, panelWidth * (count === 1 ? this.heightRatio : 0.62)));
    this.boxes = model.panels.map((panel, index) => {
      const zoom = this.zoomByPanel.get(index);
      const [xScale, yScale] = [zoom ? panel.x.zoomTo(zoom[0], zoom[1]) : panel.x, zoom ? panel.y.zoomTo(zoom[2], zoom[3]) : panel.y];
      // The names of options can be closer together than numbers.
      const ticks = yScale.ticks(Math.floor((panelHeight - 70 * fontScale) / ((yScale.options ? 18 : 30) * fontScale)));
      const axisWidth = Math.min(0.35 * panelWidth, Math.max(28 * fontScale, ...ticks.map(([, text]) => measureText(text, size)))) + (panel.labels[1] ? 30 : 12) * fontScale;
      const left = panelWidth * (index % columns) + axisWidth, panelTop = topMargin + Math.floor(index / columns) * panelHeight + (panel.title ? 22 : 6) * fontScale;
      return { panel, zoom: zoom ?? [0, 1, 0, 1], x: xScale, y: yScale, ticks, left, axisWidth, top: panelTop, width: panelWidth - axisWidth - 12 * fontScale, height: panelHeight - (panel.title ? 22 : 6) * fontScale - 46 * fontScale };
    });
    this.height = Math.ceil(topMargin + Math.ceil(count / columns) * panelHeight);
  }

  paint(surface) {
    const colours = readColours();
    this.drawLegend(surface, colours);
    for (const box of this.boxes) {
      const { panel, x, y, left, top, width, height } = box, { size, fontScale } = this;
      const right = left + width, bottom = top + height;
      const toPixel = { x: (part) => left + part * width, y: (part) => bottom - part * height }, [zoomLeft, zoomRight, zoomBottom, zoomTop] = box.zoom;
      // Convert a position on the whole scale, of which a zoom shows a section, into pixels.
      box.px = (part) => toPixel.x((part - zoomLeft) / (zoomRight - zoomLeft));
      box.py = (part) => toPixel.y((part - zoomBottom) / (zoomTop - zoomBottom));
      if (panel.title) surface.drawText(truncateText(sanitiseText(panel.title), width, size), left, top - 8 * fontScale, { fill: colours.text, size, weight: 600 });
      for (const [value, text] of box.ticks) {
        const position = toPixel.y(y.toPosition(value));
        if (position < top - 1 || position > bottom + 1) continue;
        surface.drawLine([left, position, right, position], { stroke: colours.grid });
        surface.drawText(truncateText(text, box.axisWidth - (panel.labels[1] ? 28 : 10) * fontScale, size), left - 7 * fontScale, position + size * 0.35, { fill: colours.quiet, size, align: "right" });
      }
      const marks = this.chooseHorizontalTicks(x, width);
      for (const [value, text] of marks) {
        const position = toPixel.x(x.toPosition(value));
        if (position < left - 1 || position > right + 1) continue;
        surface.drawLine([position, top, position, bottom], { stroke: colours.grid });
        // A label stays within the picture, whose right margin is narrow.
        const halfWidth = measureText(text, size) / 2;
        surface.drawText(text, Math.min(Math.max(left, position), right + 10 * fontScale - halfWidth), bottom + 18 * fontScale, { fill: colours.quiet, size, align: "center" });
      }
      surface.drawText(truncateText(panel.labels[0], width, size), left + width / 2, bottom + 38 * fontScale, { fill: colours.quiet, size, align: "center" });
      if (panel.labels[1]) surface.drawText(truncateText(panel.labels[1], height, size), left - box.axisWidth + 14 * fontScale, top + height / 2, { fill: colours.quiet, size, align: "center", turned: true });
      surface.clip(left, top, width, height, () => panel.paint(surface, box, colours));
      surface.drawLine([left, top, left, bottom, right, bottom], { stroke: colours.line });
    }
  }
  // Returns as many ticks along the width as have room for their labels.
  chooseHorizontalTicks(scale, width) {
    for (let maxCount = Math.max(2, Math.floor(width / (56 * this.fontScale))); maxCount > 1; maxCount -= 1) {
      const ticks = scale.ticks(maxCount);
      const minDistance = Math.max(0, ...ticks.map(([, text]) => measureText(text, this.size))) + 10 * this.fontScale;
      const parts = ticks.map(([value]) => scale.toPosition(value) * width);
      if (parts.every((part, index) => index === 0 || part - parts[index - 1] >= minDistance)) return ticks.map(([value, text]) => [value, scale.options ? truncateText(text, Math.max(minDistance, width / ticks.length), this.size) : text]);
    }
    return scale.ticks(1).map(([value, text]) => [value, truncateText(text, width / 2, this.size)]);
  }
  drawLegend(surface, colours) {
    const { fontScale, size } = this;
    const first = this.boxes[0].top - (this.model.panels[0].title ? 22 : 6) * fontScale - (Math.max(0, ...this.items.map((item) => item.row)) + 1) * 22 * fontScale;
    for (const item of this.items) {
      const y = first + item.row * 22 * fontScale + 6 * fontScale, colour = colours[item.colour] ?? item.colour;
      if (item.ramp) {
        const { colours: steps } = createRamp(colours);
        const stepWidth = 96 * fontScale / steps.length, from = item.x + measureText(item.ramp.low, size) + 8 * fontScale;
        surface.drawText(item.ramp.low, item.x + 4 * fontScale, y + size * 0.35, { fill: colours.quiet, size });
        steps.forEach((step, index) => surface.drawRect(from + index * stepWidth, y - 6 * fontScale, stepWidth + 0.5, 12 * fontScale, { fill: step }));
        surface.drawText(`${item.ramp.high}  ${item.ramp.label}`, from + 104 * fontScale, y + size * 0.35, { fill: colours.quiet, size });
        continue;
      }
      if (item.kind === "line") surface.drawLine([item.x + 2 * fontScale, y, item.x + 20 * fontScale, y], { stroke: colour, width: 2.5 * fontScale, dash: item.dash });
      else if (item.kind === "bar") surface.drawRect(item.x + 4 * fontScale, y - 6 * fontScale, 14 * fontScale, 12 * fontScale, { fill: colour });
      else surface.drawMarks(item.kind, [item.x + 11 * fontScale], [y], 9 * fontScale, colour);
      surface.drawText(item.label, item.x + 25 * fontScale, y + size * 0.35, { fill: colours.text, size });
    }
  }
  locateMark(box, mark) { return [box.px(box.panel.xs[mark]), box.py(box.panel.ys[mark])]; }
  // Highlights the selected mark on the canvas above the plot.
  highlight() {
    const { current, overlay } = this, width = parseFloat(this.canvas.style.width);
    const surface = new CanvasSurface(overlay, width, this.height, devicePixelRatio || 1);
    const box = current && this.boxes[current.panel];
    if (!box || current.mark >= box.panel.xs.length) return;
    const colours = readColours(), [x, y] = this.locateMark(box, current.mark);
    surface.clip(box.left - 8, box.top - 8, box.width + 16, box.height + 16, () => {
      if (box.panel.highlight) box.panel.highlight(surface, box, colours, current.mark);
      else surface.drawMarks("ring", [x], [y], 14 * this.fontScale, colours.text);
    });
  }

  // ---- the pointer and the keyboard ----
  addListeners() {
    const { host } = this;
    let dragStart = null;
    const locatePointer = (event) => { const { left, top } = host.getBoundingClientRect(); return [event.clientX - left, event.clientY - top]; };
    host.addEventListener("pointermove", (event) => {
      const [x, y] = locatePointer(event);
      if (!dragStart) { this.selectMark(this.findNearestMark(x, y)); return; }
      if (Math.hypot(x - dragStart.x, y - dragStart.y) > MIN_DRAG_DISTANCE) this.showZoomFrame(dragStart, x, y);
    });
    host.addEventListener("pointerleave", () => { if (!dragStart && document.activeElement !== host) this.selectMark(null); });
    host.addEventListener("pointerdown", (event) => {
      const [x, y] = locatePointer(event), panel = this.boxes?.findIndex((box) => x >= box.left && x <= box.left + box.width && y >= box.top && y <= box.top + box.height);
      if (event.button !== 0 || !(panel >= 0)) return;
      dragStart = { x, y, panel };
      host.setPointerCapture(event.pointerId);
    });
    host.addEventListener("pointerup", (event) => {
      if (!dragStart) return;
      const [x, y] = locatePointer(event), start = dragStart;
      dragStart = null;
      this.frame?.remove();
      this.frame = null;
      if (Math.hypot(x - start.x, y - start.y) > MIN_DRAG_DISTANCE) { this.zoomTo(start, x, y); return; }
      const previous = this.current, nearest = this.findNearestMark(x, y);
      const isSelected = nearest && previous && nearest.panel === previous.panel && nearest.mark === previous.mark;
      this.selectMark(nearest);
      // On touch screens, the first tap selects a mark and the second opens it.
      if (nearest && (event.pointerType !== "touch" || isSelected)) this.openTrial(event);
    });
    host.addEventListener("pointercancel", () => { dragStart = null; this.frame?.remove(); this.frame = null; });
    host.addEventListener("dblclick", () => this.showAll());
    host.addEventListener("keydown", (event) => this.handleKey(event));
    host.addEventListener("blur", () => this.selectMark(null));
  }
  findNearestMark(x, y) {
    let nearest = null, minDistance = SELECTION_DISTANCE;
    for (const [panel, box] of (this.boxes ?? []).entries()) {
      if (x < box.left - SELECTION_DISTANCE || x > box.left + box.width + SELECTION_DISTANCE || y < box.top - SELECTION_DISTANCE || y > box.top + box.height + SELECTION_DISTANCE) continue;
      if (box.panel.findMark) { const mark = box.panel.findMark(box, x, y); if (mark !== null) return { panel, mark }; continue; }
      for (let mark = 0; mark < box.panel.xs.length; mark += 1) {
        const [px, py] = this.locateMark(box, mark), distance = Math.hypot(px - x, py - y);
        if (distance < minDistance && px >= box.left - 2 && px <= box.left + box.width + 2) { minDistance = distance; nearest = { panel, mark }; }
      }
    }
    return nearest;
  }
  selectMark(mark) {
    if (mark?.panel === this.current?.panel && mark?.mark === this.current?.mark) return;
    this.current = mark;
    this.highlight();
    this.tip.hidden = !mark;
    this.host.style.cursor = mark && this.model.panels[mark.panel].address?.(mark.mark) ? "pointer" : "crosshair";
    if (!mark) return;
    const box = this.boxes[mark.panel], [title, ...lines] = box.panel.describe(mark.mark);
    this.tip.replaceChildren(createElement("strong", {}, title), ...lines.map((line) => createElement("div", {}, line)));
    const [x, y] = this.locateMark(box, mark.mark);
    const { offsetWidth: tipWidth, offsetHeight: tipHeight } = this.tip, hostWidth = this.host.clientWidth;
    this.tip.style.left = `${Math.max(0, x + 16 + tipWidth > hostWidth ? x - tipWidth - 16 : x + 16)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.height - tipHeight, y - tipHeight / 2))}px`;
  }
  openTrial(event) {
    const { current } = this;
    const address = current && this.model.panels[current.panel].address?.(current.mark);
    if (!address) return;
    if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener"); else location.assign(address);
  }
  showZoomFrame(start, x, y) {
    const box = this.boxes[start.panel];
    this.frame ??= this.host.appendChild(createElement("div", { class: "zoom-frame" }));
    const [x1, x2] = [start.x, x].sort((a, b) => a - b).map((coordinate) => Math.max(box.left, Math.min(box.left + box.width, coordinate)));
    let [y1, y2] = [start.y, y].sort((a, b) => a - b).map((coordinate) => Math.max(box.top, Math.min(box.top + box.height, coordinate)));
    if (y2 - y1 < 3 * MIN_DRAG_DISTANCE) [y1, y2] = [box.top, box.top + box.height];
    Object.assign(this.frame.style, { left: `${x1}px`, top: `${y1}px`, width: `${x2 - x1}px`, height: `${y2 - y1}px` });
  }
  zoomTo(start, x, y) {
    const box = this.boxes[start.panel], clamp = (part) => Math.max(0, Math.min(1, part));
    let [x1, x2] = [start.x, x].sort((a, b) => a - b).map((coordinate) => clamp((coordinate - box.left) / box.width));
    let [y1, y2] = [start.y, y].sort((a, b) => b - a).map((coordinate) => clamp(1 - (coordinate - box.top) / box.height));
    if ((x2 - x1) * box.width < 3 * MIN_DRAG_DISTANCE) [x1, x2] = [0, 1];
    if ((y2 - y1) * box.height < 3 * MIN_DRAG_DISTANCE) [y1, y2] = [0, 1];
    this.zoomInto(start.panel, [x1, x2, y1, y2]);
  }
  // Zooms into a section of the visible part of a panel.
  zoomInto(panel, [x1, x2, y1, y2]) {
    const [left, right, bottom, top] = this.zoomByPanel.get(panel) ?? [0, 1, 0, 1];
    const section = [left + x1 * (right - left), left + x2 * (right - left), bottom + y1 * (top - bottom), bottom + y2 * (top - bottom)];
    if (section[1] - section[0] < 1e-9 || section[3] - section[2] < 1e-9) return;
    this.zoomByPanel.set(panel, section);
    this.current = null;
    this.tip.hidden = true;
    this.draw();
  }
  showAll() { this.zoomByPanel.clear(); this.current = null; this.tip.hidden = true; this.draw(); }
  handleKey(event) {
    if (event.altKey || !this.boxes?.length) return;
    const panel = this.current?.panel ?? 0, box = this.boxes[panel], marks = this.listVisibleMarks(box);
    const selectedIndex = this.current ? marks.indexOf(this.current.mark) : -1;
    const goTo = (index) => marks.length ? { panel, mark: marks[Math.max(0, Math.min(marks.length - 1, index))] } : null;
    const goToPanel = (step) => { const nextPanel = (panel + step + this.boxes.length) % this.boxes.length, marks = this.listVisibleMarks(this.boxes[nextPanel]); return marks.length ? { panel: nextPanel, mark: marks[0] } : null; };
    const targets = { ArrowRight: () => goTo(selectedIndex + 1), ArrowLeft: () => goTo(selectedIndex < 0 ? 0 : selectedIndex - 1), PageDown: () => goTo(selectedIndex + 20), PageUp: () => goTo(selectedIndex - 20), Home: () => goTo(0), End: () => goTo(marks.length - 1), ArrowDown: () => goToPanel(1), ArrowUp: () => goToPanel(-1) };
    if (targets[event.key]) this.selectMark(targets[event.key]());
    else if (event.key === "Enter") this.openTrial(event);
    else if (event.key === "Escape" || event.key === "0") this.showAll();
    else if (event.key === "+" || event.key === "=") {
      const [x, y] = this.current ? this.locateMark(box, this.current.mark) : [box.left + box.width / 2, box.top + box.height / 2];
      const zoomRange = (part) => [Math.max(0, part - 0.3), Math.min(1, part + 0.3)];
      this.zoomInto(panel, [...zoomRange((x - box.left) / box.width), ...zoomRange(1 - (y - box.top) / box.height)]);
    } else if (event.key === "-") {
      const zoom = this.zoomByPanel.get(panel);
      if (zoom) { const widenRange = ([a, b]) => [Math.max(0, a - (b - a) / 2), Math.min(1, b + (b - a) / 2)]; const section = [...widenRange(zoom.slice(0, 2)), ...widenRange(zoom.slice(2))]; if (section.join() === "0,1,0,1") this.zoomByPanel.delete(panel); else this.zoomByPanel.set(panel, section); this.draw(); }
    } else return;
    event.preventDefault();
  }
  listVisibleMarks(box) {
    const visible = [];
    for (let mark = 0; mark < box.panel.xs.length; mark += 1) { const [x, y] = this.locateMark(box, mark); if (x >= box.left - 1 && x <= box.left + box.width + 1 && y >= box.top - 1 && y <= box.top + box.height + 1) visible.push([x, mark]); }
    return visible.sort((a, b) => a[0] - b[0]).map(([, mark]) => mark);
  }

  // ---- the files ----
  async download(kind) {
    if (this.stale) this.draw();
    const width = Math.max(720, this.host.clientWidth), colours = readColours();
    const name = `${document.body.dataset.experiment ?? "plot"}-${this.name}.${kind}`;
    this.computeLayout(width, 36 * readFontScale());
    const height = this.height + 8;
    const canvas = document.createElement("canvas");
    const surface = kind === "svg" ? new SvgSurface(width, height) : new CanvasSurface(canvas, width, height, 2);
    surface.drawRect(0, 0, width, height, { fill: colours.card });
    surface.drawText(`${this.title} · ${document.title.split(" · ").at(-1)}`, 8, 24 * readFontScale(), { fill: colours.text, size: 16 * readFontScale(), weight: 600 });
    this.paint(surface);
    this.draw();
    if (kind === "svg") saveFile(new Blob([surface.toString()], { type: "image/svg+xml" }), name);
    else canvas.toBlob((blob) => saveFile(blob, name), "image/png");
  }
}

// A plot that fetches its data when it comes into view, and again after a change while it is visible.
const createLazyPlot = (id, controls, fetchData, createModel, chooser = "") => {
  const figure = findFigure(id);
  const plot = new Plot(figure, { name: id, title: readTitle(id), controls, chooser });
  let isOutdated = true, isVisible = false, errorMessage = null;
  const update = () => plot.set(errorMessage ? () => ({ panels: [], empty: errorMessage }) : createModel);
  const refetch = throttle(5000, async () => {
    isOutdated = false;
    try { await fetchData(); errorMessage = null; } catch (error) { isOutdated = true; errorMessage = `Cannot load this plot: ${error.message}`; }
    update();
  });
  plot.set(() => LOADING_MODEL);
  observeNearness(figure, (isNear) => { isVisible = isNear; if (isVisible && isOutdated) refetch(); });
  return { plot, update, load: () => { if (isOutdated) refetch(); }, markOutdated: () => { isOutdated = true; if (isVisible) refetch(); } };
};

export { createCheckbox, createNameList, DataTable, createElement, findFigure, createLineList, createLazyPlot, chooseLineStyle, observeNearness, Plot, createSelect, createSlider, readTitle };
