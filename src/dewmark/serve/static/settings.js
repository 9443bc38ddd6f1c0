// Settings in the URL's fragment: tab, level and key; never a text. Also the theme and the colours.

import { $ } from "/static/dom.js";

const THEME = "dewmark-theme";
const PALETTE = "dewmark-palette";
export const LEVELS = ["0.05", "0.01", "0.001", "0.0001"];

/** The settings in the URL, validated. */
export function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return {
    tab: given.get("tab") === "audit" ? "audit" : "check",
    level: LEVELS.includes(given.get("level")) ? given.get("level") : null,
    tenant: given.get("key") ?? "",
  };
}

/** The fragment of the current settings. */
function fragment(tab) {
  const said = new URLSearchParams({ tab, level: $("level").value });
  if ($("tenant").value) said.set("key", $("tenant").value);
  return `#${said}`;
}

export const link = (tab) => location.origin + location.pathname + fragment(tab);

export function toAddress(tab) {
  history.replaceState(null, "", fragment(tab));
}

/** Theme (light, dark, or without a class the system's) and token colours, remembered by the browser. */
export function listenLook() {
  const remembered = (name, allowed) => {
    const value = localStorage.getItem(name);
    return allowed.includes(value) ? value : "";
  };
  let palette = remembered(PALETTE, ["blue"]);
  $("theme").value = remembered(THEME, ["light", "dark"]);
  const apply = () => {
    document.documentElement.className = `${$("theme").value} ${palette}`.trim();
    $("palette").textContent = palette ? "Use green and red" : "Use blue and orange";
    localStorage.setItem(THEME, $("theme").value);
    localStorage.setItem(PALETTE, palette);
  };
  $("theme").addEventListener("change", apply);
  $("palette").addEventListener("click", () => {
    palette = palette ? "" : "blue";
    apply();
  });
  apply();
}
