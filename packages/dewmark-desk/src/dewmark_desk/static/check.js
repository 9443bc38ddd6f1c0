// The tab "Check a text": take texts and files, ask the service, and show what it found.

import { detect, example, signedReport, signedTable } from "/static/api.js";
import { $, announce, copy, download, say } from "/static/dom.js";
import { acceptDrops, readText } from "/static/files.js";
import * as history from "/static/history.js";
import { onLanguage, t } from "/static/i18n.js";
import { hideTip } from "/static/tokens.js";
import { hideResult, showResult, summary } from "/static/verdict.js";
import { count } from "/static/words.js";

let service = null; // the answer of whoami
let running = null; // the AbortController of the current check
let latest = null; // the entry of the history that the page shows
let given = { name: null, notes: [] }; // where the text in the box comes from
let refused = null; // what to repeat once there is a token
let needAccess = () => {};

/** Set up the tab; `unauthorized` is called when the service asks for a token. */
export function listen(unauthorized) {
  needAccess = unauthorized;
  $("check-form").addEventListener("submit", (event) => {
    event.preventDefault();
    check();
  });
  $("text").addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return setTimeout(check); // after the text is inserted
    event.preventDefault();
    take(files);
  });
  $("text").addEventListener("input", () => {
    given = { name: null, notes: [] };
    tally();
    $("stale").hidden = !latest || $("text").value === latest.text;
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) check();
  });
  for (const id of ["level", "tenant"]) $(id).addEventListener("change", () => latest && check());
  $("file").addEventListener("change", () => {
    take([...$("file").files]);
    $("file").value = "";
  });
  $("clear").addEventListener("click", clear);
  $("copy").addEventListener("click", () => copy($("copy"), summary(latest, service)));
  $("report-save").addEventListener("click", saveReport);
  $("print").addEventListener("click", () => window.print());
  $("example-marked").addEventListener("click", () => tryExample("marked"));
  $("example-unmarked").addEventListener("click", () => tryExample("unmarked"));
  let unfolded = false; // on paper, everything is visible
  addEventListener("beforeprint", () => {
    unfolded = $("details").open;
    $("details").open = true;
  });
  addEventListener("afterprint", () => ($("details").open = unfolded));
  acceptDrops($("panel-check"), take);
  const stopped = () => {
    stop();
    busy(null);
  };
  history.listen(open, stopped, () => Boolean(service?.signs && service.fine));
  $("history-signed").addEventListener("click", saveTable);
  onLanguage(() => {
    tally();
    if (latest?.result) showResult(latest, service);
  });
  tally();
}

/** Take over the permissions, and repeat what lacked a token. */
export function serve(known) {
  service = known;
  const again = refused;
  if (again && known.authenticated) {
    refused = null;
    again();
  }
}

/** Check files one after another. The first one that is done is shown; the list has the others. */
async function take(files) {
  if (!files.length) return;
  const { signal } = begin();
  forget();
  const entries = files.map((file) => history.add({ name: file.name, time: new Date() }));
  if (files.length > 1) history.reveal(entries, Number($("level").value));
  let shown = false;
  for (const [i, file] of files.entries()) {
    busy(t("reading.file", { name: file.name }));
    try {
      const { text, notes } = await readText(file, signal);
      await judge(Object.assign(entries[i], { text, notes }), signal);
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) {
        entries.slice(i).forEach(history.remove);
        return fail(error, () => take(files.slice(i)));
      }
      const message = error.message.startsWith(file.name) ? error.message : t("error.file", { name: file.name, message: error.message });
      history.update(Object.assign(entries[i], { error: message }));
      if (files.length === 1) {
        forget(); // never leave another verdict under a file that failed
        $("text").value = "";
        tally();
        return fail(new Error(message));
      }
      continue;
    }
    if (!shown) open(entries[i]);
    shown = true;
  }
  busy(null);
}

async function check() {
  const text = $("text").value;
  const { signal } = begin();
  if (latest?.text !== text) forget(); // never show a verdict beside another text
  if (!text.trim()) return fail(new Error(t("error.empty")));
  const entry = history.add({ name: given.name, time: new Date(), text, notes: given.notes });
  busy(t("checking.text"));
  try {
    await judge(entry, signal);
  } catch (error) {
    history.remove(entry);
    forget();
    return fail(error, check);
  }
  open(entry);
  busy(null);
}

async function tryExample(which) {
  const { signal } = begin();
  forget();
  busy(t("example.loading"));
  let text;
  try {
    text = (await example(signal))[which];
  } catch (error) {
    return fail(error, () => tryExample(which));
  }
  $("text").value = text;
  given = { name: t(`example.${which}.name`), notes: which === "marked" ? ["example"] : [] };
  tally();
  await check();
}

/** Ask the service about an entry's text. */
async function judge(entry, signal) {
  const fine = service?.fine ?? true;
  const tenant = entry.notes?.includes("example") ? "demonstration" : $("tenant").value; // the example's own key
  const options = { prompt: $("prompt").value, tenant, fpr: Number($("level").value), fine, signal };
  entry.result = await detect(entry.text, options);
  entry.options = options;
  entry.time = new Date();
  history.update(entry);
}

/** Have the service check the text once more, as it was asked the first time, and sign what it finds. */
function saveReport() {
  const entry = latest;
  return signing($("report-save"), saveReport, async () => {
    const { claims, page } = await signedReport(entry.text, { ...entry.options, name: entry.name });
    download(`${t("report.name")}-${claims.id}.html`, page, "text/html");
  });
}

/** The same for every text of the list, in one table; its signature is a file of its own. */
function saveTable() {
  return signing($("history-signed"), saveTable, async () => {
    const documents = [];
    for (const { text, options, name } of history.signable()) {
      documents.push((await signedReport(text, { ...options, name, page: false })).document);
    }
    const { table, document } = await signedTable(documents);
    download("verdicts.csv", table, "text/csv"); // the name that the signature states
    download("verdicts.jws", document, "application/jose");
  });
}

/** Run what a button saves, and say on the button how far it is; `again` repeats it once there is a token. */
async function signing(button, again, save) {
  say($("check-error"), null);
  button.textContent = t("report.making");
  try {
    await save();
    button.textContent = t("report.saved");
    announce(button.textContent);
  } catch (error) {
    fail(error, again);
    button.textContent = t(button.dataset.t);
  }
  setTimeout(() => (button.textContent = t(button.dataset.t)), 2000);
}

/** Show an entry of the history. */
function open(entry) {
  latest = entry;
  say($("check-error"), entry.error);
  if (!entry.result) return forget();
  $("text").value = entry.text;
  given = { name: entry.name, notes: entry.notes };
  tally();
  const first = $("result").hidden;
  showResult(entry, service);
  $("intro").hidden = true;
  $("text-help").hidden = true;
  $("text").rows = 4; // the text is shown below; make room for the verdict
  history.select(entry);
  announce(summary(entry, service).split("\n").slice(0, 3).join(" "));
  if (first) $("verdict-card").scrollIntoView({ block: "nearest" });
}

function clear() {
  stop();
  busy(null);
  $("text").value = "";
  $("prompt").value = "";
  forget();
  given = { name: null, notes: [] };
  say($("check-error"), null);
  tally();
  $("text").focus();
}

function forget() {
  latest = null;
  hideResult();
  hideTip();
  history.select(null);
  $("intro").hidden = false;
  $("text-help").hidden = false;
  $("text").rows = 8;
}

function tally() {
  const characters = Array.from($("text").value).length;
  $("count").textContent = characters ? count(characters, "characters") : "";
}

function begin() {
  stop();
  refused = null;
  say($("check-error"), null);
  running = new AbortController();
  return running;
}

function stop() {
  running?.abort();
  running = null;
}

function busy(what) {
  $("check").textContent = t(what ? "checking" : "check");
  $("check").setAttribute("aria-disabled", Boolean(what));
  if (what) announce(`${what} …`);
}

function fail(error, again) {
  if (error.name === "AbortError") return;
  busy(null);
  if (error.status === 401) {
    refused = again;
    return needAccess();
  }
  say($("check-error"), error.message);
}
