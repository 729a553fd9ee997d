// Scales: pure functions that map values to positions from 0 to 1 and back, and place the ticks.

import { moment, short, tame } from "./charts.js";

const STEPS = [1, 2, 5];
const HOURS = [1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2400].map((one) => one * 3600);
const SECONDS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, ...HOURS];

const spread = (values) => {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; }
  return low <= high ? [low, high] : null;
};

// A linear or logarithmic scale from `low` to `high`. `written` formats a value. The ticks of a `whole` scale are integers.
const numbers = (low, high, { log = false, written = (value) => short(value, 4), ticksAt = null, whole = false } = {}) => {
  const map = log ? Math.log : (value) => value;
  const back = log ? Math.exp : (value) => value;
  if (!(high > low)) { const room = log ? 1.5 : Math.abs(low) / 10 || 1; [low, high] = log ? [low / room, low * room] : [low - room, low + room]; }
  [low, high] = [Math.max(low, -Number.MAX_VALUE), Math.min(high, Number.MAX_VALUE)];
  // Computes with halves, because the distance between the lowest and the highest number can overflow a double.
  const from = map(low) / 2, span = map(high) / 2 - from;
  const part = (value) => typeof value === "number" && (!log || value > 0) ? (map(value) / 2 - from) / span : NaN;
  const value = (at) => back(2 * (from + at * span));
  const even = (most) => {
    const room = (high / 2 - low / 2) / Math.max(1, most) * 2;
    const power = 10 ** Math.floor(Math.log10(room));
    const near = [...STEPS, 10].map((one) => one * power).find((one) => one >= room) ?? room, step = whole ? Math.max(1, near) : near;
    if (!(step > 0) || !Number.isFinite(step)) return [];
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9 && ticks.length < 50; at += 1) ticks.push(at * step);
    return ticks.map((tick) => Number(tick.toPrecision(12)));
  };
  const powers = (most) => {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const of = (steps, by) => {
      const ticks = [];
      for (let power = first; power <= last; power += by) for (const step of steps) { const tick = Number(`${step}e${power}`); if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick); }
      return ticks;
    };
    const fine = of(STEPS, 1), coarse = of([1], 1);
    if (fine.length <= most) return fine.length >= 2 ? fine : even(most);
    return coarse.length <= most ? coarse : of([1], Math.ceil(coarse.length / Math.max(1, most)));
  };
  const ticks = (most) => (ticksAt ?? (log ? powers : even))(most).filter((value) => !whole || Number.isInteger(value)).map((value) => [value, written(value)]);
  const within = (start, end) => numbers(value(start), value(end), { log, written, whole });
  return { log, low, high, part, value, ticks, within, written };
};

// A scale of times in milliseconds since the Unix epoch, written in the browser's time zone.
const times = (low, high) => {
  const ticksAt = (most) => {
    const room = (high - low) / 1000 / Math.max(1, most);
    const step = 1000 * (SECONDS.find((one) => one >= room) ?? room);
    const shift = new Date(low).getTimezoneOffset() * 60e3;
    const ticks = [];
    for (let at = Math.ceil((low - shift) / step); at * step + shift <= high && ticks.length < 50; at += 1) ticks.push(at * step + shift);
    return ticks;
  };
  const long = high - low;
  const written = (value) => {
    const said = moment(value / 1000);
    return long > 3 * 86400e3 ? said.slice(5, 10) : long > 86400e3 ? said.slice(5, 16) : long > 600e3 ? said.slice(11, 16) : said.slice(11);
  };
  const scale = numbers(low, high, { written, ticksAt });
  return { ...scale, within: (start, end) => times(scale.value(start), scale.value(end)) };
};

// Writes a duration in milliseconds.
const span = (ms) => ms === 0 ? "0" : ms < 1000 ? `${Math.round(ms)} ms` : ms < 120e3 ? `${short(ms / 1000, 3)} s` : ms < 7200e3 ? `${short(ms / 60e3, 3)} min` : `${short(ms / 3600e3, 3)} h`;
const MINUTES = [1, 2, 5, 10, 15, 30], LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1000, 60e3].flatMap((unit) => MINUTES.map((one) => one * unit)), ...HOURS.map((one) => one * 1000)];
// A scale of durations in milliseconds. Linear ticks are at whole seconds, minutes or hours.
const spans = (low, high, { log = false } = {}) => {
  const ticksAt = (most) => {
    const step = LENGTHS.find((one) => (high - low) / one <= most) ?? high - low, from = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - from + 1) }, (_, at) => (from + at) * step);
  };
  const scale = numbers(low, high, { log, written: span, ticksAt: log ? null : ticksAt });
  return { ...scale, within: (start, end) => spans(scale.value(start), scale.value(end), { log }) };
};

// A scale of options in their order. Each option has a band.
const kinds = (options, start = -0.5, end = options.length - 0.5) => {
  const names = options.map((one) => tame(typeof one === "string" ? one : JSON.stringify(one)));
  const index = new Map(options.map((one, at) => [JSON.stringify(one), at]));
  const place = (value) => value === null || value === undefined ? NaN : index.get(JSON.stringify(value)) ?? NaN;
  const part = (value) => (place(value) - start) / (end - start);
  const value = (at) => options[Math.min(options.length - 1, Math.max(0, Math.round(start + at * (end - start))))];
  const shown = options.map((_, at) => at).filter((at) => at >= start && at <= end);
  const ticks = (most) => { const by = Math.ceil(shown.length / Math.max(1, most)); return shown.filter((_, at) => at % by === 0).map((at) => [options[at], names[at]]); };
  const within = (from, to) => { const way = end - start; return kinds(options, start + from * way, start + to * way); };
  const written = (one) => names[place(one)] ?? tame(String(one));
  return { log: false, options, names, part, value, ticks, within, written, place };
};

// Returns the scale of a parameter: from the search space, or from the values if the search space lacks the parameter.
const parameter = (column, axis) => {
  const values = column.filter((value) => value !== null && value !== undefined);
  const plain = values.every((value) => typeof value === "number");
  if (axis?.options || !plain) {
    const options = [...axis?.options ?? []], known = new Set(options.map((one) => JSON.stringify(one)));
    for (const value of values) { const key = JSON.stringify(value); if (!known.has(key)) { known.add(key); options.push(value); } }
    if (!axis?.options) options.sort();
    return kinds(options);
  }
  const [least, most] = spread(values) ?? [0, 1];
  const log = axis?.log === true && least > 0 && (axis.low ?? least) > 0;
  return numbers(Math.min(least, axis?.low ?? least), Math.max(most, axis?.high ?? most), { log, whole: values.length > 0 && values.every(Number.isInteger) });
};

// Extends a scale beyond the outermost values.
const roomy = (scale, room = 0.04) => scale.options ? scale : scale.within(-room, 1 + room);

export { kinds, numbers, parameter, roomy, span, spans, spread, times };
