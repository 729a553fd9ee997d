// Applies the theme of the system, or the one that the user selected in this browser, before the page is painted.

(() => {
  const STORAGE_KEY = "trialkeeper.theme";
  const validTheme = (name) => ["light", "dark"].includes(name) ? name : "";
  const readTheme = () => { try { return validTheme(localStorage.getItem(STORAGE_KEY)); } catch { return ""; } };
  const applyTheme = (name) => {
    if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
    dispatchEvent(new Event("theme"));
  };
  applyTheme(readTheme());
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    if (!select) return;
    select.value = readTheme();
    select.closest("label").hidden = false;
    select.addEventListener("change", () => {
      try { if (select.value) localStorage.setItem(STORAGE_KEY, select.value); else localStorage.removeItem(STORAGE_KEY); } catch { /* The selection lasts as long as the page. */ }
      applyTheme(validTheme(select.value));
    });
  });
  // Follows the selection on other pages of the same browser.
  addEventListener("storage", ({ key }) => { if (key === STORAGE_KEY) { applyTheme(readTheme()); const select = document.getElementById("theme"); if (select) select.value = readTheme(); } });
})();
