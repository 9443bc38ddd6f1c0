// The texts of dropped or chosen files. Plain text is decoded here; documents are sent to the service.

import { extract } from "/static/api.js";
import { t } from "/static/i18n.js";

const PLAIN = [".txt", ".md"];
const DOCUMENTS = [".pdf", ".docx", ".odt"];
const MARKS = [
  [[0xef, 0xbb, 0xbf], "utf-8"],
  [[0xff, 0xfe], "utf-16le"],
  [[0xfe, 0xff], "utf-16be"],
];

const suffix = (name) => name.slice(name.lastIndexOf(".")).toLowerCase();

/** The text of one file and notes on how it was read; throws an error of one sentence if there is none. */
export async function readText(file, signal) {
  const kind = suffix(file.name);
  if (DOCUMENTS.includes(kind)) return { text: await extract(file, signal), notes: [] };
  if (PLAIN.includes(kind)) return plain(file);
  throw new Error(t("error.kind", { name: file.name }));
}

/** The texts of one file for an audit, [{id, text, language, prompt}]; .jsonl has one per line. */
export async function readTexts(file, signal) {
  if (suffix(file.name) !== ".jsonl") {
    return [{ id: file.name, text: (await readText(file, signal)).text }];
  }
  const lines = (await plain(file)).text.split("\n");
  return lines.flatMap((line, index) => (line.trim() ? [row(file.name, index + 1, line)] : []));
}

function row(name, number, line) {
  let value;
  try {
    value = JSON.parse(line);
  } catch {
    throw new Error(t("error.json", { name, line: number }));
  }
  if (typeof value?.text !== "string") throw new Error(t("error.field", { name, line: number }));
  const optional = (field) => (typeof value[field] === "string" ? value[field] : null);
  return { id: `${name}:${number}`, text: value.text, language: optional("language"), prompt: optional("prompt") };
}

async function plain(file) {
  const { name } = file;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = MARKS.find(([mark]) => mark.every((byte, i) => bytes[i] === byte))?.[1] ?? "utf-8";
  const notes = [];
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    if (encoding !== "utf-8" || !isWestern(bytes)) throw new Error(t("error.encoding", { name }));
    text = new TextDecoder("windows-1252").decode(bytes);
    notes.push("latin1");
  }
  if (!text.trim()) throw new Error(t("error.blank", { name }));
  if (text.includes("\0")) throw new Error(t("error.binary", { name }));
  return { text: text.replaceAll("\r\n", "\n"), notes };
}

/** Whether text that is not UTF-8 may be Latin-1, by the rule of the service (serve/documents.py). */
export function isWestern(bytes) {
  let high = 0;
  let inSequences = 0;
  let letters = 0;
  for (let i = 0; i < bytes.length; i++) {
    if (![0x20, 0x09, 0x0d, 0x0a].includes(bytes[i])) letters++;
    if (bytes[i] < 0x80) continue;
    high++;
    if (bytes[i] < 0xc2 || bytes[i] > 0xf4) continue;
    let length = 1;
    while (length < 4 && bytes[i + length] >= 0x80 && bytes[i + length] <= 0xbf) length++;
    if (length === 1) continue;
    inSequences += length;
    high += length - 1;
    letters += length - 1;
    i += length - 1;
  }
  return high <= letters / 4 && inSequences <= high / 2;
}

/** All files of a drop, including those inside dropped folders. */
export async function dropped(transfer) {
  const files = [...transfer.files]; // both lists become empty after this event
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return files;
  return (await Promise.all(entries.map(within))).flat();
}

async function within(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break; // a reader returns up to a hundred at a time
    found.push(...(await Promise.all(some.map(within))).flat());
  }
  return found.filter((file) => !file.name.startsWith("."));
}

/** Accept files dropped on an element; `take` gets an array. Dropped text is left to the browser. */
export function acceptDrops(element, take) {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (on) => element.classList.toggle("dropping", on);
  for (const kind of ["dragenter", "dragover"]) {
    element.addEventListener(kind, (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      mark(true);
    });
  }
  element.addEventListener("dragleave", (event) => {
    if (!element.contains(event.relatedTarget)) mark(false);
  });
  element.addEventListener("drop", async (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    mark(false);
    take(await dropped(event.dataTransfer));
  });
}
