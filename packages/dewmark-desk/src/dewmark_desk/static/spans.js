// Split a text into pieces of one colour, as reports/detection_display.py does. Offsets count code points, as in
// the service; JavaScript's strings are UTF-16, so the text is an array of characters.

const LEVELS = 4;
const STEP = 0.6;

/** Pieces {start, end, text, tokens, scored, score} that partition the characters. */
export function spans(characters, tokens) {
  const pieces = [];
  let group = [];
  let start = 0;
  let end = 0;
  const add = (from, to, mine) => pieces.push(piece(characters, from, to, mine));
  const close = () => {
    if (group.length && end > start) {
      add(start, end, group);
      group = [];
    }
  };
  const inside = (offset) => Math.min(Math.max(offset, 0), characters.length);
  for (const token of [...tokens].sort((a, b) => a.start - b.start)) {
    const first = inside(token.start);
    const last = inside(token.end);
    if (first >= end && last > first) {
      close(); // tokens without characters join the next piece
      if (first > end) add(end, first, []);
      [start, end] = [first, last];
    }
    group.push(token);
    if (last > first) end = Math.max(end, last);
  }
  close();
  if (end < characters.length) add(end, characters.length, []);
  return pieces;
}

function piece(characters, start, end, tokens) {
  const scores = tokens.filter((token) => token.scored).map((token) => token.score);
  const total = scores.reduce((sum, score) => sum + score, 0);
  return {
    start,
    end,
    tokens,
    text: characters.slice(start, end).join(""),
    scored: scores.length > 0,
    score: scores.length ? total / Math.sqrt(scores.length) : 0,
  };
}

/** The index of the passage that a piece overlaps, or −1. */
export function placeOf(span, passages) {
  return passages.findIndex((passage) => span.start < passage.end && span.end > passage.start);
}

/** The colour class of a piece: p1 … p4 for a mark, m1 … m4 against one, "" near 0, "u" if not scored. */
export function colour(span) {
  if (!span.tokens.length) return "";
  if (!span.scored) return "u";
  const step = Math.max(-LEVELS, Math.min(LEVELS, Math.round(span.score / STEP)));
  return step === 0 ? "" : `${step > 0 ? "p" : "m"}${Math.abs(step)}`;
}
