// Numbers in words, the same words as the reports use. Pure functions: no page, no service.

const LANGUAGES = new Intl.DisplayNames(["en"], { type: "language" });

/** A p-value with two significant digits; never "0". */
export function pValue(p) {
  if (p === null) return "unknown";
  if (p < 1e-300) return "< 1e-300";
  return p >= 0.001 ? String(Number(p.toPrecision(2))) : p.toExponential(1).replace(".0e", "e");
}

/** How sure: [the share, the rest of the sentence]. Beyond a billion the exact number says nothing more. */
export function howSure({ one_in: share, p_value: p, rounded }) {
  if (p !== null && p <= 1e-9) return ["Fewer than 1 in a billion", "unmarked texts score this high."];
  const verb = p !== null && p >= 0.1 ? "score" : "scores";
  return [rounded ? `At most ${share}` : share, `unmarked texts ${verb} this high.`];
}

export const VERDICTS = {
  marked: "Marked",
  "not marked": "Not marked",
  "too short": "Too short to say",
};

/** What the verdict says, in one sentence. */
export function meaning(result) {
  const one = result.keys === 1;
  if (result.verdict === "marked") {
    return one
      ? "The mark of this service’s key was found in the text."
      : `The mark of the key “${result.tenant}” was found. ${result.keys} keys were tried; the numbers allow for that.`;
  }
  if (result.verdict === "not marked") {
    return one ? "No mark of this service’s key was found." : `None of ${result.keys} keys was found.`;
  }
  return "The text holds too few independent tokens for any verdict.";
}

/** The name of a language in English. */
export function language(code) {
  return code === null ? "not recognised" : LANGUAGES.of(code);
}

/** "1 token", "2 tokens", "12,000 tokens". */
export function count(n, noun, plural = `${noun}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? noun : plural}`;
}

/** A share as a percentage with two or three figures. */
export function percent(share) {
  const digits = share < 0.00995 ? 2 : share < 0.0995 ? 1 : 0;
  return `${(100 * share).toFixed(digits)}%`;
}

/** A level as a percentage, as short as it can be. */
export function level(fpr) {
  return `${Number((100 * fpr).toPrecision(3))}%`;
}

/** A number with a true minus. */
export function decimal(value, digits = 2) {
  return value.toFixed(digits).replace("-", "−");
}

/** The same, with a plus where it is positive. */
export function signed(score) {
  return (score < 0 ? "" : "+") + decimal(score);
}

/** What a token's score says: of how many unmarked tokens it exceeds (scores are standard normal there). */
export function tokenScore(score) {
  const above = Math.round(100 * normalCdf(Math.abs(score)));
  if (Math.abs(score) < 0.3) return `${signed(score)}, says little`;
  const side = score > 0 ? "for a mark: higher" : "against a mark: lower";
  return `${signed(score)}, ${side} than ${Math.min(above, 99)} in 100 unmarked tokens`;
}

/** P(N(0,1) ≤ x), by the series for the error function (x is at most a few). */
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

/** The z that unmarked text exceeds with probability p, by bisection on the tail integral. */
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
