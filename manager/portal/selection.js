// The actions on a page, which ask for confirmation, and the selected rows of a table.

import { accessStorage } from "./charts.js";

const { base = "", experiment = "" } = document.body.dataset;

addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// Keeps the selected rows of a table when it is sorted, filtered or refreshed, until an action uses them. The form includes selected rows
// of other pages, and shows their number.
const selectionKey = (name) => `chosen:${base}:${experiment}:${name}`;
const readSelection = (name) => new Set(JSON.parse(accessStorage(() => sessionStorage.getItem(selectionKey(name))) ?? "[]"));
const storeSelection = (name, selected) => accessStorage(() => sessionStorage.setItem(selectionKey(name), JSON.stringify([...selected])));
const showSelection = () => {
  for (const form of document.querySelectorAll("form[data-chosen]")) {
    const name = form.dataset.chosen, selected = readSelection(name);
    const boxes = [...document.querySelectorAll(`input[type=checkbox][name="${name}"][form="${form.id}"]`)];
    for (const box of boxes) box.checked = selected.has(box.value);
    for (const selectAll of document.querySelectorAll(`input[data-all="${name}"]`)) {
      const checkedCount = boxes.filter((box) => box.checked).length;
      selectAll.hidden = false;
      selectAll.checked = checkedCount > 0 && checkedCount === boxes.length;
      selectAll.indeterminate = checkedCount > 0 && checkedCount < boxes.length;
    }
    const valuesOnPage = new Set(boxes.map((box) => box.value)), otherPages = [...selected].filter((value) => !valuesOnPage.has(value));
    for (const input of form.querySelectorAll("input[data-away]")) input.remove();
    for (const value of otherPages) {
      const input = Object.assign(document.createElement("input"), { type: "hidden", name, value });
      input.dataset.away = "";
      form.append(input);
    }
    for (const button of form.querySelectorAll("button:not([type=button])")) button.disabled = selected.size === 0;
    const status = form.querySelector(".away");
    if (status && status.dataset.chosen !== `${selected.size} ${otherPages.length}`) {
      status.dataset.chosen = `${selected.size} ${otherPages.length}`;
      status.textContent = selected.size === 0 ? "" : `${selected.size} selected${otherPages.length ? `, ${otherPages.length} not on this page` : ""}`;
      const clearButton = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Clear" });
      clearButton.addEventListener("click", () => { storeSelection(name, []); showSelection(); });
      if (selected.size) status.append(" ", clearButton);
    }
  }
};
document.addEventListener("change", ({ target }) => {
  if (target.dataset.all) {
    const name = target.dataset.all, selected = readSelection(name);
    for (const { value } of document.querySelectorAll(`input[type=checkbox][name="${name}"]`)) if (target.checked) selected.add(value); else selected.delete(value);
    storeSelection(name, selected);
    showSelection();
    return;
  }
  const form = target.type === "checkbox" && target.form?.dataset.chosen === target.name ? target.form : null;
  if (!form) return;
  const selected = readSelection(target.name);
  if (target.checked) selected.add(target.value); else selected.delete(target.value);
  storeSelection(target.name, selected);
  showSelection();
});
// Clears the selection after an action on the selected rows.
addEventListener("submit", ({ target, submitter, defaultPrevented }) => {
  if (!defaultPrevented && target.dataset.chosen && submitter?.formMethod === "post") storeSelection(target.dataset.chosen, []);
});
addEventListener("pageshow", showSelection);
showSelection();

export { showSelection };
