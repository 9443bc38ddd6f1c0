// The tab "Audit a key": collect unmarked texts, start a job, follow it and show its report.

import { deleteJob, job, jobs, startAudit } from "/static/api.js";
import { $, announce, define, make, say } from "/static/dom.js";
import { acceptDrops, readTexts } from "/static/files.js";
import { onLanguage, t, tn } from "/static/i18n.js";
import { count, language, level, number, percent } from "/static/words.js";

const POLL = 1000; // milliseconds
const PATIENCE = 30; // consecutive polls that may fail
const LISTED = 50; // the most unread files to list

let texts = [];
let unread = [];
let current = null; // the id of the running job
let needAccess = () => {};
let most = Infinity;
let shown = null; // the report on the page

export function listen(unauthorized) {
  needAccess = unauthorized;
  for (const id of ["audit-files", "audit-folder"]) {
    $(id).addEventListener("change", () => {
      take([...$(id).files]);
      $(id).value = "";
    });
  }
  acceptDrops($("panel-audit"), take);
  $("audit-clear").addEventListener("click", () => {
    texts = [];
    unread = [];
    gathered();
  });
  $("audit-cancel").addEventListener("click", cancel);
  onLanguage(() => {
    gathered();
    if (shown) describe(shown);
  });
  gathered();
  $("audit-form").addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
}

export function serve(known) {
  most = known.limits.audit_texts;
  if (known.fine) resume().catch(() => {}); // the user did not ask for it, so errors are not shown
}

async function take(files) {
  say($("audit-error"), null);
  for (const [i, file] of files.entries()) {
    progress(t("audit.reading", { i: i + 1, n: files.length }), i / files.length);
    try {
      texts.push(...(await readTexts(file)));
    } catch (error) {
      if (error.status === 401) {
        needAccess();
        break;
      }
      const { name } = file;
      unread.push(error.message.startsWith(name) ? error.message : t("error.file", { name, message: error.message }));
    }
  }
  progress(null);
  gathered();
}

function gathered() {
  const letters = texts.reduce((sum, each) => sum + each.text.length, 0);
  $("gathered").textContent = texts.length
    ? t("audit.gathered", { texts: count(texts.length, "texts"), characters: count(letters, "characters") })
    : t("audit.none");
  if (texts.length) announce($("gathered").textContent);
  $("unread").hidden = !unread.length;
  $("unread").querySelector("summary").textContent = tn("audit.unread", unread.length);
  $("unread")
    .querySelector("ul")
    .replaceChildren(...unread.slice(0, LISTED).map((each) => make("li", {}, each)));
}

function start() {
  say($("audit-error"), null);
  if ($("audit-start").getAttribute("aria-disabled") === "true") return;
  if (!texts.length) return say($("audit-error"), t("audit.empty"));
  if (texts.length > most) {
    const said = t("audit.many", { texts: count(texts.length, "texts"), most: number(most) });
    return say($("audit-error"), said);
  }
  $("report").hidden = true;
  shown = null;
  progress(t("audit.sending"));
  run(startAudit(texts, $("audit-tenant").value));
}

/** Follow an audit that is still running, for example after a reload. */
async function resume() {
  const left = (await jobs()).find((each) => each.kind === "audit" && active(each));
  if (left && !current) run(left);
}

const active = ({ state }) => state === "queued" || state === "running";

/** Follow a job (or the promise of one) to its report. */
async function run(begun) {
  let mine = null;
  try {
    const state = await begun;
    mine = current = state.id;
    $("audit-cancel").hidden = false;
    await follow(state);
  } catch (error) {
    if (error.status === 401) needAccess();
    else say($("audit-error"), error.message);
  }
  if (current !== mine) return; // stopped, and perhaps another job started
  current = null;
  $("audit-cancel").hidden = true;
  progress(null);
}

/** Poll until the job ends; a job stopped on this page ends silently. */
async function follow(state) {
  const mine = state.id;
  let misses = 0;
  while (active(state)) {
    const done = t("audit.checked", { done: number(state.done), texts: count(state.total, "texts") });
    progress(state.state === "queued" ? t("audit.queued") : done, state.done / state.total);
    await new Promise((wake) => setTimeout(wake, POLL));
    if (current !== mine) return;
    try {
      state = await job(mine);
      misses = 0;
    } catch (error) {
      const refused = error.status >= 400 && error.status < 500;
      if (refused || ++misses > PATIENCE) throw error; // the job survives a restart of the service
    }
  }
  if (current !== mine) return;
  if (state.state === "failed") throw new Error(state.error);
  report(state.result);
}

async function cancel() {
  const id = current;
  current = null;
  progress(null);
  $("audit-cancel").hidden = true;
  announce(t("audit.stopped"));
  try {
    await deleteJob(id);
  } catch (error) {
    say($("audit-error"), error.message);
  }
}

/** Show progress; null hides it. */
function progress(said, share) {
  $("audit-progress").hidden = !said;
  $("audit-start").setAttribute("aria-disabled", Boolean(said));
  $("audit-bar-said").textContent = said ?? "";
  if (share === undefined) $("audit-bar").removeAttribute("value");
  else $("audit-bar").value = share;
}

function report(found) {
  shown = found;
  $("report").hidden = false;
  describe(found);
  URL.revokeObjectURL($("download").href);
  $("download").href = URL.createObjectURL(new Blob([JSON.stringify(found, null, 1)], { type: "application/json" }));
  announce(`${$("outcome").textContent}. ${$("outcome-said").textContent}`);
  $("outcome").focus();
}

function describe(found) {
  const outcome = found.outcome.replace(" ", "_");
  $("outcome-card").dataset.outcome = outcome;
  $("outcome").textContent = t(`audit.${outcome}`);
  $("outcome-said").textContent = t(`audit.${outcome}.say`);
  $("outcome-sentence").textContent = t("audit.service", { sentence: [found.sentence, ...(found.remarks ?? [])].join(" ") });
  define($("audit-numbers"), [
    [t("audit.checked_texts"), number(found.texts)],
    [t("audit.too_short"), number(found.too_short)],
    [t("audit.left_out"), number(found.left_out)],
    [t("number.test"), t("number.test.of", { scheme: found.scheme, test: found.test })],
    [t("number.fingerprint"), found.key_fingerprint],
  ]);
  table(found.cells);
}

function table(cells) {
  const levels = [...new Set(cells.map((cell) => cell.level))];
  const groups = Map.groupBy(cells, (cell) => `${cell.kind} ${cell.group}`);
  const header = (text, scope) => {
    const cell = make("th", {}, text);
    cell.scope = scope;
    return cell;
  };
  const head = make(
    "tr",
    {},
    header(t("audit.col.texts"), "col"),
    header(t("audit.col.number"), "col"),
    ...levels.map((fpr) => header(t("audit.col.at", { level: level(fpr) }), "col")),
  );
  const rows = [...groups.values()].map((group) =>
    make(
      "tr",
      {},
      header(nameOf(group[0]), "row"),
      make("td", {}, number(group[0].texts), independent(group[0])),
      ...group.map(rateCell),
    ),
  );
  $("rates").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function nameOf({ kind, group, name }) {
  if (kind === "all") return t("audit.all");
  return kind === "language" ? language(group === "und" ? null : group) : name;
}

/** Under one key, texts of one kind may err together: how many they are worth. */
function independent({ texts, independent: worth }) {
  if (!worth || Math.round(worth) >= texts) return "";
  return make("small", {}, t("audit.independent", { n: number(Math.round(worth)) }));
}

function rateCell(cell) {
  const share = make(
    "span",
    { className: cell.significant ? "bad" : "" },
    percent(cell.rate),
    cell.significant ? ` ${t("audit.too_high")}` : "",
  );
  return make("td", {}, share, make("small", {}, `${percent(cell.low)} – ${percent(cell.high)}`));
}
