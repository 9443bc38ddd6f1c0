// Results in words, the same as in the reports. Pure functions: no page, no service.

const LANGUAGES = new Intl.DisplayNames(["en"], { type: "language" });

/** A p-value with two significant digits; never "0". */
export function pValue(p) {
  if (p === null) return "unknown";
  if (p < 1e-300) return "< 1e-300";
  return p >= 0.001 ? String(Number(p.toPrecision(2))) : p.toExponential(1).replace(".0e", "e");
}

/** How certain: [the share, the rest of the sentence]. Beyond a billion, exact numbers add nothing. */
export function howSure({ one_in: share, p_value: p, rounded }) {
  if (p !== null && p <= 1e-9) return ["Fewer than 1 in a billion", "unmarked texts score this high."];
  const verb = p !== null && p >= 0.1 ? "score" : "scores";
  return [rounded ? `At most ${share}` : share, `unmarked texts ${verb} this high.`];
}

export const VERDICTS = {
  marked: "Marked",
  "not marked": "Not marked",
  "too short": "Too short to say",
  "unsupported language": "No verdict in this language",
};

/** The verdicts that answer the question. */
export const CONCLUSIVE = new Set(["marked", "not marked"]);

/** The verdict in one sentence. */
export function meaning(result) {
  const one = result.keys === 1;
  if (result.verdict === "marked") {
    return one
      ? "The mark of this service’s key was found in the text."
      : `The mark of the key “${result.tenant}” was found. The numbers are corrected for the ${result.keys} keys tried.`;
  }
  if (result.verdict === "not marked") {
    return one ? "No mark of this service’s key was found." : `No mark of the ${result.keys} keys was found.`;
  }
  if (result.verdict === "unsupported language") {
    return `The text is in ${language(result.language.code)}, which the detector does not know.`;
  }
  return "The text has too few independent tokens for a verdict.";
}

/** The name of a language in English. */
export function language(code) {
  return code === null ? "not recognised" : LANGUAGES.of(code);
}

/** "1 token", "2 tokens", "12,000 tokens". */
export function count(n, noun, plural = `${noun}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? noun : plural}`;
}

/** A share as a percentage with two or three digits. */
export function percent(share) {
  const digits = share < 0.00995 ? 2 : share < 0.0995 ? 1 : 0;
  return `${(100 * share).toFixed(digits)}%`;
}

/** A level as a percentage, as short as possible. */
export function level(fpr) {
  return `${Number((100 * fpr).toPrecision(3))}%`;
}

/** A number with a typographic minus sign. */
export function decimal(value, digits = 2) {
  return value.toFixed(digits).replace("-", "−");
}

/** The same, with a plus sign if it is not negative. */
export function signed(score) {
  return (score < 0 ? "" : "+") + decimal(score);
}

/** A token's score, compared with unmarked tokens, whose scores are standard normal. */
export function tokenScore(score) {
  const above = Math.round(100 * normalCdf(Math.abs(score)));
  if (Math.abs(score) < 0.3) return `${signed(score)}, neutral`;
  const side = score > 0 ? "for a mark: higher" : "against a mark: lower";
  return `${signed(score)}, ${side} than ${Math.min(above, 99)} in 100 unmarked tokens`;
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
