import { accessStorage, formatTime, sanitiseText } from "./charts.js";

// The controls of a trial's output: search, line wrapping and times.

// The search stops after this number of matches.
const MAX_MATCHES = 2000;

const createElement = (name, attributes, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const setHighlight = (name, ranges) => {
  if (!globalThis.Highlight) return;
  if (ranges.length) CSS.highlights.set(name, new Highlight(...ranges)); else CSS.highlights.delete(name);
};

// Returns the matches of a text as ranges, ignoring case.
const findMatches = (log, query) => {
  if (query === "") return [];
  const nodes = [];
  let length = 0;
  for (const node of log.childNodes) { nodes.push({ node, from: length }); length += node.textContent.length; }
  const pattern = new RegExp(query.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi"), ranges = [];
  let nodeIndex = 0;
  const locate = (offset) => {
    while (nodeIndex > 0 && nodes[nodeIndex].from > offset) nodeIndex -= 1;
    while (nodeIndex + 1 < nodes.length && nodes[nodeIndex + 1].from <= offset) nodeIndex += 1;
    return [nodes[nodeIndex].node, offset - nodes[nodeIndex].from];
  };
  for (const { 0: match, index } of log.textContent.matchAll(pattern)) {
    const range = document.createRange();
    range.setStart(...locate(index));
    range.setEnd(...locate(index + match.length));
    if (ranges.push(range) === MAX_MATCHES) break;
  }
  return ranges;
};

// Adds the controls above the output of a stream. Returns a function to call after the output has grown.
const createControls = (stream) => {
  const log = document.getElementById(`log-${stream}`), name = log.getAttribute("aria-label");
  const field = createElement("input", { type: "search", "aria-label": `Find in ${name.toLowerCase()}`, placeholder: "Find", spellcheck: "false" });
  const count = createElement("output", {});
  const createStepButton = (text, label, step) => {
    const button = createElement("button", { type: "button", class: "second small", "aria-label": label }, text);
    button.addEventListener("click", () => goToMatch(step));
    return button;
  };
  const wrap = createElement("input", { type: "checkbox" });
  const bar = createElement("div", { class: "log-bar" }, field, createStepButton("↑", "Previous match", -1), createStepButton("↓", "Next match", 1), count, createElement("label", {}, wrap, " wrap lines"));
  log.previousElementSibling.append(bar);
  let ranges = [], currentIndex = -1;
  const showMatches = () => {
    setHighlight(`found-${stream}`, ranges);
    setHighlight(`found-now-${stream}`, ranges.slice(currentIndex, currentIndex + 1).filter(() => currentIndex >= 0));
    count.textContent = field.value === "" ? "" : ranges.length === 0 ? "no matches in the visible part" : `${currentIndex + 1} of ${ranges.length}${ranges.length === MAX_MATCHES ? " or more" : ""}`;
  };
  const search = () => { ranges = findMatches(log, field.value); currentIndex = Math.min(currentIndex, ranges.length - 1); showMatches(); };
  const goToMatch = (step) => {
    if (ranges.length === 0) return;
    currentIndex = currentIndex < 0 && step < 0 ? ranges.length - 1 : (currentIndex + step + ranges.length) % ranges.length;
    // New output must not scroll the match out of view.
    const followBox = document.querySelector(`[data-follow=${stream}]`);
    if (followBox) followBox.checked = false;
    const { top, left } = ranges[currentIndex].getBoundingClientRect(), box = log.getBoundingClientRect();
    log.scrollTop += top - box.top - log.clientHeight / 2;
    if (left < box.left || left > box.right) log.scrollLeft += left - box.left - log.clientWidth / 2;
    showMatches();
  };
  field.addEventListener("input", () => { currentIndex = -1; search(); goToMatch(1); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); goToMatch(event.shiftKey ? -1 : 1); } });
  const applyWrapping = () => log.classList.toggle("long", !wrap.checked);
  wrap.checked = accessStorage(() => localStorage.getItem("wrap")) !== "no";
  wrap.addEventListener("change", () => { accessStorage(() => localStorage.setItem("wrap", wrap.checked ? "yes" : "no")); applyWrapping(); });
  applyWrapping();
  const times = document.querySelector(`[data-times=${stream}]`);
  times.checked ||= accessStorage(() => localStorage.getItem("times")) === "yes";
  times.addEventListener("change", () => accessStorage(() => localStorage.setItem("times", times.checked ? "yes" : "no")));
  return () => { if (field.value !== "") search(); };
};

// Converts a piece of output into nodes: its text, and an element with the time before each line whose time is known. The rest of a
// line that started earlier has no time: `startsLine` states whether the piece starts a new line.
const splitOutput = (text, times, startsLine) => {
  const nodes = [];
  let from = 0, line = 0;
  for (const { line: timedLine, observed_at_ms: observedAtMs } of times) {
    let to = from;
    for (; line < timedLine; line += 1) { const end = text.indexOf("\n", to); to = end < 0 ? text.length : end + 1; }
    nodes.push(sanitiseText(text.slice(from, to)));
    from = to;
    if (timedLine > 0 || startsLine) nodes.push(createElement("time", { class: "at", datetime: new Date(observedAtMs).toISOString(), "data-at": formatTime(observedAtMs / 1000).slice(11) }));
  }
  return [...nodes, sanitiseText(text.slice(from))].filter((node) => node !== "");
};

export { createControls, splitOutput };
