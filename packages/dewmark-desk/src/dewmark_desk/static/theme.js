// The theme: light, dark, or without a class the system's; remembered by the browser. This is not a module, so
// that it runs before the page is shown.
"use strict";

(() => {
  const STORED = "dewmark-theme";
  const kept = localStorage.getItem(STORED);
  const chosen = ["light", "dark"].includes(kept) ? kept : "";
  document.documentElement.className = chosen;
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = chosen;
    select.addEventListener("change", () => {
      document.documentElement.className = select.value;
      localStorage.setItem(STORED, select.value);
    });
  });
})();
