// The service's API as functions. The access token is kept here and in sessionStorage, nowhere else.

import { locale, t } from "/static/i18n.js";

const STORED = "dewmark-access";
const PATIENCE = 5; // the longest Retry-After, in seconds, after which to retry automatically
const TRIES = 4;
const KNOWN = new Set(["overloaded", "too_many_requests", "budget_spent", "forbidden", "text_too_large", "body_too_large"]);

/** An error that the service reported; `code` as in its JSON. */
export class ServiceError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const access = {
  get: () => sessionStorage.getItem(STORED),
  set: (token) => sessionStorage.setItem(STORED, token),
  forget: () => sessionStorage.removeItem(STORED),
};

let limits = {};

/** Who we are to the service, and its limits. */
export async function whoami() {
  const known = await call("GET", "/v1/whoami");
  limits = known.limits;
  return known;
}

/** The verdict on one text, with token scores and passages if the access token's scope allows them. */
export async function detect(text, { prompt, tenant, fpr, fine, signal }) {
  const body = { text, prompt: prompt || null, tenants: tenant ? [tenant] : null };
  if (fine) Object.assign(body, { fpr, tokens: true });
  const { results } = await call("POST", "/v1/detect", { body, signal });
  return { ...results[0], asked: tenant || null }; // "keys" counts all that could have been asked for
}

/** A signed report on one text: {document, claims, page}. */
export const signedReport = (text, { prompt, tenant, fpr, name, page = true }) => {
  const body = { text, prompt: prompt || null, tenants: tenant ? [tenant] : null, fpr, name: name?.slice(0, 200) ?? null, page };
  return call("POST", "/v1/reports", { body });
};

/** The documents of signed reports as one signed table: {table, document}. */
export const signedTable = (documents) => call("POST", "/v1/reports/table", { body: { documents } });

/** Changes that would mark a text: {tenant, changes}. */
export const rewrite = (text, tenant) => call("POST", "/v1/rewrite", { body: { text, tenant: tenant || null } });

/** Texts to try: {marked, unmarked}. */
export const example = (signal) => call("GET", "/v1/example", { signal });

export const startAudit = async (texts, tenant) =>
  (await call("POST", "/v1/audit", { body: { texts, tenant: tenant || null } })).job;

export const jobs = async () => (await call("GET", "/v1/jobs")).jobs;

export const job = (id) => call("GET", `/v1/jobs/${encodeURIComponent(id)}`);

export const deleteJob = (id) => call("DELETE", `/v1/jobs/${encodeURIComponent(id)}`);

/** The text inside a .pdf or .docx file. */
export async function extract(file, signal) {
  const form = new FormData();
  form.append("file", file, file.name);
  return (await call("POST", "/v1/extract", { form, signal })).text;
}

async function call(method, path, { body, form, signal } = {}) {
  const headers = {};
  if (access.get()) headers.Authorization = `Bearer ${access.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  const request = { method, headers, signal, body: form ?? (body && JSON.stringify(body)), credentials: "same-origin" };
  for (let attempt = 1; ; attempt++) {
    const response = await send(path, request);
    if (response.ok) return response.status === 204 ? null : response.json();
    const wait = Number(response.headers.get("Retry-After") ?? Infinity);
    const passing = response.status === 429 || response.status === 503;
    if (!passing || attempt === TRIES || wait > PATIENCE) throw await failure(response, wait);
    await new Promise((done) => setTimeout(done, 1000 * Math.max(wait, 0.5)));
    signal?.throwIfAborted();
  }
}

async function send(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "unreachable", t("error.unreachable"));
  }
}

async function failure(response, wait) {
  const { error } = await response.json().catch(() => ({}));
  const later = Number.isFinite(wait) ? ` ${t("error.later", { seconds: wait })}` : "";
  const known = KNOWN.has(error?.code) && t(`error.${error.code}`, { bytes: limits.text_bytes?.toLocaleString(locale()) });
  const message = known || (error?.message ? sentence(error.message) : t("error.status", { status: response.status }));
  return new ServiceError(response.status, error?.code ?? "unknown", message + later);
}

function sentence(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
