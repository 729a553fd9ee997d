import { kept, moment, tame } from "./charts.js";

// The controls of a trial's output: search, line wrapping and times.

// The search stops after this number of matches.
const MOST = 2000;

const element = (name, attributes, ...children) => {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...children);
  return one;
};
const highlight = (name, ranges) => {
  if (!globalThis.Highlight) return;
  if (ranges.length) CSS.highlights.set(name, new Highlight(...ranges)); else CSS.highlights.delete(name);
};

// Returns the matches of a text as ranges, ignoring case.
const found = (log, words) => {
  if (words === "") return [];
  const nodes = [];
  let length = 0;
  for (const node of log.childNodes) { nodes.push({ node, from: length }); length += node.textContent.length; }
  const pattern = new RegExp(words.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi"), ranges = [];
  let at = 0;
  const place = (offset) => {
    while (at > 0 && nodes[at].from > offset) at -= 1;
    while (at + 1 < nodes.length && nodes[at + 1].from <= offset) at += 1;
    return [nodes[at].node, offset - nodes[at].from];
  };
  for (const { 0: text, index } of log.textContent.matchAll(pattern)) {
    const range = document.createRange();
    range.setStart(...place(index));
    range.setEnd(...place(index + text.length));
    if (ranges.push(range) === MOST) break;
  }
  return ranges;
};

// Adds the controls above the output of a stream. Returns a function to call after the output has grown.
const controls = (stream) => {
  const log = document.getElementById(`log-${stream}`), name = log.getAttribute("aria-label");
  const field = element("input", { type: "search", "aria-label": `Find in ${name.toLowerCase()}`, placeholder: "Find", spellcheck: "false" });
  const count = element("output", {});
  const step = (words, label, by) => {
    const one = element("button", { type: "button", class: "second small", "aria-label": label }, words);
    one.addEventListener("click", () => go(by));
    return one;
  };
  const wrap = element("input", { type: "checkbox" });
  const bar = element("div", { class: "log-bar" }, field, step("↑", "Previous match", -1), step("↓", "Next match", 1), count, element("label", {}, wrap, " wrap lines"));
  log.previousElementSibling.append(bar);
  let ranges = [], now = -1;
  const show = () => {
    highlight(`found-${stream}`, ranges);
    highlight(`found-now-${stream}`, ranges.slice(now, now + 1).filter(() => now >= 0));
    count.textContent = field.value === "" ? "" : ranges.length === 0 ? "no matches in the visible part" : `${now + 1} of ${ranges.length}${ranges.length === MOST ? " or more" : ""}`;
  };
  const look = () => { ranges = found(log, field.value); now = Math.min(now, ranges.length - 1); show(); };
  const go = (by) => {
    if (ranges.length === 0) return;
    now = now < 0 && by < 0 ? ranges.length - 1 : (now + by + ranges.length) % ranges.length;
    // New output must not scroll the match out of view.
    const follows = document.querySelector(`[data-follow=${stream}]`);
    if (follows) follows.checked = false;
    const { top, left } = ranges[now].getBoundingClientRect(), box = log.getBoundingClientRect();
    log.scrollTop += top - box.top - log.clientHeight / 2;
    if (left < box.left || left > box.right) log.scrollLeft += left - box.left - log.clientWidth / 2;
    show();
  };
  field.addEventListener("input", () => { now = -1; look(); go(1); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); go(event.shiftKey ? -1 : 1); } });
  const wrapped = () => log.classList.toggle("long", !wrap.checked);
  wrap.checked = kept(() => localStorage.getItem("wrap")) !== "no";
  wrap.addEventListener("change", () => { kept(() => localStorage.setItem("wrap", wrap.checked ? "yes" : "no")); wrapped(); });
  wrapped();
  const times = document.querySelector(`[data-times=${stream}]`);
  times.checked ||= kept(() => localStorage.getItem("times")) === "yes";
  times.addEventListener("change", () => kept(() => localStorage.setItem("times", times.checked ? "yes" : "no")));
  return () => { if (field.value !== "") look(); };
};

// Converts a piece of output into nodes: its text, and an element with the time before each line whose time is known. The rest of a
// line that started earlier has no time: `begun` states whether the piece starts a new line.
const pieces = (text, times, begun) => {
  const nodes = [];
  let from = 0, line = 0;
  for (const { line: at, observed_at_ms: ms } of times) {
    let to = from;
    for (; line < at; line += 1) { const end = text.indexOf("\n", to); to = end < 0 ? text.length : end + 1; }
    nodes.push(tame(text.slice(from, to)));
    from = to;
    if (at > 0 || begun) nodes.push(element("time", { class: "at", datetime: new Date(ms).toISOString(), "data-at": moment(ms / 1000).slice(11) }));
  }
  return [...nodes, tame(text.slice(from))].filter((one) => one !== "");
};

export { controls, pieces };
