// What was found in a text, in one sentence, and where. Pure functions: no page, no service.

import { t, tn } from "/static/i18n.js";
import { language, listing, number } from "/static/words.js";

const SHARES = [
  [0.06, "small"],
  [0.15, "tenth"],
  [0.225, "fifth"],
  [0.29, "quarter"],
  [0.365, "third"],
  [0.45, "two_fifths"],
  [0.58, "half"],
  [0.71, "two_thirds"],
  [0.85, "three_quarters"],
  [Infinity, "most"],
];

/** What kind of result it is: marked, part, not_marked, too_short, no_room or language. */
export function kindOf(result) {
  if (result.verdict === "marked") return result.coverage?.extent === "part" ? "part" : "marked";
  if (result.verdict === "unsupported_language") return "language";
  if (result.verdict === "too_short") return result.leaves_no_room ? "no_room" : "too_short";
  return "not_marked";
}

/** Whether the verdict answers the question; other results have no numbers worth showing. */
export const conclusive = ({ verdict }) => verdict === "marked" || verdict === "not_marked";

/** The passages of a result, in order. */
export const passagesOf = (result) => result.coverage?.passages ?? [];

/** The verdict in one sentence: "About a third of this text, paragraphs 2 and 3, carries the mark of acme." */
export function headline(result, characters) {
  const kind = kindOf(result);
  if (kind === "too_short") return t("found.short");
  if (kind === "no_room") return t("found.no_room");
  if (kind === "language") {
    const { code } = result.language ?? {};
    return code ? t("found.language", { language: language(code) }) : t("found.language.unknown");
  }
  if (kind === "not_marked") {
    if (result.keys > 1 && !result.asked) return t("found.none.keys", { n: number(result.keys) });
    const key = result.asked ?? result.tenant;
    return key ? t("found.none", { key }) : t("found.none.service");
  }
  const mark = result.tenant ? t("whose.key", { key: result.tenant }) : t("whose.service");
  const passages = passagesOf(result);
  if (!passages.length) return t("found.whole", { mark });
  if (result.coverage.extent === "whole") return t("found.throughout", { mark });
  const where = places(passages, characters);
  if (kind === "part") {
    const share = t(`share.${SHARES.find(([limit]) => result.coverage.share < limit)[1]}`);
    return where ? t("found.part.where", { share, where, mark }) : t("found.part", { share, mark });
  }
  return where ? t("found.clearest", { where, mark }) : t("found.whole", { mark });
}

/** The paragraphs that passages cover, in words; "" if the text has only one. */
export function places(passages, characters) {
  const all = paragraphs(characters);
  if (all.length < 2) return "";
  const inside = (start, end) => passages.reduce((sum, each) => sum + overlap(each, start, end), 0);
  const covered = all.map(([start, end]) => inside(start, end) / (end - start));
  const numbers = covered.flatMap((share, i) => (share >= 0.5 ? [i + 1] : []));
  if (numbers.length) return tn("paragraph", numbers.length, { which: listing(runs(numbers)) });
  const most = covered.indexOf(Math.max(...covered));
  return t("paragraph.part", { which: most + 1 });
}

const EDGE = 4; // the most words that are cut off at a passage's ends
const ENDS = /[.!?…。！？]["”’»)\]]*\s+|\n\s*/gu; // of sentences and lines

/** Passages without the few words of a neighbouring sentence at their ends, which only look untidy. */
export function trimmed(passages, characters) {
  return passages.map((passage) => {
    const text = characters.slice(passage.start, passage.end).join("");
    const ends = [...text.matchAll(ENDS)].map((each) => each.index + each[0].length);
    const few = (part) => part.trim().split(/\s+/u).length <= EDGE;
    const first = ends.find((at) => at < text.length / 2 && few(text.slice(0, at))) ?? 0;
    const last = ends.findLast((at) => at > text.length / 2 && few(text.slice(at))) ?? text.length;
    const size = (part) => Array.from(part).length;
    const kept = text.slice(first, last).trimEnd();
    return { ...passage, start: passage.start + size(text.slice(0, first)), end: passage.start + size(text.slice(0, first) + kept) };
  });
}

/** Whether a passage begins and ends in the middle of a sentence. */
export function isCut(characters, { start, end }) {
  const before = characters.slice(0, start).join("").trimEnd();
  const here = characters.slice(Math.max(end - 2, 0), end).join("");
  const line = (text) => /\n\s*$/u.test(text);
  const starts = !before || line(characters.slice(0, start).join("")) || /[.!?…。！？:]["”’»)\]]*$/u.test(before);
  const after = characters.slice(end).join("");
  return [!starts, Boolean(after.trim()) && !/[.!?…。！？]["”’»)\]]?$/u.test(here) && !/^\s*\n/u.test(after)];
}

const overlap = (passage, start, end) => Math.max(0, Math.min(passage.end, end) - Math.max(passage.start, start));

/** [start, end) of each paragraph, in characters: lines between blank ones, or else single lines. */
export function paragraphs(characters) {
  const empty = ([start, end]) => characters.slice(start, end).every((each) => /\s/.test(each));
  const found = [[]]; // groups of lines
  let start = 0;
  for (let i = 0; i <= characters.length; i++) {
    if (i < characters.length && characters[i] !== "\n") continue;
    if (empty([start, i])) found.push([]);
    else found.at(-1).push([start, i]);
    start = i + 1;
  }
  const groups = found.filter((group) => group.length);
  if (groups.length === 1) return groups[0];
  return groups.map((group) => [group[0][0], group.at(-1)[1]]);
}

/** 2, 3, 4, 7 as "2 to 4", "7". */
function runs(numbers) {
  const found = [];
  for (const each of numbers) {
    const last = found.at(-1);
    if (last && each === last[1] + 1) last[1] = each;
    else found.push([each, each]);
  }
  return found.flatMap(([from, to]) => {
    if (from === to) return [String(from)];
    return to === from + 1 ? [String(from), String(to)] : [t("range", { from, to })];
  });
}
