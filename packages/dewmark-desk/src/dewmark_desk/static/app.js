// The page's entry point: tabs, access and settings. The tabs' contents are in check.js and audit.js.

import { access, job, jobs, whoami } from "/static/api.js";
import * as audit from "/static/audit.js";
import * as check from "/static/check.js";
import { $, copy, make, say } from "/static/dom.js";
import { listenLanguage, onLanguage, t } from "/static/i18n.js";
import * as plot from "/static/plot.js";
import { LEVELS, fromAddress, link, showLevels, toAddress } from "/static/settings.js";
import * as tokens from "/static/tokens.js";
import { level, listing, number } from "/static/words.js";

const TABS = ["check", "audit"];
let tab = "check";
let standard = "0.01"; // the service's default level
let service = null; // the answer of whoami
const NAMED = 5; // the most keys that are listed by name

function select(name, { focus = false } = {}) {
  tab = name;
  for (const each of TABS) {
    const mine = each === name;
    $(`tab-${each}`).setAttribute("aria-selected", mine);
    $(`tab-${each}`).tabIndex = mine ? 0 : -1;
    $(`panel-${each}`).hidden = !mine;
  }
  tokens.hideTip();
  if (focus) $(`tab-${name}`).focus();
}

function listenTabs() {
  for (const name of TABS) {
    $(`tab-${name}`).addEventListener("click", () => choose(name));
    $(`tab-${name}`).addEventListener("keydown", (event) => {
      const to = { ArrowRight: 1, ArrowLeft: -1, Home: -TABS.indexOf(name), End: TABS.length - 1 - TABS.indexOf(name) }[
        event.key
      ];
      if (to === undefined) return;
      event.preventDefault();
      choose(TABS[(TABS.indexOf(name) + to + TABS.length) % TABS.length], { focus: true });
    });
  }
}

function choose(name, options) {
  select(name, options);
  toAddress(tab);
}

function applyAddress() {
  const wanted = fromAddress();
  select(wanted.tab);
  $("level").value = wanted.level ?? standard;
  if ([...$("tenant").options].some((option) => option.value === wanted.tenant)) $("tenant").value = wanted.tenant;
  describeSettings();
}

function describeSettings() {
  const [key, said] = [$("tenant").value, level(Number($("level").value))];
  $("settings-now").textContent = key ? t("settings.now.key", { level: said, key }) : t("settings.now", { level: said });
}

function listenSettings() {
  for (const id of ["level", "tenant"]) {
    $(id).addEventListener("change", () => {
      toAddress(tab);
      describeSettings();
    });
  }
  $("permalink").addEventListener("click", () => copy($("permalink"), link(tab)));
  addEventListener("hashchange", applyAddress);
}

/** Ask the service for our permissions, and show what they allow. */
async function connect() {
  const known = await whoami();
  const options = known.tenants.map(({ id }) => make("option", { value: id }, id));
  $("tenant").replaceChildren(make("option", { value: "", data: { t: "key.all" } }, t("key.all")), ...options);
  $("tenant").closest("label").hidden = options.length < 2;
  $("audit-tenant").replaceChildren(...options.map((option) => option.cloneNode(true)));
  $("audit-choice").hidden = options.length < 2;
  // other scopes get verdicts only: no choice of level, no token scores, passages or audits
  known.fine = known.scopes.includes("detect") || known.scopes.includes("admin");
  $("level").disabled = known.authenticated && !known.fine;
  if (LEVELS.includes(String(known.defaults.fpr))) standard = String(known.defaults.fpr);
  $("access").hidden = known.open;
  $("about").textContent = `dewmark ${known.version}`;
  $("rewrites").hidden = !known.rewrites;
  $("public").hidden = !known.public_page;
  if (known.public_page) $("public").querySelector("a").href = known.public_page;
  service = known;
  describeKeys();
  check.serve(known);
  audit.serve(known);
  applyAddress();
  if (known.fine) known.audits = await latestAudits().catch(() => ({})); // nobody asked: no error is shown
  return known;
}

/** The latest finished audit of each key, by tenant. */
async function latestAudits() {
  const latest = {};
  for (const each of await jobs()) {
    const older = latest[each.tenant];
    if (each.kind === "audit" && each.state === "done" && !(older?.finished > each.finished)) latest[each.tenant] = each;
  }
  const full = await Promise.all(Object.values(latest).map(({ id }) => job(id)));
  return Object.fromEntries(full.map((each) => [each.tenant, each]));
}

/** Whose mark the page looks for. */
function describeKeys() {
  const ids = (service?.tenants ?? []).map(({ id, key_fingerprint: print }) => (print ? `${id} (${print.slice(0, 8)})` : id));
  const named = ids.slice(0, NAMED);
  if (ids.length > NAMED) named.push(t("intro.more", { n: number(ids.length - NAMED) }));
  let said = t("intro.key_unknown");
  if (ids.length === 1) said = t("intro.key_one", { key: ids[0] });
  if (ids.length > 1) {
    const keys = ids.length > NAMED ? named.join(", ") : listing(named);
    said = t("intro.key_other", { n: number(ids.length), keys });
  }
  $("whose").textContent = $("whose-again").textContent = said;
}

function askAccess(message) {
  say($("access-error"), message);
  $("access-forget").hidden = !access.get();
  $("access-token").value = "";
  if (!$("access-dialog").open) $("access-dialog").showModal();
}

function listenAccess() {
  $("access").addEventListener("click", () => askAccess(null));
  $("access-cancel").addEventListener("click", () => $("access-dialog").close());
  $("access-forget").addEventListener("click", async () => {
    access.forget();
    $("access-dialog").close();
    await connect();
  });
  $("access-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    access.set($("access-token").value.trim());
    const known = await connect();
    if (known.authenticated) return $("access-dialog").close();
    access.forget();
    askAccess(t("access.invalid"));
  });
}

$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment holds the settings
  $("main").focus();
});
listenLanguage($("language"));
onLanguage(() => {
  showLevels();
  describeSettings();
  describeKeys();
});
showLevels();
listenTabs();
listenSettings();
listenAccess();
tokens.listen();
plot.listen();
const unauthorized = () => askAccess(access.get() ? t("access.expired") : null);
check.listen(unauthorized);
audit.listen(unauthorized);
applyAddress();
try {
  const known = await connect();
  if (!known.open && !known.authenticated) askAccess(null);
} catch (error) {
  say($("check-error"), error.message);
}
