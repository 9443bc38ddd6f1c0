// The texts of dropped or chosen files. Plain text is decoded here; .pdf and .docx are sent to the service.

import { extract } from "/static/api.js";

const PLAIN = [".txt", ".md"];
const DOCUMENTS = [".pdf", ".docx"];
const MARKS = [
  [[0xef, 0xbb, 0xbf], "utf-8"],
  [[0xff, 0xfe], "utf-16le"],
  [[0xfe, 0xff], "utf-16be"],
];

const suffix = (name) => name.slice(name.lastIndexOf(".")).toLowerCase();

/** The text of one file; throws an error of one sentence if there is none. */
export async function readText(file, signal) {
  const kind = suffix(file.name);
  if (DOCUMENTS.includes(kind)) return extract(file, signal);
  if (PLAIN.includes(kind)) return plain(file);
  throw new Error(`${file.name}: unsupported file type. Use .txt, .md, .pdf or .docx, or paste the text.`);
}

/** The texts of one file for an audit, [{id, text, language, prompt}]; .jsonl has one per line. */
export async function readTexts(file, signal) {
  if (suffix(file.name) !== ".jsonl") return [{ id: file.name, text: await readText(file, signal) }];
  const lines = (await plain(file)).split("\n");
  return lines.flatMap((line, index) => (line.trim() ? [row(file.name, index + 1, line)] : []));
}

function row(name, number, line) {
  let value;
  try {
    value = JSON.parse(line);
  } catch {
    throw new Error(`${name}, line ${number}: not valid JSON.`);
  }
  if (typeof value?.text !== "string") throw new Error(`${name}, line ${number}: no “text” field.`);
  const optional = (field) => (typeof value[field] === "string" ? value[field] : null);
  return { id: `${name}:${number}`, text: value.text, language: optional("language"), prompt: optional("prompt") };
}

async function plain(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = MARKS.find(([mark]) => mark.every((byte, i) => bytes[i] === byte))?.[1] ?? "utf-8";
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is not ${encoding.toUpperCase()} text: save it as UTF-8.`);
  }
  if (!text.trim()) throw new Error(`${file.name} contains no text.`);
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  return text.replaceAll("\r\n", "\n");
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
