// The page's strings in the chosen language, from strings.json: one row per string, one column per language.

const STORED = "dewmark-language";
const { languages, strings } = await (await fetch("/static/strings.json")).json();
const plurals = new Map(languages.map((each) => [each, new Intl.PluralRules(each)]));
const listeners = [];

const remembered = localStorage.getItem(STORED);
const preferred = [remembered, ...navigator.languages.map((each) => each.slice(0, 2))];
let current = preferred.find((each) => languages.includes(each)) ?? "en";

/** The language of the page, for Intl. */
export const locale = () => current;

/** The same with the browser's region, which decides how dates are written. */
export const region = () => navigator.languages.find((each) => each.slice(0, 2) === current) ?? current;

/** A string with its {placeholders} filled in; French signs stay on the line of the word before them. */
export function t(key, values = {}) {
  const text = strings[key]?.[languages.indexOf(current)];
  if (text === undefined) throw new Error(`no string “${key}”`);
  return text.replace(/ (?=[?!;:»])/g, "\u00a0").replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);
}

/** A string for a number: `key_one` or `key_other`, with {n} filled in. */
export function tn(key, n, values = {}) {
  const form = plurals.get(current).select(n) === "one" ? "one" : "other";
  return t(`${key}_${form}`, { n: n.toLocaleString(current), ...values });
}

/** Fill every element with data-t (text) or data-t-label (aria-label). */
export function translate(root = document) {
  document.documentElement.lang = current;
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-label]")) {
    element.setAttribute("aria-label", t(element.dataset.tLabel));
  }
}

/** Call `then` whenever the language changes. */
export function onLanguage(then) {
  listeners.push(then);
}

/** Let a <select> choose the language, which the browser remembers. */
export function listenLanguage(select) {
  const name = (code) => new Intl.DisplayNames([code], { type: "language" }).of(code);
  select.replaceChildren(
    ...languages.map((code) => {
      const option = new Option(name(code), code);
      option.lang = code;
      return option;
    }),
  );
  select.value = current;
  select.addEventListener("change", () => {
    current = select.value;
    localStorage.setItem(STORED, current);
    translate();
    listeners.forEach((then) => then());
  });
  translate();
}
