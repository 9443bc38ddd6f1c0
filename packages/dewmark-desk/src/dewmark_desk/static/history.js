// The texts checked in this browser. The list itself (names, times, results in a word) is remembered in
// localStorage; texts and full results are kept in memory only, so they are gone when the page is closed.

import { $, download, make } from "/static/dom.js";
import { kindOf } from "/static/findings.js";
import { onLanguage, t } from "/static/i18n.js";
import { level, moment, number, pValue } from "/static/words.js";

const STORED = "dewmark-history";
const MOST = 200;
const COLUMNS = ["text", "verdict", "p_value", "z", "effective_length", "fpr", "tenant", "key_fingerprint", "language", "time", "error"];

let entries = restore(); // newest first: {name, time, kind} or {name, time, text, notes, result, error}
let selected = null;
let batch = null; // files that were dropped together: {entries, fpr}
let open = () => {};
let signs = () => false;

/** `show` is called with an entry that the user picks, `stop` to end a check of many files; `canSign` says whether the service signs. */
export function listen(show, stop, canSign) {
  open = show;
  signs = canSign;
  $("history-stop").addEventListener("click", stop);
  $("history-csv").addEventListener("click", () => download(`${t("history.csv.name")}.csv`, csv(entries), "text/csv"));
  $("history-forget").addEventListener("click", () => {
    entries = entries.filter((entry) => entry === selected);
    batch = null;
    render();
  });
  onLanguage(render);
  render();
}

export function add(entry) {
  entries = [entry, ...entries].slice(0, MOST);
  render();
  return entry;
}

export function update(entry) {
  entry.kind = entry.error ? "failed" : kindOf(entry.result);
  render();
}

export function remove(entry) {
  entries = entries.filter((each) => each !== entry);
  if (batch) batch.entries = batch.entries.filter((each) => each !== entry);
  render();
}

/** The entries that a service can sign: checked since the page was opened, and not the example. */
export const signable = () => entries.filter(({ result, notes }) => result && !notes?.includes("example"));

/** Show the list of files that are checked together. */
export function reveal(some, fpr) {
  batch = { entries: some, fpr };
  const rest = entries.filter((entry) => !some.includes(entry));
  entries = [...some, ...rest]; // in the order of the files
  $("history").open = true;
  render();
}

export function select(entry) {
  selected = entry;
  render();
}

function restore() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    return kept.slice(0, MOST).map(({ name, time, kind }) => ({ name, time: new Date(time), kind }));
  } catch {
    return [];
  }
}

function store() {
  const kept = entries.filter(({ kind }) => kind).map(({ name, time, kind }) => ({ name: name ?? null, time, kind }));
  localStorage.setItem(STORED, JSON.stringify(kept));
}

/** The checked texts as a table for spreadsheets; a name that one would take for a formula is quoted. */
export function csv(some) {
  const cell = (value) => {
    const plain = typeof value === "number" ? String(value) : String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&");
    return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  const rows = some
    .filter(({ kind }) => kind)
    .map(({ name, time, kind, error, result }) => {
      const known = { ...result, text: name ?? t("pasted"), verdict: result?.verdict ?? kind, error };
      return { ...known, language: result?.language?.code, time: time.toISOString() };
    });
  return [COLUMNS, ...rows.map((row) => COLUMNS.map((name) => row[name]))]
    .map((cells) => cells.map(cell).join(",") + "\r\n")
    .join("");
}

function render() {
  store();
  const done = batch?.entries.filter(({ kind }) => kind).length ?? 0;
  $("history-running").hidden = !batch || done === batch.entries.length;
  $("history-bar").value = done / (batch?.entries.length || 1);
  $("history-csv").hidden = !entries.some(({ kind }) => kind);
  $("history-signed").hidden = !signs() || !signable().length;
  $("history").hidden = !entries.some((entry) => entry !== selected);
  $("history-count").textContent = `(${number(entries.length)})`;
  $("history-rows").replaceChildren(...entries.map(row));
  $("history-expect").hidden = !batch;
  if (batch) $("history-expect").textContent = expectation(batch);
}

/** Many looks make false alarms likely: say how many to expect. */
function expectation({ entries: some, fpr }) {
  const done = some.filter(({ kind }) => kind).length;
  if (done < some.length) return t("history.progress", { done: number(done), n: number(some.length) });
  const judged = some.filter(({ result }) => result && ["marked", "not_marked"].includes(result.verdict)).length;
  const alarms = number(Number((judged * fpr).toPrecision(2)));
  return t("history.expect", { n: number(judged), level: level(fpr), alarms });
}

function row(entry) {
  const name = entry.name ?? t("pasted");
  let shown = name;
  if (entry.result || entry.error) {
    shown = make("button", { className: "link", type: "button" }, name);
    shown.addEventListener("click", () => open(entry));
  }
  const kind = entry.kind ? t(`verdict.${entry.kind}`) : t("verdict.waiting");
  const made = make(
    "tr",
    { className: entry === selected ? "selected" : "" },
    make("td", {}, shown),
    make("td", { data: { kind: entry.kind ?? "" } }, kind),
    make("td", {}, typeof entry.result?.p_value === "number" ? pValue(entry.result.p_value) : ""),
    make("td", {}, moment(entry.time)),
  );
  if (entry === selected) made.setAttribute("aria-current", "true");
  return made;
}
