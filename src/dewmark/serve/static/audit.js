// The tab "Audit a key": collect unmarked texts, start a job, follow it and show its report.

import { deleteJob, job, jobs, startAudit } from "/static/api.js";
import { $, announce, complain, define, make } from "/static/dom.js";
import { acceptDrops, readTexts } from "/static/files.js";
import { count, language, level, percent } from "/static/words.js";

const POLL = 1000; // milliseconds
const PATIENCE = 30; // consecutive polls that may fail
const LISTED = 50; // the most unread files to list

let texts = [];
let unread = [];
let current = null; // the id of the running job
let needAccess = () => {};
let most = Infinity;

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
  complain($("audit-error"), null);
  for (const [i, file] of files.entries()) {
    progress(`Reading file ${i + 1} of ${files.length}`, i / files.length);
    try {
      texts.push(...(await readTexts(file)));
    } catch (error) {
      if (error.status === 401) {
        needAccess();
        break;
      }
      unread.push(error.message.startsWith(file.name) ? error.message : `${file.name}: ${error.message}`);
    }
  }
  progress(null);
  gathered();
}

function gathered() {
  const letters = texts.reduce((sum, each) => sum + each.text.length, 0);
  $("gathered").textContent = texts.length
    ? `${count(texts.length, "text")} with ${count(letters, "character")}.`
    : "No texts yet. Measuring a rate of 1% takes several hundred texts.";
  announce($("gathered").textContent);
  $("unread").hidden = !unread.length;
  $("unread").querySelector("summary").textContent = `${count(unread.length, "file")} could not be read`;
  $("unread")
    .querySelector("ul")
    .replaceChildren(...unread.slice(0, LISTED).map((each) => make("li", {}, each)));
}

function start() {
  complain($("audit-error"), null);
  if ($("audit-start").getAttribute("aria-disabled") === "true") return;
  if (!texts.length) return complain($("audit-error"), "There are no texts yet. Drop a folder or choose files.");
  if (texts.length > most) {
    const limit = most.toLocaleString("en");
    return complain($("audit-error"), `${count(texts.length, "text")} are too many: an audit takes at most ${limit}.`);
  }
  $("report").hidden = true;
  progress("Sending the texts");
  run(startAudit(texts, $("audit-tenant").value));
}

/** Follow an audit that is still running, for example after a reload. */
async function resume() {
  const left = (await jobs()).find((each) => active(each));
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
    else complain($("audit-error"), error.message);
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
    const done = `Checked ${state.done} of ${count(state.total, "text")}`;
    progress(state.state === "queued" ? "Waiting in the queue" : done, state.done / state.total);
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
  announce("The audit was stopped.");
  try {
    await deleteJob(id);
  } catch (error) {
    complain($("audit-error"), error.message);
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

const OUTCOMES = { passes: "The key passes", fails: "The key fails", "cannot tell": "Cannot tell" };

function report(found) {
  $("report").hidden = false;
  $("outcome-card").className = `card verdict ${found.outcome.replace(" ", "-")}`;
  $("outcome").textContent = OUTCOMES[found.outcome];
  const rest = found.sentence.replace(/^(The key passes: |Cannot tell: )/, "");
  $("outcome-said").textContent = rest.charAt(0).toUpperCase() + rest.slice(1);
  define($("audit-numbers"), [
    ["texts checked", found.texts.toLocaleString("en")],
    ["too short for a verdict", found.too_short.toLocaleString("en")],
    ["blank or repeated, left out", found.left_out.toLocaleString("en")],
    ["test", `${found.scheme}, ${found.test} test`],
    ["key fingerprint", found.key_fingerprint],
  ]);
  table(found.cells);
  URL.revokeObjectURL($("download").href);
  $("download").href = URL.createObjectURL(new Blob([JSON.stringify(found, null, 1)], { type: "application/json" }));
  announce(`${OUTCOMES[found.outcome]}. ${$("outcome-said").textContent}`);
  $("outcome").focus();
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
    header("texts", "col"),
    header("number", "col"),
    ...levels.map((fpr) => header(`at ${level(fpr)}`, "col")),
  );
  const rows = [...groups.values()].map((group) =>
    make(
      "tr",
      {},
      header(nameOf(group[0]), "row"),
      make("td", {}, group[0].texts.toLocaleString("en")),
      ...group.map(rateCell),
    ),
  );
  $("rates").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function nameOf({ kind, group, name }) {
  return kind === "language" ? language(group === "und" ? null : group) : name;
}

function rateCell(cell) {
  const share = make(
    "span",
    { className: cell.significant ? "bad" : "" },
    percent(cell.rate),
    cell.significant ? " too high" : "",
  );
  return make("td", {}, share, make("small", {}, `${percent(cell.low)} – ${percent(cell.high)}`));
}
