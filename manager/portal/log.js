import { kept, moment, tame } from "./charts.js";

// What one does with a trial's output in view: search it, and wrap its lines or not.

// Places that are counted; a page is not searched for more.
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

// The places of a text, in any case, as ranges.
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

// Puts the controls above a stream's output; answers with what is to be done when the output has grown.
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
  const bar = element("div", { class: "log-bar" }, field, step("↑", "Previous place", -1), step("↓", "Next place", 1), count, element("label", {}, wrap, " wrap lines"));
  log.before(bar);
  let ranges = [], now = -1;
  const show = () => {
    highlight(`found-${stream}`, ranges);
    highlight(`found-now-${stream}`, ranges.slice(now, now + 1).filter(() => now >= 0));
    count.textContent = field.value === "" ? "" : ranges.length === 0 ? "not in what is shown" : `${now + 1} of ${ranges.length}${ranges.length === MOST ? " or more" : ""}`;
  };
  const look = () => { ranges = found(log, field.value); now = Math.min(now, ranges.length - 1); show(); };
  const go = (by) => {
    if (ranges.length === 0) return;
    now = now < 0 && by < 0 ? ranges.length - 1 : (now + by + ranges.length) % ranges.length;
    // What is looked at must not be moved away by what comes.
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

// A piece of output as nodes: its text, and before a line whose time is known an element that shows it. A line that goes on has
// none: `begun` says that another one begins.
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
