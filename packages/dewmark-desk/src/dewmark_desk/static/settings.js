// Settings in the URL's fragment: tab, level and key; never a text.

import { $ } from "/static/dom.js";
import { t } from "/static/i18n.js";
import { level, number } from "/static/words.js";

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

/** The choice of levels, in words. */
export function showLevels() {
  const chosen = $("level").value;
  const said = (fpr) => t("level.option", { n: number(Math.round(1 / fpr)), level: level(Number(fpr)) });
  $("level").replaceChildren(...LEVELS.map((fpr) => new Option(said(fpr), fpr)));
  if (chosen) $("level").value = chosen;
}
