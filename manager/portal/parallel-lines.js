// The lines of parallel coordinates as marks: the pointer and the keyboard select a line, which shows its trial and opens its page.

import { tame } from "./charts.js";
import { CanvasSurface, theme } from "./plots-surface.js";

// The pointer selects lines within `REACH` pixels. A movement of more than `CLICK` pixels is not a click.
const REACH = 14, CLICK = 6;

// Returns the ends of the piece of a line that crosses `x`. A piece can pass axes whose parameter the trial does not have.
const pieceAt = (line, place, x) => {
  let before = null;
  for (const [column, part] of line.parts.entries()) {
    if (part === null || Number.isNaN(part)) continue;
    const here = [place.x(column), place.y(part)];
    if (here[0] >= x) return before && [before, here];
    before = here;
  }
  return null;
};
// Returns the distance of a line from a point, or null if the line does not cross the point's `x`.
const distance = (line, place, x, y) => {
  const piece = pieceAt(line, place, x);
  if (!piece) return null;
  const [[x1, y1], [x2, y2]] = piece, slope = (y2 - y1) / (x2 - x1);
  return Math.abs(y1 + slope * (x - x1) - y) / Math.hypot(1, slope);
};
// Returns the visible line that is nearest to a point, and the best one of several. The best lines are the last.
const nearest = (lines, place, x, y) => {
  let best = null, least = REACH * place.one;
  for (let at = lines.length - 1; at >= 0; at -= 1) {
    if (!lines[at].within) continue;
    const far = distance(lines[at], place, x, y);
    if (far !== null && far < least) { least = far; best = lines[at]; }
  }
  return best;
};

const made = (name, attributes) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  return one;
};

class Lines {
  constructor(heading) {
    this.row = null;
    this.over = made("canvas", { "aria-hidden": "true", class: "over" });
    this.host = made("div", { class: "lines", tabindex: "0", role: "application", "aria-label": `${heading}: lines`, "aria-describedby": "parallel-keys" });
    this.tip = made("div", { class: "tip", role: "status" });
    this.tip.hidden = true;
    this.host.append(this.over);
    this.listen();
  }

  // Updates the lines after the plot was drawn. `model` has the lines, the best last, and functions that describe a trial and return the
  // address of its page.
  set(model, place) {
    Object.assign(this, { model, place });
    this.over.style.width = `${place.width}px`; this.over.style.height = `${place.height}px`;
    if (this.row !== null && !this.line()?.within) this.point(null); else this.highlight();
  }
  line() { return this.row === null ? null : this.model.lines.find(({ row }) => row === this.row); }

  listen() {
    const { host } = this;
    let from = null;
    const here = ({ clientX, clientY }) => { const { left, top } = host.getBoundingClientRect(); return [clientX - left, clientY - top]; };
    const near = (event) => nearest(this.model.lines, this.place, ...here(event));
    host.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") this.point(near(event), here(event)); });
    host.addEventListener("pointerleave", ({ pointerType }) => { if (pointerType !== "touch" && document.activeElement !== host) this.point(null); });
    host.addEventListener("pointerdown", (event) => { from = event.button === 0 ? here(event) : null; });
    host.addEventListener("pointercancel", () => { from = null; });
    host.addEventListener("pointerup", (event) => {
      const [x, y] = here(event), start = from;
      from = null;
      if (!start || Math.hypot(x - start[0], y - start[1]) > CLICK) return;
      const line = near(event), same = line !== null && line.row === this.row;
      this.point(line, [x, y]);
      // On touch screens, the first tap selects a line and the second opens it.
      if (line && (event.pointerType !== "touch" || same)) this.open(event);
    });
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("blur", () => this.point(null));
  }

  // Selects a line. Without a position, the description is at the line's last axis.
  point(line, position) {
    const row = line?.row ?? null;
    if (row === this.row && (row === null || !position)) return;
    const changed = row !== this.row;
    this.row = row;
    if (changed) this.highlight();
    this.tip.hidden = row === null;
    this.host.style.cursor = row === null ? "" : "pointer";
    if (row === null) return;
    if (changed) {
      const [title, ...rest] = this.model.tell(row).map((words) => tame(words));
      const strong = Object.assign(document.createElement("strong"), { textContent: title });
      this.tip.replaceChildren(strong, ...rest.map((words) => Object.assign(document.createElement("div"), { textContent: words })));
    }
    const slide = this.host.closest(".slide"), { place } = this;
    const [x, y] = position ?? [place.x(line.parts.length - 1), place.y(line.parts.at(-1))];
    const { offsetWidth: wide, offsetHeight: tall } = this.tip, end = slide.scrollLeft + slide.clientWidth;
    this.tip.style.left = `${Math.max(slide.scrollLeft, x + 16 + wide > end ? x - wide - 16 : x + 16)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(place.height - tall, y - tall / 2))}px`;
  }
  highlight() {
    const { place } = this, surface = new CanvasSurface(this.over, place.width, place.height, devicePixelRatio || 1), line = this.line();
    if (!line) return;
    const { text } = theme(), path = [], xs = [], ys = [];
    line.parts.forEach((part, column) => { if (part !== null && !Number.isNaN(part)) { xs.push(place.x(column)); ys.push(place.y(part)); path.push(xs.at(-1), ys.at(-1)); } });
    surface.line(path, { stroke: text, width: 2.5 });
    surface.marks("dot", xs, ys, 7, text);
  }
  open(event) {
    if (this.row === null) return;
    const address = this.model.address(this.row);
    if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener"); else location.assign(address);
  }
  // The keys go from the best line to the worst.
  key(event) {
    if (event.altKey || !this.model) return;
    const visible = this.model.lines.filter(({ within }) => within), now = visible.findIndex(({ row }) => row === this.row), last = visible.length - 1;
    const to = (at) => visible[Math.max(0, Math.min(last, at))] ?? null;
    const moves = { ArrowRight: () => to(now < 0 ? last : now - 1), ArrowLeft: () => to(now < 0 ? last : now + 1), PageDown: () => to(now - 20), PageUp: () => to(now + 20), Home: () => to(last), End: () => to(0) };
    if (moves[event.key]) this.point(moves[event.key]());
    else if (event.key === "Enter") this.open(event);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  }
}

export { Lines, nearest };
