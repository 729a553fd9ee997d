// Scales: pure functions that map values to positions from 0 to 1 and back, and place the ticks.

import { formatTime, formatNumber, sanitiseText } from "./charts.js";

const DECIMAL_STEPS = [1, 2, 5];
const HOUR_STEPS = [1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2400].map((hours) => hours * 3600);
const TIME_STEPS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, ...HOUR_STEPS];

const findRange = (values) => {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) { if (value < low) low = value; if (value > high) high = value; }
  return low <= high ? [low, high] : null;
};

// A linear or logarithmic scale from `low` to `high`. `format` formats a value. The ticks of a `whole` scale are integers.
const createNumberScale = (low, high, { log = false, format = (value) => formatNumber(value, 4), ticksAt = null, whole = false } = {}) => {
  const transform = log ? Math.log : (value) => value;
  const invert = log ? Math.exp : (value) => value;
  if (!(high > low)) { const margin = log ? 1.5 : Math.abs(low) / 10 || 1; [low, high] = log ? [low / margin, low * margin] : [low - margin, low + margin]; }
  [low, high] = [Math.max(low, -Number.MAX_VALUE), Math.min(high, Number.MAX_VALUE)];
  // Computes with halves, because the distance between the lowest and the highest number can overflow a double.
  const start = transform(low) / 2, span = transform(high) / 2 - start;
  const toPosition = (value) => typeof value === "number" && (!log || value > 0) ? (transform(value) / 2 - start) / span : NaN;
  const toValue = (position) => invert(2 * (start + position * span));
  const chooseEvenTicks = (maxCount) => {
    const minStep = (high / 2 - low / 2) / Math.max(1, maxCount) * 2;
    const power = 10 ** Math.floor(Math.log10(minStep));
    const roundStep = [...DECIMAL_STEPS, 10].map((step) => step * power).find((step) => step >= minStep) ?? minStep, step = whole ? Math.max(1, roundStep) : roundStep;
    if (!(step > 0) || !Number.isFinite(step)) return [];
    const ticks = [];
    for (let multiple = Math.ceil(low / step - 1e-9); multiple * step <= high + step * 1e-9 && ticks.length < 50; multiple += 1) ticks.push(multiple * step);
    return ticks.map((tick) => Number(tick.toPrecision(12)));
  };
  const choosePowerTicks = (maxCount) => {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const listTicks = (steps, increment) => {
      const ticks = [];
      for (let power = first; power <= last; power += increment) for (const step of steps) { const tick = Number(`${step}e${power}`); if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick); }
      return ticks;
    };
    const allTicks = listTicks(DECIMAL_STEPS, 1), powersOfTen = listTicks([1], 1);
    if (allTicks.length <= maxCount) return allTicks.length >= 2 ? allTicks : chooseEvenTicks(maxCount);
    return powersOfTen.length <= maxCount ? powersOfTen : listTicks([1], Math.ceil(powersOfTen.length / Math.max(1, maxCount)));
  };
  const ticks = (maxCount) => (ticksAt ?? (log ? choosePowerTicks : chooseEvenTicks))(maxCount).filter((value) => !whole || Number.isInteger(value)).map((value) => [value, format(value)]);
  const zoomTo = (start, end) => createNumberScale(toValue(start), toValue(end), { log, format, whole });
  return { log, low, high, toPosition, toValue, ticks, zoomTo, format };
};

// A scale of times in milliseconds since the Unix epoch, written in the browser's time zone.
const createTimeScale = (low, high) => {
  const ticksAt = (maxCount) => {
    const minStep = (high - low) / 1000 / Math.max(1, maxCount);
    const step = 1000 * (TIME_STEPS.find((step) => step >= minStep) ?? minStep);
    const zoneOffset = new Date(low).getTimezoneOffset() * 60e3;
    const ticks = [];
    for (let multiple = Math.ceil((low - zoneOffset) / step); multiple * step + zoneOffset <= high && ticks.length < 50; multiple += 1) ticks.push(multiple * step + zoneOffset);
    return ticks;
  };
  const duration = high - low;
  const formatTick = (value) => {
    const text = formatTime(value / 1000);
    return duration > 3 * 86400e3 ? text.slice(5, 10) : duration > 86400e3 ? text.slice(5, 16) : duration > 600e3 ? text.slice(11, 16) : text.slice(11);
  };
  const scale = createNumberScale(low, high, { format: formatTick, ticksAt });
  return { ...scale, zoomTo: (start, end) => createTimeScale(scale.toValue(start), scale.toValue(end)) };
};

// Writes a duration in milliseconds.
const formatDuration = (ms) => ms === 0 ? "0" : ms < 1000 ? `${Math.round(ms)} ms` : ms < 120e3 ? `${formatNumber(ms / 1000, 3)} s` : ms < 7200e3 ? `${formatNumber(ms / 60e3, 3)} min` : `${formatNumber(ms / 3600e3, 3)} h`;
const MINUTE_STEPS = [1, 2, 5, 10, 15, 30], DURATION_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1000, 60e3].flatMap((unit) => MINUTE_STEPS.map((minutes) => minutes * unit)), ...HOUR_STEPS.map((seconds) => seconds * 1000)];
// A scale of durations in milliseconds. Linear ticks are at whole seconds, minutes or hours.
const createDurationScale = (low, high, { log = false } = {}) => {
  const ticksAt = (maxCount) => {
    const step = DURATION_STEPS.find((step) => (high - low) / step <= maxCount) ?? high - low, from = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - from + 1) }, (_, index) => (from + index) * step);
  };
  const scale = createNumberScale(low, high, { log, format: formatDuration, ticksAt: log ? null : ticksAt });
  return { ...scale, zoomTo: (start, end) => createDurationScale(scale.toValue(start), scale.toValue(end), { log }) };
};

// A scale of options in their order. Each option has a band.
const createOptionScale = (options, start = -0.5, end = options.length - 0.5) => {
  const names = options.map((option) => sanitiseText(typeof option === "string" ? option : JSON.stringify(option)));
  const indexByKey = new Map(options.map((option, index) => [JSON.stringify(option), index]));
  const findIndex = (value) => value === null || value === undefined ? NaN : indexByKey.get(JSON.stringify(value)) ?? NaN;
  const toPosition = (value) => (findIndex(value) - start) / (end - start);
  const toValue = (position) => options[Math.min(options.length - 1, Math.max(0, Math.round(start + position * (end - start))))];
  const visible = options.map((_, index) => index).filter((index) => index >= start && index <= end);
  const ticks = (maxCount) => { const stride = Math.ceil(visible.length / Math.max(1, maxCount)); return visible.filter((_, index) => index % stride === 0).map((index) => [options[index], names[index]]); };
  const zoomTo = (from, to) => { const length = end - start; return createOptionScale(options, start + from * length, start + to * length); };
  const format = (option) => names[findIndex(option)] ?? sanitiseText(String(option));
  return { log: false, options, names, toPosition, toValue, ticks, zoomTo, format: format, findIndex };
};

// Returns the scale of a parameter: from the search space, or from the values if the search space lacks the parameter.
const createParameterScale = (column, axis) => {
  const values = column.filter((value) => value !== null && value !== undefined);
  const isNumeric = values.every((value) => typeof value === "number");
  if (axis?.options || !isNumeric) {
    const options = [...axis?.options ?? []], knownKeys = new Set(options.map((option) => JSON.stringify(option)));
    for (const value of values) { const key = JSON.stringify(value); if (!knownKeys.has(key)) { knownKeys.add(key); options.push(value); } }
    if (!axis?.options) options.sort();
    return createOptionScale(options);
  }
  const [lowest, highest] = findRange(values) ?? [0, 1];
  const log = axis?.log === true && lowest > 0 && (axis.low ?? lowest) > 0;
  return createNumberScale(Math.min(lowest, axis?.low ?? lowest), Math.max(highest, axis?.high ?? highest), { log, whole: values.length > 0 && values.every(Number.isInteger) });
};

// Extends a scale beyond the outermost values.
const padScale = (scale, margin = 0.04) => scale.options ? scale : scale.zoomTo(-margin, 1 + margin);

export { createOptionScale, createNumberScale, createParameterScale, padScale, formatDuration, createDurationScale, findRange, createTimeScale };
