// Numbers and results in words. Pure functions: no page, no service.

import { locale, region, t, tn } from "/static/i18n.js";

/** A p-value with two significant digits; never "0". */
export function pValue(p) {
  if (p === null || p === undefined) return t("number.unknown");
  if (p < 1e-77) return "< 1e-77"; // there are 2^256 keys
  return p >= 0.001 ? number(Number(p.toPrecision(2))) : p.toExponential(1).replace(".0e", "e");
}

/** How many keys would find as much: "1 in 40,000 keys". Beyond a billion, exact numbers add nothing. */
export function shareOfKeys(p) {
  if (p <= 1e-9) return t("keys.billion");
  if (p >= 0.1) return t("keys.in_100", { n: Math.round(100 * p) });
  const n = 1 / p;
  const scale = 10 ** Math.max(Math.floor(Math.log10(n)) - 1, 0);
  return t("keys.one_in", { n: number(Math.round(n / scale) * scale) });
}

/** A number as the language writes it. */
export function number(value) {
  return value.toLocaleString(locale(), { maximumSignificantDigits: 15 });
}

/** The name of a language. */
export function language(code) {
  if (!code) return t("language.unknown");
  return new Intl.DisplayNames([locale()], { type: "language" }).of(code);
}

/** "1 text", "2 texts", "12,000 texts": `noun` is the beginning of the string's name. */
export const count = (n, noun) => tn(noun, n);

/** A share as a percentage with two or three digits. */
export function percent(share) {
  const digits = share < 0.00995 ? 2 : share < 0.0995 ? 1 : 0;
  const options = { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits };
  return share.toLocaleString(locale(), options);
}

/** A level as a percentage, as short as possible. */
export function level(fpr) {
  return fpr.toLocaleString(locale(), { style: "percent", maximumSignificantDigits: 3 });
}

/** A number with a typographic minus sign. */
export function decimal(value, digits = 2) {
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString(locale(), options).replace("-", "−");
}

/** The same, with a plus sign if it is not negative. */
export function signed(score) {
  return (score < 0 ? "" : "+") + decimal(score);
}

/** Day and time, or only the day. */
export function moment(date, { time = true } = {}) {
  const options = time ? { dateStyle: "medium", timeStyle: "short" } : { dateStyle: "medium" };
  return new Intl.DateTimeFormat(region(), options).format(date);
}

/** "1, 2 and 3". */
export function listing(items) {
  if (items.length < 2) return items.join("");
  return t("list.and", { list: items.slice(0, -1).join(", "), last: items.at(-1) });
}

/** A token's score, compared with unmarked tokens, whose scores are standard normal. */
export function tokenScore(score) {
  const n = Math.min(Math.round(100 * normalCdf(Math.abs(score))), 99);
  if (Math.abs(score) < 0.3) return t("token.neutral", { score: signed(score) });
  return t(score > 0 ? "token.for" : "token.against", { score: signed(score), n });
}

/** P(N(0,1) ≤ x), by the series of the error function, which is fine for small x. */
export function normalCdf(x) {
  if (Math.abs(x) > 6) return x > 0 ? 1 : 0;
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-12; n++) {
    term *= (-x * x * (2 * n - 1)) / (2 * n * (2 * n + 1));
    sum += term;
  }
  return 0.5 + sum / Math.sqrt(2 * Math.PI);
}

/** The z that unmarked text exceeds with probability p, by bisection. */
export function normalQuantileAbove(p) {
  let low = -6;
  let high = 6;
  for (let i = 0; i < 50; i++) {
    const middle = (low + high) / 2;
    if (1 - normalCdf(middle) > p) low = middle;
    else high = middle;
  }
  return low;
}
