// The surfaces of plots: a canvas for the screen and for PNG, and text for SVG. Both have the same methods, so a downloaded file looks
// like the page.

import { tame } from "./charts.js";

const FONT = "system-ui, sans-serif";
// Reads the colours of a plot from the theme of the style sheet.
const theme = () => {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["back", "card", "text", "quiet", "line", "grid", "accent", "good", "bad", "warn", "retry", "ramp-low", "ramp-middle", "ramp-high", ...[...Array(8).keys()].map((at) => `c${at}`)].map((name) => [name.replace(/-(.)/g, (_, letter) => letter.toUpperCase()), of(name)]));
};

class CanvasSurface {
  constructor(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    this.pen = canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.pen.lineJoin = "round";
  }
  styled({ stroke, fill, width = 1, alpha = 1, dash = [] }) {
    const { pen } = this;
    pen.globalAlpha = alpha;
    pen.lineWidth = width;
    pen.setLineDash(dash);
    if (stroke) pen.strokeStyle = stroke;
    if (fill) pen.fillStyle = fill;
  }
  // Draws a line through points, `[x, y, x, y, …]`. A coordinate that is not a finite number interrupts the line.
  line(places, style) {
    const { pen } = this;
    this.styled(style);
    pen.beginPath();
    let joined = false;
    for (let at = 0; at < places.length; at += 2) {
      const x = places[at], y = places[at + 1];
      if (!Number.isFinite(x) || !Number.isFinite(y)) { joined = false; continue; }
      if (joined) pen.lineTo(x, y); else pen.moveTo(x, y);
      joined = true;
    }
    pen.stroke();
  }
  rect(x, y, width, height, style) {
    this.styled(style);
    if (style.fill) this.pen.fillRect(x, y, width, height);
    if (style.stroke) this.pen.strokeRect(x, y, width, height);
  }
  // Draws many marks of one kind: `dot`, `ring`, `cross` or `diamond`.
  marks(kind, xs, ys, size, colour, alpha = 1) {
    const { pen } = this, half = size / 2;
    this.styled({ stroke: colour, fill: colour, width: Math.max(1.2, size / 4), alpha });
    if (kind === "dot" && size <= 3) {
      for (let at = 0; at < xs.length; at += 1) pen.fillRect(xs[at] - half, ys[at] - half, size, size);
      return;
    }
    pen.beginPath();
    for (let at = 0; at < xs.length; at += 1) {
      const x = xs[at], y = ys[at];
      if (kind === "cross") {
        pen.moveTo(x - half, y - half); pen.lineTo(x + half, y + half);
        pen.moveTo(x - half, y + half); pen.lineTo(x + half, y - half);
      } else if (kind === "diamond") {
        pen.moveTo(x, y - half); pen.lineTo(x + half, y); pen.lineTo(x, y + half); pen.lineTo(x - half, y); pen.closePath();
      } else {
        pen.moveTo(x + half, y); pen.arc(x, y, half, 0, 2 * Math.PI);
      }
    }
    if (kind === "cross" || kind === "ring") pen.stroke(); else pen.fill();
  }
  text(words, x, y, { fill, size = 13, align = "left", weight = 400, turned = false }) {
    const { pen } = this;
    this.styled({ fill });
    pen.font = `${weight} ${size}px ${FONT}`;
    pen.textAlign = align;
    pen.save();
    pen.translate(x, y);
    if (turned) pen.rotate(-Math.PI / 2);
    pen.fillText(words, 0, 0);
    pen.restore();
  }
  within(x, y, width, height, work) {
    const { pen } = this;
    pen.save();
    pen.beginPath(); pen.rect(x, y, width, height); pen.clip();
    work();
    pen.restore();
  }
}

const short = (number) => String(Math.round(number * 100) / 100);
const escaped = (text) => tame(String(text)).replace(/[&<>"]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[one]);

class SvgSurface {
  constructor(width, height) { this.size = [width, height]; this.parts = []; this.clips = 0; }
  styled({ stroke, fill, width = 1, alpha = 1, dash = [] }) {
    return `fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}" stroke-width="${short(width)}"` : ""}${alpha < 1 ? ` opacity="${short(alpha)}"` : ""}${dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : ""}`;
  }
  line(places, style) {
    let path = "", joined = false;
    for (let at = 0; at < places.length; at += 2) {
      const x = places[at], y = places[at + 1];
      if (!Number.isFinite(x) || !Number.isFinite(y)) { joined = false; continue; }
      path += `${joined ? "L" : "M"}${short(x)} ${short(y)}`;
      joined = true;
    }
    if (path) this.parts.push(`<path d="${path}" stroke-linejoin="round" ${this.styled(style)}/>`);
  }
  rect(x, y, width, height, style) {
    this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" ${this.styled(style)}/>`);
  }
  marks(kind, xs, ys, size, colour, alpha = 1) {
    if (xs.length === 0) return;
    const half = size / 2;
    let path = "";
    for (let at = 0; at < xs.length; at += 1) {
      const [x, y] = [xs[at], ys[at]];
      if (kind === "dot") path += `M${short(x)} ${short(y)}h0`;
      else if (kind === "cross") path += `M${short(x - half)} ${short(y - half)}l${short(size)} ${short(size)}m${short(-size)} 0l${short(size)} ${short(-size)}`;
      else if (kind === "diamond") path += `M${short(x)} ${short(y - half)}l${short(half)} ${short(half)}l${short(-half)} ${short(half)}l${short(-half)} ${short(-half)}z`;
      else path += `M${short(x + half)} ${short(y)}a${short(half)} ${short(half)} 0 1 0 ${short(-size)} 0a${short(half)} ${short(half)} 0 1 0 ${short(size)} 0`;
    }
    const style = kind === "diamond" ? { fill: colour, alpha } : { stroke: colour, width: kind === "dot" ? size : Math.max(1.2, size / 4), alpha };
    this.parts.push(`<path d="${path}" stroke-linecap="round" ${this.styled(style)}/>`);
  }
  text(words, x, y, { fill, size = 13, align = "left", weight = 400, turned = false }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const place = turned ? `transform="translate(${short(x)} ${short(y)}) rotate(-90)"` : `x="${short(x)}" y="${short(y)}"`;
    this.parts.push(`<text ${place} fill="${fill}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}">${escaped(words)}</text>`);
  }
  within(x, y, width, height, work) {
    const id = `clip${this.clips += 1}`;
    this.parts.push(`<clipPath id="${id}"><rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"/></clipPath><g clip-path="url(#${id})">`);
    work();
    this.parts.push("</g>");
  }
  toString() {
    const [width, height] = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}">${this.parts.join("\n")}</svg>\n`;
  }
}

let gauge = null;
// Measures the width of a text in pixels.
const widthOf = (words, size, weight = 400) => {
  gauge ??= document.createElement("canvas").getContext("2d");
  gauge.font = `${weight} ${size}px ${FONT}`;
  return gauge.measureText(words).width;
};
// Shortens a text to the width `room`.
const cut = (words, room, size) => {
  const text = words.slice(0, 200);
  if (widthOf(text, size) <= room) return text;
  let length = text.length;
  while (length > 1 && widthOf(`${text.slice(0, length)}…`, size) > room) length -= 1;
  return `${text.slice(0, length)}…`;
};

// Lets the browser save a file.
const save = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
// Returns `steps` colours from the worst to the best, and a function that maps a position from 0 to 1 to a colour.
const ramp = ({ rampLow, rampMiddle, rampHigh }, steps = 12) => {
  const [low, middle, high] = [rampLow, rampMiddle, rampHigh].map(channels);
  const mixed = (part) => {
    const [from, to, by] = part < 0.5 ? [low, middle, 2 * part] : [middle, high, 2 * part - 1];
    return `#${from.map((value, at) => Math.round(value + (to[at] - value) * by).toString(16).padStart(2, "0")).join("")}`;
  };
  const colours = Array.from({ length: steps }, (_, at) => mixed(at / (steps - 1)));
  return { colours, step: (part) => Math.min(steps - 1, Math.max(0, Math.floor(part * steps))) };
};

export { CanvasSurface, SvgSurface, cut, ramp, save, theme, widthOf };
