// The lines of parallel coordinates as marks: the pointer and the keyboard select a line, which shows its trial and opens its page.

import { sanitiseText } from "./charts.js";
import { CanvasSurface, readColours } from "./plots-surface.js";

// The pointer selects lines within `SELECTION_DISTANCE` pixels. A movement of more than `MAX_CLICK_MOVEMENT` pixels is not a click.
const SELECTION_DISTANCE = 14, MAX_CLICK_MOVEMENT = 6;

// Returns the ends of the segment of a line that crosses `x`. A segment can pass axes whose parameter the trial does not have.
const findSegment = (line, layout, x) => {
  let previous = null;
  for (const [column, part] of line.parts.entries()) {
    if (part === null || Number.isNaN(part)) continue;
    const point = [layout.x(column), layout.y(part)];
    if (point[0] >= x) return previous && [previous, point];
    previous = point;
  }
  return null;
};
// Returns the distance of a line from a point, or null if the line does not cross the point's `x`.
const computeDistance = (line, layout, x, y) => {
  const segment = findSegment(line, layout, x);
  if (!segment) return null;
  const [[x1, y1], [x2, y2]] = segment, slope = (y2 - y1) / (x2 - x1);
  return Math.abs(y1 + slope * (x - x1) - y) / Math.hypot(1, slope);
};
// Returns the visible line that is nearest to a point, and the best one of several. The best lines are the last.
const findNearestLine = (lines, layout, x, y) => {
  let nearest = null, minDistance = SELECTION_DISTANCE * layout.fontScale;
  for (let index = lines.length - 1; index >= 0; index -= 1) {
    if (!lines[index].within) continue;
    const distance = computeDistance(lines[index], layout, x, y);
    if (distance !== null && distance < minDistance) { minDistance = distance; nearest = lines[index]; }
  }
  return nearest;
};

const createElement = (name, attributes) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

class Lines {
  constructor(heading) {
    this.row = null;
    this.overlay = createElement("canvas", { "aria-hidden": "true", class: "over" });
    this.host = createElement("div", { class: "lines", tabindex: "0", role: "application", "aria-label": `${heading}: lines`, "aria-describedby": "parallel-keys" });
    this.tip = createElement("div", { class: "tip", role: "status" });
    this.tip.hidden = true;
    this.host.append(this.overlay);
    this.addListeners();
  }

  // Updates the lines after the plot was drawn. `model` has the lines, the best last, and functions that describe a trial and return the
  // address of its page.
  set(model, layout) {
    Object.assign(this, { model, layout });
    this.overlay.style.width = `${layout.width}px`; this.overlay.style.height = `${layout.height}px`;
    if (this.row !== null && !this.findSelectedLine()?.within) this.selectLine(null); else this.highlightLine();
  }
  findSelectedLine() { return this.row === null ? null : this.model.lines.find(({ row }) => row === this.row); }

  addListeners() {
    const { host } = this;
    let dragStart = null;
    const locatePointer = ({ clientX, clientY }) => { const { left, top } = host.getBoundingClientRect(); return [clientX - left, clientY - top]; };
    const findNearest = (event) => findNearestLine(this.model.lines, this.layout, ...locatePointer(event));
    host.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") this.selectLine(findNearest(event), locatePointer(event)); });
    host.addEventListener("pointerleave", ({ pointerType }) => { if (pointerType !== "touch" && document.activeElement !== host) this.selectLine(null); });
    host.addEventListener("pointerdown", (event) => { dragStart = event.button === 0 ? locatePointer(event) : null; });
    host.addEventListener("pointercancel", () => { dragStart = null; });
    host.addEventListener("pointerup", (event) => {
      const [x, y] = locatePointer(event), start = dragStart;
      dragStart = null;
      if (!start || Math.hypot(x - start[0], y - start[1]) > MAX_CLICK_MOVEMENT) return;
      const line = findNearest(event), isSelected = line !== null && line.row === this.row;
      this.selectLine(line, [x, y]);
      // On touch screens, the first tap selects a line and the second opens it.
      if (line && (event.pointerType !== "touch" || isSelected)) this.openTrial(event);
    });
    host.addEventListener("keydown", (event) => this.handleKey(event));
    host.addEventListener("blur", () => this.selectLine(null));
  }

  // Selects a line. Without a position, the description is at the line's last axis.
  selectLine(line, position) {
    const row = line?.row ?? null;
    if (row === this.row && (row === null || !position)) return;
    const isChanged = row !== this.row;
    this.row = row;
    if (isChanged) this.highlightLine();
    this.tip.hidden = row === null;
    this.host.style.cursor = row === null ? "" : "pointer";
    if (row === null) return;
    if (isChanged) {
      const [title, ...rest] = this.model.describe(row).map((text) => sanitiseText(text));
      const strong = Object.assign(document.createElement("strong"), { textContent: title });
      this.tip.replaceChildren(strong, ...rest.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    }
    const scroller = this.host.closest(".slide"), { layout } = this;
    const [x, y] = position ?? [layout.x(line.parts.length - 1), layout.y(line.parts.at(-1))];
    const { offsetWidth: tipWidth, offsetHeight: tipHeight } = this.tip, end = scroller.scrollLeft + scroller.clientWidth;
    this.tip.style.left = `${Math.max(scroller.scrollLeft, x + 16 + tipWidth > end ? x - tipWidth - 16 : x + 16)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(layout.height - tipHeight, y - tipHeight / 2))}px`;
  }
  highlightLine() {
    const { layout } = this, surface = new CanvasSurface(this.overlay, layout.width, layout.height, devicePixelRatio || 1), line = this.findSelectedLine();
    if (!line) return;
    const { text } = readColours(), path = [], xs = [], ys = [];
    line.parts.forEach((part, column) => { if (part !== null && !Number.isNaN(part)) { xs.push(layout.x(column)); ys.push(layout.y(part)); path.push(xs.at(-1), ys.at(-1)); } });
    surface.drawLine(path, { stroke: text, width: 2.5 });
    surface.drawMarks("dot", xs, ys, 7, text);
  }
  openTrial(event) {
    if (this.row === null) return;
    const address = this.model.address(this.row);
    if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener"); else location.assign(address);
  }
  // The keys go from the best line to the worst.
  handleKey(event) {
    if (event.altKey || !this.model) return;
    const visible = this.model.lines.filter(({ within }) => within), selectedIndex = visible.findIndex(({ row }) => row === this.row), last = visible.length - 1;
    const goTo = (index) => visible[Math.max(0, Math.min(last, index))] ?? null;
    const targets = { ArrowRight: () => goTo(selectedIndex < 0 ? last : selectedIndex - 1), ArrowLeft: () => goTo(selectedIndex < 0 ? last : selectedIndex + 1), PageDown: () => goTo(selectedIndex - 20), PageUp: () => goTo(selectedIndex + 20), Home: () => goTo(last), End: () => goTo(0) };
    if (targets[event.key]) this.selectLine(targets[event.key]());
    else if (event.key === "Enter") this.openTrial(event);
    else if (event.key === "Escape") this.selectLine(null);
    else return;
    event.preventDefault();
  }
}

export { Lines };
