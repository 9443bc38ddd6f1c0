// The text with coloured tokens and framed passages, and an inspector for single tokens: by pointer, by touch,
// or with the arrow keys on a range input, which is one tab stop and describes the token in its value text.

import { $, make } from "/static/dom.js";
import { colour, placeOf, spans } from "/static/spans.js";
import { tokenScore } from "/static/words.js";

let shown = []; // the spans with tokens: [{span, element, place, scored: scored tokens so far}]
let onInspect = () => {};

/** Show a text; call it again once passages are known. `inspected(scored tokens so far)` follows the inspector. */
export function showTokens(text, tokens, passages, inspected) {
  const kept = shown.length ? Number($("token").value) : 1;
  shown = [];
  onInspect = inspected;
  const fragment = document.createDocumentFragment();
  let frame = null;
  let framed = -1;
  for (const span of spans(Array.from(text), tokens ?? [])) {
    const place = placeOf(span, passages);
    // the space before a word belongs to its token but gets no colour; frames skip blank lines
    const [, blank, word] = span.text.match(/^(\s*)(.*)$/s);
    if (place !== framed || blank.includes("\n")) frame = null;
    if (word) (frame ?? fragment).append(blank);
    if (word && place >= 0 && !frame) {
      frame = frameOf(place, place !== framed);
      fragment.append(frame);
    }
    if (word) framed = place;
    const shownText = word || blank;
    (frame ?? fragment).append(span.tokens.length ? element(span, place, shownText) : shownText);
  }
  $("tokens").replaceChildren(fragment);
  $("inspector").hidden = !shown.length;
  $("legend").hidden = !shown.length;
  $("token").max = Math.max(shown.length, 1);
  $("token").value = Math.min(kept, shown.length);
  $("token-said").textContent = "Point at a token, or move the slider.";
  describe(Number($("token").value) - 1);
}

function frameOf(place, first) {
  const said = `marked passage ${place + 1}${first ? "" : ", continued"}`;
  const frame = make("span", { className: "passage", aria: { label: said } });
  if (first) frame.dataset.number = place + 1;
  frame.setAttribute("role", "group");
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
    return token.scored ? `${name} ${tokenScore(token.score)}` : `${name} not scored`;
  });
  if (place >= 0) said.push(`in marked passage ${place + 1}`);
  return said;
}

function printable(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").trim() || "␣";
}

function describe(index) {
  if (!shown[index]) return;
  const said = lines(shown[index]).join("; ");
  $("token").setAttribute("aria-valuetext", `${index + 1} of ${shown.length}: ${said}`);
  return said;
}

/** Select a token; `scroll` brings it into view. */
export function inspect(index, { scroll = true } = {}) {
  if (!shown[index]) return;
  $("tokens").querySelector(".current")?.classList.remove("current");
  const { element: mine } = shown[index];
  mine.classList.add("current");
  $("token").value = index + 1;
  $("token-said").textContent = `${index + 1} of ${shown.length}: ${describe(index)}`;
  if (scroll) mine.scrollIntoView({ block: "nearest" });
  showTip(index);
  onInspect(shown[index].scored);
}

/** Select the first token of a passage. */
export function inspectPassage(place) {
  const index = shown.findIndex((each) => each.place === place);
  $("token").focus({ preventScroll: true });
  inspect(index);
  shown[index]?.element.scrollIntoView({ block: "center" });
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
  const indexOf = (event) => event.target.closest?.("[data-index]")?.dataset.index;
  $("tokens").addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const index = indexOf(event);
    if (index === undefined) hideTip();
    else showTip(Number(index));
  });
  $("tokens").addEventListener("pointerleave", hideTip);
  $("tokens").addEventListener("click", (event) => {
    const index = indexOf(event);
    if (index !== undefined && getSelection().isCollapsed) inspect(Number(index), { scroll: false });
  });
  $("token").addEventListener("input", () => inspect(Number($("token").value) - 1));
  $("token").addEventListener("focus", () => inspect(Number($("token").value) - 1));
  $("token").addEventListener("blur", hideTip);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
}
