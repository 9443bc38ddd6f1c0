// The running score as an SVG plot, and in words.

import { $, draw } from "/static/dom.js";
import { t } from "/static/i18n.js";
import { decimal, normalQuantileAbove, number, signed } from "/static/words.js";

const HEIGHT = 208;
const MARGIN = { left: 34, right: 12, top: 18, bottom: 26 };
let last = null; // the data of the plot, to redraw it at another width
let cursor = null;

/** Plot the score along the scored tokens of a result, with bands for passages. */
export function showPlot(result, passages) {
  const judged = result.verdict === "marked" || result.verdict === "not_marked";
  const scored = judged ? (result.tokens ?? []).filter((token) => token.scored) : [];
  last = cursor = null;
  $("plot").hidden = scored.length < 2;
  if (scored.length < 2) return;
  const curve = running(scored, result);
  const level = normalQuantileAbove(result.level_of_whole);
  last = { curve, level, scored, passages };
  $("plot-said").textContent = inWords(curve, level);
  redraw();
}

/** Σu/√n after each token, scaled so that the last value is the text's z. */
function running(scored, result) {
  let sum = 0;
  const raw = scored.map((token, i) => (sum += token.score) / Math.sqrt(i + 1));
  const dependence = Math.sqrt(result.effective_length / scored.length);
  const exact = result.z / raw.at(-1);
  const scale = exact > 0.4 * dependence && exact < 2.5 * dependence ? exact : dependence;
  return raw.map((value) => value * scale);
}

function inWords(curve, level) {
  const end = curve.at(-1);
  const where = t(end > level ? "plot.above" : "plot.below");
  return t("plot.said", { end: signed(end), where, level: decimal(level) });
}

function redraw() {
  const width = $("plot-drawing").clientWidth;
  if (!last || !width) return;
  const { curve, level, scored, passages } = last;
  const high = Math.max(level + 1, ...curve) * 1.08;
  const low = Math.min(-1, ...curve) * 1.08;
  const inner = width - MARGIN.left - MARGIN.right;
  const x = (i) => MARGIN.left + (inner * i) / (curve.length - 1);
  const y = (z) => MARGIN.top + ((HEIGHT - MARGIN.top - MARGIN.bottom) * (high - z)) / (high - low);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-labelledby": "plot-said" });
  passages.forEach((passage, place) => {
    const inside = scored.map((token, i) => [token, i]).filter(([t]) => t.start < passage.end && t.end > passage.start);
    if (!inside.length) return;
    const [left, right] = [x(inside[0][1]), x(inside.at(-1)[1])];
    const box = {
      x: left,
      y: MARGIN.top,
      width: Math.max(right - left, 2),
      height: HEIGHT - MARGIN.top - MARGIN.bottom,
    };
    svg.append(
      draw("rect", { class: "band", ...box }),
      draw("text", { x: left + 3, y: MARGIN.top - 5 }, t("number.passage", { n: place + 1 })),
    );
  });
  for (const z of ticks(low, high)) {
    svg.append(draw("text", { x: MARGIN.left - 7, y: y(z) + 4, "text-anchor": "end" }, String(z).replace("-", "−")));
  }
  const ends = { x1: MARGIN.left, x2: width - MARGIN.right };
  svg.append(
    draw("line", { class: "axis", ...ends, y1: y(0), y2: y(0) }),
    draw("line", { class: "level", ...ends, y1: y(level), y2: y(level) }),
    draw(
      "text",
      { x: width - MARGIN.right, y: y(level) + 15, "text-anchor": "end" },
      t("plot.needed", { level: decimal(level) }),
    ),
    draw("text", { x: MARGIN.left, y: HEIGHT - 6 }, t("plot.first")),
    draw("text", { x: width - MARGIN.right, y: HEIGHT - 6, "text-anchor": "end" }, t("plot.last", { n: number(curve.length) })),
    draw("path", { class: "curve", d: path(curve, x, y) }),
    draw("circle", { class: "end", cx: x(curve.length - 1), cy: y(curve.at(-1)), r: 3.5 }),
  );
  cursor = draw("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, x1: -9, x2: -9 });
  svg.append(cursor);
  $("plot-drawing").replaceChildren(svg);
}

function path(curve, x, y) {
  const stride = Math.ceil(curve.length / 2000); // more points than pixels are invisible
  const points = curve.flatMap((z, i) =>
    i % stride && i < curve.length - 1 ? [] : [`${x(i).toFixed(1)} ${y(z).toFixed(1)}`],
  );
  return `M${points.join("L")}`;
}

function ticks(low, high) {
  const step = [1, 2, 5, 10, 20, 50].find((each) => (high - low) / each <= 8) ?? 100;
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step) + 1 }, (_, i) => first + i * step || 0);
}

/** Show the position of the n-th scored token. */
export function pointTo(n) {
  if (!cursor || !last) return;
  const inner = $("plot-drawing").clientWidth - MARGIN.left - MARGIN.right;
  const at = MARGIN.left + (inner * Math.max(n - 1, 0)) / (last.curve.length - 1);
  cursor.setAttribute("x1", at);
  cursor.setAttribute("x2", at);
}

/** Redraw when the width changes. */
export function listen() {
  new ResizeObserver(redraw).observe($("plot-drawing"));
}
