// The result of a check: one sentence, where the mark is, what it means, and the numbers behind "Details".

import { $, define, draw, make, say } from "/static/dom.js";
import { conclusive, headline, isCut, kindOf, passagesOf, places, trimmed } from "/static/findings.js";
import { t, tn } from "/static/i18n.js";
import { pointTo, showPlot } from "/static/plot.js";
import { hideTokens, inspectPassage, showTokens } from "/static/tokens.js";
import { count, decimal, language, level, moment, number, pValue, shareOfKeys } from "/static/words.js";

const QUOTED = 420; // characters of a passage that are quoted in full

/** Show an entry {name, time, text, notes, result}; `service` is the answer of whoami. */
export function showResult(entry, service) {
  const { text, result } = entry;
  const characters = Array.from(text);
  const passages = trimmed(passagesOf(result), characters);
  $("result").hidden = false;
  $("stale").hidden = true;
  $("report-save").hidden = !(service?.signs && service.fine) || Boolean(entry.notes?.includes("example"));
  $("verdict-card").dataset.kind = kindOf(result);
  $("meta").textContent = about(entry);
  $("verdict").textContent = headline(result, characters);
  const [said, share] = certainty(result, service);
  say($("sure"), said);
  if (share) emphasise($("sure"), share);
  const power = result.power ?? null;
  say($("power"), power && t("power", { n: power.found_in_100 }));
  say($("power-basis"), power && basis(power, result.language?.code));
  say($("layers"), layers(result.manifest));
  const warned = warnings(entry).map(([head, body]) =>
    make("p", { className: "warning" }, body ? make("strong", {}, head) : head, body ? ` ${body}` : ""),
  );
  $("warnings").replaceChildren(...warned);
  showMap(passages, characters.length);
  listPassages(result, passages, characters);
  showMeaning(result, service);
  const numbers = details(result, service);
  $("details").hidden = !numbers.length;
  define($("numbers"), numbers);
  showTokens(text, conclusive(result) ? result.tokens : null, passages, pointTo);
  showPlot(result, passages);
}

/** What the signed manifest says beside the mark, or null. */
function layers(manifest) {
  if (!manifest) return null;
  const said = t(`layers.${manifest.layers ?? "unread"}`, { signer: manifest.signer ?? "?" });
  return manifest.state === "untrusted" ? t("layers.untrusted", { said }) : said;
}

export function hideResult() {
  $("result").hidden = true;
  hideTokens();
}

/** "letter.docx · 16 Nov 2026, 11:20 · 2,210 characters". */
function about({ name, time, text }) {
  return [name ?? t("pasted"), moment(time), count(Array.from(text).length, "characters")].join(" · ");
}

/** The second sentence and its number. It counts keys, because the p-value is a share of keys, not of texts. */
function certainty(result, service) {
  const kind = kindOf(result);
  if (kind === "too_short") {
    const least = service?.limits.min_effective_length ?? 16;
    const worth = result.effective_length;
    return [typeof worth === "number" ? tn("short.say", Math.floor(worth), { least }) : t("short.say.public")];
  }
  if (kind === "no_room") return [t("no_room.say")];
  if (kind === "language") return [t(result.leaves_no_room ? "language.none.say" : "language.say")];
  if (typeof result.p_value !== "number") return [null];
  const share = shareOfKeys(result.p_value);
  return [t(kind === "not_marked" ? "sure.none" : "sure", { share }), share];
}

/** Make a part of an element's text strong. */
function emphasise(element, part) {
  const [before, after] = element.textContent.split(part);
  element.replaceChildren(before, make("strong", {}, part), after);
}

function basis({ texts, host, own, language: measured }, code) {
  const said = t(own ? "power.own" : "power.packaged", { texts: count(texts, "texts"), host });
  if (!measured || !code || measured === code) return said;
  return `${said} ${t("power.language", { measured: language(measured), language: language(code) })}`;
}

function warnings({ result, notes }) {
  const found = [];
  if (notes?.includes("latin1")) found.push([t("warn.latin1"), t("warn.latin1.say")]);
  if (conclusive(result) && result.language?.supported === false) {
    const { code } = result.language;
    const head = code ? t("warn.language", { language: language(code) }) : t("warn.language.unknown");
    found.push([head, t("warn.language.say")]);
  }
  if (result.rounded) found.push([t("warn.public"), t("warn.public.say")]);
  if (notes?.includes("example")) found.push([t("example.note"), null]);
  return found;
}

/** A bar from the beginning of the text to its end, with the passages on it. */
function showMap(passages, length) {
  $("map").hidden = !passages.length;
  const svg = draw("svg", { viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", "aria-label": t("map") });
  svg.append(draw("rect", { class: "track", x: 0, y: 0, width: 1000, height: 14 }));
  for (const { start, end } of passages) {
    const width = Math.max((1000 * (end - start)) / length, 4);
    svg.append(draw("rect", { class: "place", x: (1000 * start) / length, y: 0, width, height: 14 }));
  }
  $("map-drawing").replaceChildren(svg);
}

function listPassages(result, passages, characters) {
  $("passages").hidden = !passages.length;
  $("passages-title").textContent = tn("passages", passages.length);
  $("passage-list").replaceChildren(
    ...passages.map((passage, place) => {
      const go = make("button", { className: "link", type: "button" }, t("passage.show"));
      go.addEventListener("click", () => inspectPassage(place));
      const where = [places([passage], characters), count(passage.tokens, "words")];
      if (passage.tenant && passage.tenant !== result.tenant) where.push(passage.tenant);
      const said = make("p", { className: "where" }, where.filter(Boolean).join(" · "), " · ", go);
      return make("li", {}, make("blockquote", { dir: "auto" }, quoted(characters, passage)), said);
    }),
  );
  $("passage-help").textContent = t("passages.help");
}

/** A passage's text; the middle of a long one is left out. */
function quoted(characters, { start, end }) {
  const inside = characters.slice(start, end);
  const [before, after] = isCut(characters, { start, end }).map((cut) => (cut ? "…" : ""));
  return before + shortened(inside) + after;
}

function shortened(inside) {
  if (inside.length <= QUOTED) return inside.join("");
  const part = Math.floor(QUOTED / 2);
  const head = inside.slice(0, part).join("").replace(/\s+\S*$/u, "");
  const tail = inside.slice(-part).join("").replace(/^\S*\s+/u, "");
  return `${head} […] ${tail}`;
}

function showMeaning(result, service) {
  const kind = { marked: "marked", part: "marked", not_marked: "not_marked" }[kindOf(result)] ?? "none";
  $("meaning-may").textContent = t(`meaning.${kind}.may`);
  $("meaning-not").textContent = t(`meaning.${kind}.not`);
  $("meaning-keys").hidden = kind === "none" || typeof result.p_value !== "number";
  $("meaning-audit").textContent = audited(service?.audits?.[result.tenant]);
}

/** What the latest audit of a key said; the level that holds for this key's texts comes from there. */
function audited(job) {
  const cell = job?.result?.cells?.find((each) => each.kind === "all" && each.level === 0.01);
  if (!cell) return t("meaning.audit.none");
  const [alarms, texts] = [cell.alarms, cell.texts].map(number);
  const date = moment(new Date(job.finished), { time: false });
  return t("meaning.audit", { date, alarms, texts, level: level(cell.level) });
}

/** [term, value] pairs; none if the text got no verdict or the caller may not see numbers. */
function details(result, service) {
  if (!conclusive(result) || typeof result.p_value !== "number") return [];
  const tokens = count(result.tokens_scored, "tokens");
  const shown = (value, say) => (typeof value === "number" ? say(value) : null);
  return [
    [t("number.p"), pValue(result.p_value)],
    [t("number.z"), shown(result.z, decimal)],
    [t("number.length"), shown(result.effective_length, (n) => t("number.length.of", { n: number(Math.round(n)), tokens }))],
    [t("number.level"), level(result.fpr)],
    [t("number.language"), language(result.language?.code)],
    [t("number.test"), t("number.test.of", { scheme: result.scheme, test: result.test })],
    [t("number.key"), keyOf(result)],
    [t("number.fingerprint"), result.keys === 1 || result.asked || result.verdict === "marked" ? result.key_fingerprint : null],
    ...passagesOf(result).map((passage, i) => [
      t("number.passage", { n: i + 1 }),
      t("number.passage.of", { tokens: count(passage.tokens, "tokens"), p: pValue(passage.p_value) }),
    ]),
    [t("number.version"), service && `dewmark ${service.version}`],
  ].filter(([, value]) => value !== null);
}

/** The key that was found; if none of several was, only their number. */
function keyOf({ verdict, keys, tenant, asked }) {
  if (asked || !(keys > 1)) return tenant;
  return verdict === "marked" ? t("number.key.of", { key: tenant, n: number(keys) }) : t("number.key.tried", { n: number(keys) });
}

/** An entry as plain text, without the checked text. */
export function summary(entry, service) {
  const { result, text } = entry;
  const head = [headline(result, Array.from(text)), certainty(result, service)[0], result.power && t("power", { n: result.power.found_in_100 })];
  const warned = warnings(entry).map((pair) => pair.filter(Boolean).join(" "));
  const rows = details(result, service).map((pair) => pair.join(": "));
  return [[...head.filter(Boolean), ...warned].join("\n"), "", about(entry), ...rows].join("\n");
}
