// Applies the theme of the system, or the one that the user selected in this browser, before the page is painted.

(() => {
  const KEY = "trialkeeper.theme";
  const known = (word) => ["light", "dark"].includes(word) ? word : "";
  const kept = () => { try { return known(localStorage.getItem(KEY)); } catch { return ""; } };
  const wear = (word) => {
    if (word) document.documentElement.dataset.theme = word; else delete document.documentElement.dataset.theme;
    dispatchEvent(new Event("theme"));
  };
  wear(kept());
  addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    if (!choice) return;
    choice.value = kept();
    choice.closest("label").hidden = false;
    choice.addEventListener("change", () => {
      try { if (choice.value) localStorage.setItem(KEY, choice.value); else localStorage.removeItem(KEY); } catch { /* The selection lasts as long as the page. */ }
      wear(known(choice.value));
    });
  });
  // Follows the selection on other pages of the same browser.
  addEventListener("storage", ({ key }) => { if (key === KEY) { wear(kept()); const choice = document.getElementById("theme"); if (choice) choice.value = kept(); } });
})();
