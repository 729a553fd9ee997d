// The theme: the system's, or the one that the user chose in this browser. It runs before the page is painted.

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
      try { if (choice.value) localStorage.setItem(KEY, choice.value); else localStorage.removeItem(KEY); } catch { /* It lasts as long as the page. */ }
      wear(known(choice.value));
    });
  });
  // Other pages of the same browser follow.
  addEventListener("storage", ({ key }) => { if (key === KEY) { wear(kept()); const choice = document.getElementById("theme"); if (choice) choice.value = kept(); } });
})();
