// Helpers for building elements. Text always becomes a text node; nothing here parses markup.

import { t } from "/static/i18n.js";

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An element with properties, data attributes and children (strings become text nodes). */
export function make(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, data);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Fill a definition list from [term, value] pairs; pairs without a value are skipped. */
export function define(list, pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  list.replaceChildren(...known.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, value)]));
}

/** Put text into an element, and hide the element if there is none. */
export function say(element, text) {
  element.textContent = text ?? "";
  element.hidden = !text;
}

/** Announce a message to screen readers. */
export function announce(message) {
  $("status").textContent = message;
}

/** Save text as a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Copy text to the clipboard and confirm it on the button for a moment. */
export async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = t("copied");
  } catch {
    button.textContent = t("copy.refused");
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = t(button.dataset.t)), 2000);
}
