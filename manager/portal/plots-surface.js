// The surfaces of plots: a canvas for the screen and for PNG, and text for SVG. Both have the same methods, so a downloaded file looks
// like the page.

import { sanitiseText } from "./charts.js";

const FONT = "system-ui, sans-serif";
// Reads the colours of a plot from the theme of the style sheet.
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  const readColour = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["back", "card", "text", "quiet", "line", "grid", "accent", "good", "bad", "warn", "retry", "ramp-low", "ramp-middle", "ramp-high", ...[...Array(8).keys()].map((index) => `c${index}`)].map((name) => [name.replace(/-(.)/g, (_, letter) => letter.toUpperCase()), readColour(name)]));
};

class CanvasSurface {
  constructor(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.context.lineJoin = "round";
  }
  applyStyle({ stroke, fill, width = 1, alpha = 1, dash = [] }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.lineWidth = width;
    context.setLineDash(dash);
    if (stroke) context.strokeStyle = stroke;
    if (fill) context.fillStyle = fill;
  }
  // Draws a line through points, `[x, y, x, y, …]`. A coordinate that is not a finite number interrupts the line.
  drawLine(points, style) {
    const { context } = this;
    this.applyStyle(style);
    context.beginPath();
    let isDrawing = false;
    for (let index = 0; index < points.length; index += 2) {
      const x = points[index], y = points[index + 1];
      if (!Number.isFinite(x) || !Number.isFinite(y)) { isDrawing = false; continue; }
      if (isDrawing) context.lineTo(x, y); else context.moveTo(x, y);
      isDrawing = true;
    }
    context.stroke();
  }
  drawRect(x, y, width, height, style) {
    this.applyStyle(style);
    if (style.fill) this.context.fillRect(x, y, width, height);
    if (style.stroke) this.context.strokeRect(x, y, width, height);
  }
  // Draws many marks of one kind: `dot`, `ring`, `cross` or `diamond`.
  drawMarks(kind, xs, ys, size, colour, alpha = 1) {
    const { context } = this, half = size / 2;
    this.applyStyle({ stroke: colour, fill: colour, width: Math.max(1.2, size / 4), alpha });
    if (kind === "dot" && size <= 3) {
      for (let index = 0; index < xs.length; index += 1) context.fillRect(xs[index] - half, ys[index] - half, size, size);
      return;
    }
    context.beginPath();
    for (let index = 0; index < xs.length; index += 1) {
      const x = xs[index], y = ys[index];
      if (kind === "cross") {
        context.moveTo(x - half, y - half); context.lineTo(x + half, y + half);
        context.moveTo(x - half, y + half); context.lineTo(x + half, y - half);
      } else if (kind === "diamond") {
        context.moveTo(x, y - half); context.lineTo(x + half, y); context.lineTo(x, y + half); context.lineTo(x - half, y); context.closePath();
      } else {
        context.moveTo(x + half, y); context.arc(x, y, half, 0, 2 * Math.PI);
      }
    }
    if (kind === "cross" || kind === "ring") context.stroke(); else context.fill();
  }
  drawText(text, x, y, { fill, size = 13, align = "left", weight = 400, turned: isVertical = false }) {
    const { context } = this;
    this.applyStyle({ fill });
    context.font = `${weight} ${size}px ${FONT}`;
    context.textAlign = align;
    context.save();
    context.translate(x, y);
    if (isVertical) context.rotate(-Math.PI / 2);
    context.fillText(text, 0, 0);
    context.restore();
  }
  clip(x, y, width, height, draw) {
    const { context } = this;
    context.save();
    context.beginPath(); context.rect(x, y, width, height); context.clip();
    draw();
    context.restore();
  }
}

const formatCoordinate = (number) => String(Math.round(number * 100) / 100);
const escapeText = (text) => sanitiseText(String(text)).replace(/[&<>"]/g, (character) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[character]);

class SvgSurface {
  constructor(width, height) { this.size = [width, height]; this.parts = []; this.clips = 0; }
  formatStyle({ stroke, fill, width = 1, alpha = 1, dash = [] }) {
    return `fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}" stroke-width="${formatCoordinate(width)}"` : ""}${alpha < 1 ? ` opacity="${formatCoordinate(alpha)}"` : ""}${dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : ""}`;
  }
  drawLine(points, style) {
    let path = "", isDrawing = false;
    for (let index = 0; index < points.length; index += 2) {
      const x = points[index], y = points[index + 1];
      if (!Number.isFinite(x) || !Number.isFinite(y)) { isDrawing = false; continue; }
      path += `${isDrawing ? "L" : "M"}${formatCoordinate(x)} ${formatCoordinate(y)}`;
      isDrawing = true;
    }
    if (path) this.parts.push(`<path d="${path}" stroke-linejoin="round" ${this.formatStyle(style)}/>`);
  }
  drawRect(x, y, width, height, style) {
    this.parts.push(`<rect x="${formatCoordinate(x)}" y="${formatCoordinate(y)}" width="${formatCoordinate(width)}" height="${formatCoordinate(height)}" ${this.formatStyle(style)}/>`);
  }
  drawMarks(kind, xs, ys, size, colour, alpha = 1) {
    if (xs.length === 0) return;
    const half = size / 2;
    let path = "";
    for (let index = 0; index < xs.length; index += 1) {
      const [x, y] = [xs[index], ys[index]];
      if (kind === "dot") path += `M${formatCoordinate(x)} ${formatCoordinate(y)}h0`;
      else if (kind === "cross") path += `M${formatCoordinate(x - half)} ${formatCoordinate(y - half)}l${formatCoordinate(size)} ${formatCoordinate(size)}m${formatCoordinate(-size)} 0l${formatCoordinate(size)} ${formatCoordinate(-size)}`;
      else if (kind === "diamond") path += `M${formatCoordinate(x)} ${formatCoordinate(y - half)}l${formatCoordinate(half)} ${formatCoordinate(half)}l${formatCoordinate(-half)} ${formatCoordinate(half)}l${formatCoordinate(-half)} ${formatCoordinate(-half)}z`;
      else path += `M${formatCoordinate(x + half)} ${formatCoordinate(y)}a${formatCoordinate(half)} ${formatCoordinate(half)} 0 1 0 ${formatCoordinate(-size)} 0a${formatCoordinate(half)} ${formatCoordinate(half)} 0 1 0 ${formatCoordinate(size)} 0`;
    }
    const style = kind === "diamond" ? { fill: colour, alpha } : { stroke: colour, width: kind === "dot" ? size : Math.max(1.2, size / 4), alpha };
    this.parts.push(`<path d="${path}" stroke-linecap="round" ${this.formatStyle(style)}/>`);
  }
  drawText(text, x, y, { fill, size = 13, align = "left", weight = 400, turned: isVertical = false }) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const position = isVertical ? `transform="translate(${formatCoordinate(x)} ${formatCoordinate(y)}) rotate(-90)"` : `x="${formatCoordinate(x)}" y="${formatCoordinate(y)}"`;
    this.parts.push(`<text ${position} fill="${fill}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}">${escapeText(text)}</text>`);
  }
  clip(x, y, width, height, draw) {
    const id = `clip${this.clips += 1}`;
    this.parts.push(`<clipPath id="${id}"><rect x="${formatCoordinate(x)}" y="${formatCoordinate(y)}" width="${formatCoordinate(width)}" height="${formatCoordinate(height)}"/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.parts.push("</g>");
  }
  toString() {
    const [width, height] = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}">${this.parts.join("\n")}</svg>\n`;
  }
}

let measuringContext = null;
// Measures the width of a text in pixels.
const measureText = (text, size, weight = 400) => {
  measuringContext ??= document.createElement("canvas").getContext("2d");
  measuringContext.font = `${weight} ${size}px ${FONT}`;
  return measuringContext.measureText(text).width;
};
// Shortens a text to the width `maxWidth`.
const truncateText = (text, maxWidth, size) => {
  const prefix = text.slice(0, 200);
  if (measureText(prefix, size) <= maxWidth) return prefix;
  let length = prefix.length;
  while (length > 1 && measureText(`${prefix.slice(0, length)}…`, size) > maxWidth) length -= 1;
  return `${prefix.slice(0, length)}…`;
};

// Lets the browser save a file.
const saveFile = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

const parseChannels = (colour) => [1, 3, 5].map((index) => parseInt(colour.slice(index, index + 2), 16));
// Returns `count` colours from the worst to the best, and a function that maps a position from 0 to 1 to a colour.
const createRamp = ({ rampLow, rampMiddle, rampHigh }, count = 12) => {
  const [low, middle, high] = [rampLow, rampMiddle, rampHigh].map(parseChannels);
  const mixColour = (part) => {
    const [from, to, share] = part < 0.5 ? [low, middle, 2 * part] : [middle, high, 2 * part - 1];
    return `#${from.map((value, index) => Math.round(value + (to[index] - value) * share).toString(16).padStart(2, "0")).join("")}`;
  };
  const colours = Array.from({ length: count }, (_, index) => mixColour(index / (count - 1)));
  return { colours, toIndex: (part) => Math.min(count - 1, Math.max(0, Math.floor(part * count))) };
};

export { CanvasSurface, SvgSurface, truncateText, createRamp, saveFile, readColours, measureText };
