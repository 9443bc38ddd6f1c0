// The page that marks an existing text: every proposed change is a button, and the p-value follows the choice.

import { detect, rewrite, whoami } from "/static/api.js";
import { $, copy, make, say } from "/static/dom.js";
import { listenLanguage, onLanguage, t } from "/static/i18n.js";
import { number } from "/static/words.js";

const PAUSE = 400; // milliseconds without a click after which the detector is asked
let letters = []; // of the text, by code points, as the service counts them
let changes = []; // in the order of the text, each with `accepted`
let tenant = null;
let measured = null; // {before, after}: p-values
let timer = 0;
let latest = 0;

const part = (from, to) => letters.slice(from, to).join("");

/** The pieces of the text: strings, and changes between them. */
function pieces() {
  let at = 0;
  const found = changes.flatMap((each) => {
    const before = part(at, each.start);
    at = each.end;
    return [before, each];
  });
  return [...found, part(at)];
}

const made = () => pieces().map((each) => each.new === undefined ? each : each.accepted ? each.new : each.old).join("");

function show() {
  $("before").replaceChildren(...pieces().map((each) => (each.new === undefined ? each : make("mark", {}, each.old))));
  $("after").replaceChildren(...pieces().map((each) => (each.new === undefined ? each : button(each))));
}

function button(change) {
  const made = make("button", { type: "button", title: `${change.old} → ${change.new}` });
  const fill = () => {
    made.textContent = change.accepted ? change.new : change.old;
    made.setAttribute("aria-pressed", change.accepted);
  };
  made.addEventListener("click", () => {
    change.accepted = !change.accepted;
    fill();
    clearTimeout(timer);
    timer = setTimeout(measure, PAUSE);
  });
  fill();
  return made;
}

async function p(text) {
  return (await detect(text, { tenant })).p_value;
}

async function measure() {
  const mine = ++latest;
  try {
    const after = await p(made());
    if (mine === latest) measured = { ...measured, after };
    describe();
  } catch (error) {
    say($("rewrite-error"), error.message);
  }
}

function describe() {
  if (!measured) return;
  const values = [measured.before, measured.after].map((each) => each.toPrecision(2));
  const accepted = changes.filter((each) => each.accepted).length;
  $("strength").textContent = t("rewrite.strength", {
    before: values[0],
    after: values[1],
    accepted: number(accepted),
    changes: number(changes.length),
  });
}

async function propose() {
  const text = $("text").value;
  say($("rewrite-error"), null);
  $("propose").disabled = true;
  $("propose").textContent = t("rewrite.working");
  try {
    const answer = await rewrite(text, $("tenant").value);
    letters = [...text];
    ({ tenant } = answer);
    changes = answer.changes.map((each) => ({ ...each, accepted: true })).sort((a, b) => a.start - b.start);
    measured = { before: await p(text), after: await p(made()) };
    $("review").hidden = false;
    show();
    describe();
    $("review-title").focus();
  } catch (error) {
    say($("rewrite-error"), error.message);
  }
  $("propose").disabled = false;
  $("propose").textContent = t("rewrite.propose");
}

listenLanguage($("language"));
onLanguage(describe);
$("rewrite-form").addEventListener("submit", (event) => {
  event.preventDefault();
  propose();
});
$("copy").addEventListener("click", () => copy($("copy"), made()));
const known = await whoami();
$("tenant").replaceChildren(...known.tenants.map(({ id }) => make("option", { value: id }, id)));
$("tenant").closest("label").hidden = known.tenants.length < 2;
