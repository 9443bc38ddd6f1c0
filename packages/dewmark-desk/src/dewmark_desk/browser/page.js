/* The page: texts in, what the detector says out. Nothing is stored, and nothing leaves this machine. */
"use strict";

const $ = (id) => document.getElementById(id);
let detector = null, language = 0, shown = null;

/** The string of a name in the chosen language, with {placeholders} filled in. */
function t(name, values = {}) {
  return DATA.strings.strings[name][language].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

function translate() {
  const codes = DATA.strings.languages;
  document.documentElement.lang = codes[language];
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  const names = new Intl.DisplayNames(codes[language], { type: "language" });
  const known = DATA.about.languages.map((code) => names.of(code)).sort((a, b) => a.localeCompare(b));
  $("languages").textContent = t("limits.languages", { languages: known.join(", ") });
  const { software, key_fingerprint, lexicon } = DATA.about;
  $("about").textContent = t("about", { software, key: key_fingerprint, lexicon });
  if (shown) show(shown);
}

function show(found) {
  shown = found;
  const number = (value, digits) => value.toLocaleString(DATA.strings.languages[language], { maximumSignificantDigits: digits });
  const odds = number(1 / found.p_value, 2);
  $("verdict").textContent = t(`verdict.${found.verdict}`);
  $("meaning").textContent = t(`meaning.${found.verdict}`, { odds, level: number(found.level, 2) });
  $("not").textContent = t(`not.${found.verdict}`);
  const rows = [["p", found.p_value.toExponential(2)], ["z", number(found.z, 4)],
    ["length", number(found.effective_length, 3)], ["scored", number(found.words_scored, 6)]];
  $("numbers").replaceChildren(...rows.flatMap(([name, value]) => {
    const term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = t(`number.${name}`);
    said.textContent = value;
    return [term, said];
  }));
  $("result").hidden = false;
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
}

async function check(event) {
  event.preventDefault();
  const text = $("text").value;
  $("error").hidden = true;
  if (!text.trim()) return fail(t("empty"));
  if (text.length > 500_000) return fail(t("long"));
  $("check").disabled = true;
  $("status").textContent = t("checking");
  await new Promise((ready) => setTimeout(ready, 20)); // lets the browser paint
  const level = Number($("level").value);
  try {
    show({ ...detector.detect(text, level), level });
    $("status").textContent = $("verdict").textContent;
    $("verdict").focus();
  } finally {
    $("check").disabled = false;
  }
}

async function open() {
  const codes = DATA.strings.languages, wanted = navigator.languages.map((each) => each.slice(0, 2));
  language = Math.max(codes.indexOf(wanted.find((each) => codes.includes(each))), 0);
  $("language").replaceChildren(...codes.map((code, i) => {
    const option = new Option(new Intl.DisplayNames(code, { type: "language" }).of(code), i, false, i === language);
    option.lang = code;
    return option;
  }));
  translate();
  $("language").addEventListener("change", () => {
    language = Number($("language").value);
    translate();
  });
  if (typeof BLOB === "undefined") await new Promise((loaded) => $("arrays").addEventListener("load", loaded));
  detector = new PublicDetector(DATA.about, DATA.tables, await inflated(BLOB));
  $("check").dataset.t = "check";
  $("check").textContent = t("check");
  $("check").disabled = false;
  $("form").addEventListener("submit", check);
  $("clear").addEventListener("click", () => {
    $("text").value = "";
    $("result").hidden = $("error").hidden = true;
    $("text").focus();
  });
  $("file").addEventListener("change", async () => {
    if ($("file").files.length) $("text").value = await $("file").files[0].text();
  });
  document.documentElement.dataset.ready = "yes";
}

open();
