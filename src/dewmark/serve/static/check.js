// The tab "Check a text": send a text to the service and show its verdict, tokens, passages and plot.

import { detect, locate } from "/static/api.js";
import { $, announce, complain, copy, define, make } from "/static/dom.js";
import { acceptDrops, readText } from "/static/files.js";
import { pointTo, showPlot } from "/static/plot.js";
import { hideTip, inspectPassage, showTokens } from "/static/tokens.js";
import { CONCLUSIVE, VERDICTS, count, decimal, howSure, language, level, meaning, pValue } from "/static/words.js";

let service = null; // the answer of whoami
let running = null; // the AbortController of the current check
let latest = null; // what the page shows: {text, result, located, searching}
let refused = false; // whether a check is waiting for a token
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
  $("copy").addEventListener("click", () => copy($("copy"), summary(latest)));
  acceptDrops($("panel-check"), take);
  tally();
}

/** Take over the permissions, and repeat a check that lacked a token. */
export function serve(known) {
  service = known;
  if (refused && known.authenticated) check();
}

async function take(files) {
  if (!files.length) return;
  stop();
  running = new AbortController();
  complain($("check-error"), null);
  busy(`Reading ${files[0].name}`);
  try {
    $("text").value = await readText(files[0], running.signal);
  } catch (error) {
    return fail(error);
  }
  tally();
  await check();
  if (files.length > 1) warn("Only the first file was read.", "To check many of your own texts, use the audit.");
}

function clear() {
  stop();
  $("text").value = "";
  $("prompt").value = "";
  forget();
  $("text").rows = 8;
  complain($("check-error"), null);
  tally();
  $("text").focus();
}

function forget() {
  latest = null;
  $("result").hidden = true;
  hideTip();
}

function tally() {
  const characters = Array.from($("text").value).length;
  $("count").textContent = characters ? count(characters, "character") : "";
}

function stop() {
  running?.abort();
  running = null;
}

async function check() {
  const text = $("text").value;
  stop();
  refused = false;
  if (latest?.text !== text) forget(); // never show a verdict beside another text
  if (!text.trim()) return fail(new Error("There is no text yet. Paste one or drop a file."));
  running = new AbortController();
  const { signal } = running;
  const fine = service?.fine ?? true;
  const options = { prompt: $("prompt").value, tenant: $("tenant").value, fpr: Number($("level").value), fine, signal };
  complain($("check-error"), null);
  busy("Checking the text");
  try {
    const result = await detect(text, options);
    const searching = fine && result.tokens && CONCLUSIVE.has(result.verdict);
    latest = { text, result, located: null, searching };
    show();
    if (searching) {
      latest = { text, result, located: await locate(text, { ...options, tenant: result.tenant }) };
      show();
    }
  } catch (error) {
    return fail(error);
  }
  busy(null);
  announce(summary(latest).split("\n").slice(0, 3).join(" "));
}

function busy(what) {
  $("check").textContent = what ? "Checking …" : "Check";
  $("check").setAttribute("aria-disabled", Boolean(what));
  if (what) announce(`${what} …`);
}

function fail(error) {
  if (error.name === "AbortError") return;
  busy(null);
  refused = error.status === 401;
  if (refused) return needAccess();
  complain($("check-error"), error.message);
}

function show() {
  const { text, result, located, searching } = latest;
  const passages = located?.passages ?? [];
  const first = $("result").hidden;
  $("result").hidden = false;
  $("stale").hidden = true;
  $("text").rows = 4; // the coloured text is below; make room for the verdict
  $("verdict-card").className = `card verdict ${result.verdict.replace(" ", "-")}`;
  $("verdict").textContent = VERDICTS[result.verdict];
  const [share, rest] = howSure(result);
  $("sure").hidden = !CONCLUSIVE.has(result.verdict);
  $("sure").replaceChildren(make("strong", {}, share), ` ${rest}`);
  $("said").textContent = meaning(result);
  $("warnings").replaceChildren();
  warnings(result, located).forEach(([head, body]) => warn(head, body));
  define($("numbers"), numbers(result));
  caveats(result);
  $("scored-title").textContent = result.tokens ? "The text, token by token" : "The text";
  showTokens(text, result.tokens, passages, pointTo);
  listPassages(located, searching);
  showPlot(result, passages);
  if (first) $("text").scrollTop = 0;
  if (first) $("verdict-card").scrollIntoView({ block: "nearest" });
}

function warnings(result, located) {
  const found = [];
  const passages = located?.passages ?? [];
  if (result.verdict === "too short") {
    const least = service?.limits.min_effective_length ?? 16;
    found.push([
      "The text is too short.",
      `It is worth ${Math.floor(result.effective_length)} independent tokens. A verdict needs at least ${least}, ` +
        "and a reliable one often several hundred. Add more of the text.",
    ]);
  }
  if (result.language.supported === false) {
    const name = language(result.language.code);
    found.push([
      `The encoder does not know ${name}.`,
      "One key may call nearly all texts in such a language marked, or none: have this key audited on such texts.",
    ]);
  }
  if (result.truncated) {
    const [scored, all] = [result.scored_characters, result.characters].map((n) => n.toLocaleString("en"));
    found.push(["Only the beginning was scored.", `${scored} of ${all} characters; check the rest separately.`]);
  }
  if (result.verdict === "not marked" && passages.length) {
    found.push([
      `${count(passages.length, "passage")} in the text ${passages.length === 1 ? "is" : "are"} marked.`,
      "The text as a whole is not, because most of it is unmarked.",
    ]);
  }
  if (result.rounded) {
    found.push(["Rounded numbers.", "Your token shows only orders of magnitude, and no token scores."]);
  }
  return found;
}

function warn(head, body) {
  $("warnings").append(make("p", { className: "warning" }, make("strong", {}, head), ` ${body}`));
}

function numbers(result) {
  return [
    ["p-value", pValue(result.p_value)],
    ["z", result.z === null ? null : decimal(result.z, result.rounded ? 0 : 2)],
    ["effective length", `${Math.round(result.effective_length)} of ${count(result.tokens_scored, "token")}`],
    ["level", level(result.fpr)],
    ["language", language(result.language.code)],
    ["test", `${result.scheme}, ${result.test} test`],
    ["key", keyOf(result)],
    ["fingerprint", result.keys === 1 || result.verdict === "marked" ? result.key_fingerprint : null],
  ];
}

/** The key that was found; if none of several was, only their number. */
function keyOf({ verdict, keys, tenant }) {
  if (keys === 1) return tenant;
  return verdict === "marked" ? `${tenant}, of ${keys} tried` : `${keys} tried`;
}

/** The service's caveats, one paragraph per verdict, this verdict's first. */
function caveats(result) {
  const all = (service?.caveats ?? []).join(" ").split(/ (?=“(?:Marked|Not marked|Too short)”)/);
  const mine = all.findIndex((each) => each.toLowerCase().startsWith(`“${result.verdict}”`));
  const ordered = mine > 0 ? [all[mine], ...all.filter((_, i) => i !== mine)] : all;
  $("caveat-list").replaceChildren(...ordered.map((each) => make("p", {}, each)));
  $("caveats").hidden = !service?.caveats.length;
}

function listPassages(located, searching) {
  $("passages").hidden = !located && !searching;
  $("passages-title").textContent = "Searching for marked passages …";
  $("passage-list").replaceChildren();
  $("passage-help").textContent = "";
  if (!located) return;
  const { passages } = located;
  $("passages-title").textContent = passages.length ? count(passages.length, "marked passage") : "No marked passage";
  $("passage-list").hidden = !passages.length;
  $("passage-list").replaceChildren(
    ...passages.map((passage, place) => {
      const go = make("button", { className: "link", type: "button" }, `Characters ${passage.start} to ${passage.end}`);
      go.addEventListener("click", () => inspectPassage(place));
      const share = `about ${Math.round(100 * passage.share)}% marked`;
      const said = `: ${count(passage.tokens, "token")}, ${share}, p = ${pValue(passage.p_value)}`;
      return make("li", {}, go, said);
    }),
  );
  const searched = located.detection;
  const part = searched.truncated
    ? ` Only the first ${count(searched.scored_characters, "character")} were searched.`
    : "";
  const said = passages.length
    ? (service?.passage_caveats ?? []).join(" ")
    : `No stretch of the text stands out at level ${level(located.fpr)}. ` +
      "Marked stretches of fewer than about 30 tokens cannot be found.";
  $("passage-help").textContent = said + part;
}

/** The result as plain text, without the checked text. */
function summary({ result, located }) {
  const [share, rest] = howSure(result);
  const sure = !CONCLUSIVE.has(result.verdict) ? "" : `${share} ${rest}`;
  const found = located ? `${count(located.passages.length, "marked passage")} found.` : "";
  const warned = warnings(result, located).map((pair) => pair.join(" "));
  const rows = numbers(result)
    .filter(([, value]) => value !== null)
    .map((pair) => pair.join(": "));
  return [`${VERDICTS[result.verdict]}.`, sure, [found, ...warned].join(" ").trim(), "", ...rows].join("\n");
}
