// The text with framed passages. On request its tokens are coloured, with an inspector for single ones: by
// pointer, by touch, or with the arrow keys on a range input, which is one tab stop and describes the token in
// its value text.

import { $, make } from "/static/dom.js";
import { onLanguage, t } from "/static/i18n.js";
import { colour, placeOf, spans } from "/static/spans.js";
import { tokenScore } from "/static/words.js";

let shown = []; // the spans with tokens: [{span, element, place, scored: scored tokens so far}]
let given = null; // the arguments of showTokens, to show the text again
let colours = false; // whether scores are shown
let onInspect = () => {};

/** Show a text; `inspected(scored tokens so far)` follows the inspector. Without tokens there are no scores. */
export function showTokens(text, tokens, passages, inspected) {
  given = [text, tokens, passages, inspected];
  const kept = shown.length ? Number($("token").value) : 1;
  shown = [];
  onInspect = inspected;
  const fragment = document.createDocumentFragment();
  let frame = null;
  let framed = -1;
  for (const span of spans(Array.from(text), tokens ?? [])) {
    const place = placeOf(span, passages);
    // the space before a word belongs to its token but gets no colour; frames skip blank lines
    const [, blank, word, after] = span.text.match(/^(\s*)(.*?)(\s*)$/s);
    if (place !== framed || blank.includes("\n")) frame = null;
    if (word) (frame ?? fragment).append(blank);
    if (word && place >= 0 && !frame) {
      frame = frameOf(place, place !== framed);
      fragment.append(frame);
    }
    if (word) framed = place;
    const shownText = word || blank;
    (frame ?? fragment).append(span.tokens.length ? element(span, place, shownText) : shownText);
    if (after.includes("\n")) frame = null;
    if (word) (frame ?? fragment).append(after);
  }
  $("tokens").replaceChildren(fragment);
  $("tokens").classList.toggle("scores", colours);
  $("inspector").hidden = !colours || !shown.length;
  $("legend").hidden = !colours || !shown.length;
  $("scores").hidden = !shown.length;
  $("scores").textContent = t(colours ? "scores.hide" : "scores.show");
  $("scores").setAttribute("aria-pressed", colours);
  $("token").max = Math.max(shown.length, 1);
  $("token").value = Math.min(kept, shown.length);
  $("token-said").textContent = t("token.point");
  describe(Number($("token").value) - 1);
}

/** Forget the text. */
export function hideTokens() {
  given = null;
  shown = [];
  $("tokens").replaceChildren();
}

function frameOf(place, first) {
  const said = t(first ? "passage.label" : "passage.continued", { n: place + 1 });
  const frame = make("span", { className: "passage", aria: { label: said } });
  if (first) frame.dataset.number = place + 1;
  frame.setAttribute("role", "group");
  frame.tabIndex = -1;
  return frame;
}

function element(span, place, text) {
  const made = make("span", { className: colour(span), data: { index: shown.length } }, text);
  const scored = (shown.at(-1)?.scored ?? 0) + span.tokens.filter((token) => token.scored).length;
  shown.push({ span, place, element: made, scored });
  return made;
}

/** A description of a piece, one line per token. */
function lines({ span, place }) {
  const said = span.tokens.map((token) => {
    const name = `“${printable(token.text)}”`;
    return `${name} ${token.scored ? tokenScore(token.score) : t("legend.unscored")}`;
  });
  if (place >= 0) said.push(t("passage.inside", { n: place + 1 }));
  return said;
}

function printable(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").trim() || "␣";
}

function describe(index) {
  if (!shown[index]) return;
  const said = lines(shown[index]).join("; ");
  const whole = t("token.at", { i: index + 1, n: shown.length, said });
  $("token").setAttribute("aria-valuetext", whole);
  return whole;
}

/** Select a token; `scroll` brings it into view. */
export function inspect(index, { scroll = true } = {}) {
  if (!shown[index]) return;
  $("tokens").querySelector(".current")?.classList.remove("current");
  const { element: mine } = shown[index];
  mine.classList.add("current");
  $("token").value = index + 1;
  $("token-said").textContent = describe(index);
  if (scroll) mine.scrollIntoView({ block: "nearest" });
  showTip(index);
  onInspect(shown[index].scored);
}

/** Bring the beginning of a passage into view. */
export function inspectPassage(place) {
  const frame = $("tokens").querySelector(`.passage[data-number="${place + 1}"]`);
  frame?.scrollIntoView({ block: "center" });
  frame?.focus({ preventScroll: true });
}

function showTip(index) {
  const tip = $("tip");
  tip.textContent = lines(shown[index]).join("\n");
  tip.hidden = false;
  const [at] = shown[index].element.getClientRects();
  if (!at) return;
  const left = Math.min(
    at.left + (at.width - tip.offsetWidth) / 2,
    document.documentElement.clientWidth - tip.offsetWidth - 8,
  );
  const above = at.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(left, 8) + window.scrollX}px`;
  tip.style.top = `${(above > 0 ? above : at.bottom + 8) + window.scrollY}px`;
}

export function hideTip() {
  $("tip").hidden = true;
}

/** Listen to pointer and keyboard. */
export function listen() {
  $("scores").addEventListener("click", () => {
    colours = !colours;
    hideTip();
    showTokens(...given);
  });
  onLanguage(() => given && showTokens(...given));
  const indexOf = (event) => event.target.closest?.("[data-index]")?.dataset.index;
  $("tokens").addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || !colours) return;
    const index = indexOf(event);
    if (index === undefined) hideTip();
    else showTip(Number(index));
  });
  $("tokens").addEventListener("pointerleave", hideTip);
  $("tokens").addEventListener("click", (event) => {
    const index = indexOf(event);
    if (colours && index !== undefined && getSelection().isCollapsed) inspect(Number(index), { scroll: false });
  });
  $("token").addEventListener("input", () => inspect(Number($("token").value) - 1));
  $("token").addEventListener("focus", () => inspect(Number($("token").value) - 1));
  $("token").addEventListener("blur", hideTip);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
}
