/* The words of a text as the detector reads them: the browser's edition of dewmark.text.cleaning and
   dewmark.text.words. Tables of characters come with the detector, so that both have the same ones. */
"use strict";

class Words {
  /** `tables` are those of browser_detector.py: classes, combining, styles, lookalikes, entities. `units` are lines:
      traditional characters, the same simplified, and words of scripts without spaces. */
  constructor(tables, units) {
    this.tables = tables;
    this.latin = new Map(tables.lookalikes.latin);
    this.others = new Map(Object.entries(tables.lookalikes.other).map(([name, rows]) => [name, new Map(rows)]));
    this.styles = new Map(tables.styles);
    this.entities = new Map(tables.entities);
    this.classes = new Ranges(tables.classes, " ");
    this.combining = new Ranges(tables.combining, 0);
    this.spaceless = new Ranges(tables.unspaced, 0);
    const [traditional, simple, ...lines] = units.split("\n"), plain = Array.from(simple);
    this.simple = new Map(Array.from(traditional, (each, i) => [each, plain[i]]));
    for (let code = 0xff66; code < 0xff9e; code++) { // narrow kana
      const each = String.fromCharCode(code);
      this.simple.set(each, each.normalize("NFKC"));
    }
    this.beginnings = new Set();
    for (const unit of lines.join(" ").split(" ")) {
      let begun = "";
      for (const each of unit) this.beginnings.add(begun += each);
    }
  }

  /** The forms of a text's words, in order. */
  forms(text) {
    return this.cut(this.clean(text));
  }

  // Cleaning

  clean(text) {
    text = this.withoutMarkup(text);
    text = withoutLineNumbers(text);
    text = text.replace(HYPHEN, "");
    text = this.withoutInvisible(text);
    text = text.replace(NARROW_PAIR, (pair) => pair.normalize("NFKC"));
    if (!ASCII.test(text)) text = this.sameAlphabet(this.unstyled(text));
    return realSpaces(text);
  }

  withoutMarkup(text) {
    return text.replace(MARKUP, (...found) => {
      const groups = found[found.length - 1], whole = found[0];
      if (groups.tag !== undefined) {
        const name = groups.name.toLowerCase();
        return INLINE.has(name) ? "" : BLOCK.has(name) ? "\n" : whole;
      }
      if (groups.entity !== undefined) return this.entity(whole);
      if (groups.target !== undefined) return "]";
      return groups.hidden !== undefined || groups.declaration !== undefined ? "\n" : "";
    });
  }

  entity(whole) {
    const name = whole.slice(1).replaceAll("amp;", "");
    if (name === "") return "&";
    if (!name.startsWith("#")) return this.entities.get(name) ?? whole;
    const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    const replaced = this.tables.charrefs[code];
    if (replaced !== undefined) return replaced;
    if ((code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return "\ufffd";
    const control = code < 0x20 ? ![9, 10, 12, 13].includes(code) : code >= 0x7f && code <= 0x9f;
    const noncharacter = (code >= 0xfdd0 && code <= 0xfdef) || (code & 0xfffe) === 0xfffe;
    return control || noncharacter ? "" : String.fromCodePoint(code);
  }

  withoutInvisible(text) {
    return text.replace(INVISIBLE, (run, start) => {
      const before = characterBefore(text, start), after = characterAt(text, start + run.length);
      if (run.includes("\u200b") && (this.unspaced(before) || this.unspaced(after))) return run;
      return HARMLESS.test(run) || UNJOINED.test(before) ? "" : run;
    });
  }

  unspaced(character) {
    return character !== "" && this.spaceless.of(character.codePointAt(0)) === 1;
  }

  unstyled(text) {
    return Array.from(text, (each) => this.styles.get(each) ?? each).join("");
  }

  /** Words that mix alphabets, written in the one that they belong to. */
  sameAlphabet(text) {
    if (!LATIN.test(text) || !Array.from(text).some((each) => this.latin.has(each))) return text;
    const main = this.mainAlphabet(text), alone = [], pieces = [];
    let at = 0, mixed = 0;
    for (const match of text.matchAll(RUN)) {
      const run = match[0];
      if (main === "Latin" && ASCII.test(run)) continue;
      const plain = this.folded(run, main);
      if (plain === null) continue;
      pieces.push(text.slice(at, match.index), run);
      at = match.index + run.length;
      if (ASCII.test(run) || !LATIN.test(run)) {
        alone.push([pieces.length - 1, plain]);
      } else {
        mixed += 1;
        pieces[pieces.length - 1] = plain;
      }
    }
    if (mixed >= 3) for (const [place, plain] of alone) pieces[place] = plain;
    return pieces.join("") + text.slice(at);
  }

  mainAlphabet(text) {
    const counts = { Latin: 0, Cyrillic: 0, Greek: 0 };
    for (const letter of text) {
      if (LATIN.test(letter)) {
        if (!this.others.get("Cyrillic").has(letter)) counts.Latin += 1;
      } else if (!this.latin.has(letter)) {
        for (const name of ["Cyrillic", "Greek"]) if (SCRIPTS[name].test(letter)) counts[name] += 1;
      }
    }
    return Object.keys(counts).reduce((best, name) => (counts[name] > counts[best] ? name : best));
  }

  folded(run, main) {
    const targets = [["Latin", this.latin]];
    if (main !== "Latin") {
      if (!LATIN.test(run)) return null;
      targets.unshift([main, this.others.get(main)]);
    }
    for (const [name, table] of targets) {
      const letters = Array.from(run, (c) =>
        SCRIPTS[name].test(c) || this.combining.of(c.codePointAt(0)) ? c : table.get(c) ?? "");
      if (letters.every(Boolean)) {
        const plain = letters.join("");
        return plain === run ? null : plain;
      }
    }
    return null;
  }

  // Words

  cut(text) {
    const characters = Array.from(text);
    const letters = characters.map((each) => this.classes.of(each.codePointAt(0))).join("");
    const forms = [];
    for (const match of letters.matchAll(WORD)) {
      const start = match.index, end = start + match[0].length;
      for (const [first, last] of this.pieces(characters, start, end, match[0][0])) {
        const form = this.formOf(characters.slice(first, Math.min(last, first + 4 * MAX_FORM)).join(""));
        if (form) forms.push(form);
      }
    }
    return forms;
  }

  /** The words within a run: one, unless its script has no spaces. */
  pieces(characters, start, end, kind) {
    if (!"cCtT".includes(kind)) return [[start, end]];
    const found = [];
    let first = start, begun = "";
    for (let i = start; i < end; i++) {
      const each = this.simple.get(characters[i]) ?? characters[i];
      if (i > first && !this.beginnings.has(begun + each)) {
        found.push([first, i]);
        first = i;
        begun = "";
      }
      begun += each;
    }
    return [...found, [first, end]];
  }

  formOf(word) {
    let plain = word.normalize("NFKC").toLowerCase().replace(/[\u2019\u02bc]/g, "'").replaceAll("i\u0307", "i");
    plain = plain.replace(UNSEEN, "").normalize("NFKC");
    const letters = Array.from(plain, (each) => this.simple.get(each) ?? each);
    plain = letters.slice(0, MAX_FORM).join("").replace(/[\p{White_Space}\x1c-\x1f]+$/u, "");
    const first = plain.search(/[\p{L}\p{N}]/u);
    return first < 0 ? "" : plain.slice(first);
  }
}

/** Values of ranges of code points, in ascending order: rows of [first, last, value]; others have `nothing`. */
class Ranges {
  constructor(rows, nothing) {
    this.rows = rows;
    this.nothing = nothing;
    this.known = new Map();
  }

  of(code) {
    if (!this.known.has(code)) {
      let low = 0, high = this.rows.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.rows[middle][1] < code) low = middle + 1;
        else high = middle;
      }
      const row = this.rows[low];
      this.known.set(code, row !== undefined && row[0] <= code ? row[2] : this.nothing);
    }
    return this.known.get(code);
  }
}

/** Numbers in front of lines are left out if they count up line by line through the whole text. */
function withoutLineNumbers(text) {
  if (!text.includes("\n")) return text;
  let written = 0, small = 0, latest = 0, skipped = 0, edits = 0, asList = false;
  const lines = text.split("\n").map((line) => {
    const match = NUMBERED.exec(line), number = match ? Number(match[1]) : 0;
    const follows = edits ? latest < number && number <= latest + 1 + skipped : number < 1000 || number >= 2200;
    if (line.replace(/[\p{White_Space}\x1c-\x1f]+/gu, "") !== "") written += 1;
    if (!match || !follows) {
      skipped += 1;
      return line;
    }
    const rest = line.slice(match[0].length);
    edits += 1;
    asList ||= match[2] === "." || match[2] === ")";
    small += /^\p{Lowercase}/u.test(rest) ? 1 : 0;
    latest = number;
    skipped = 0;
    return rest;
  });
  const few = edits < 3 || edits < 0.5 * written;
  return few || (asList && small < 0.3 * edits) ? text : lines.join("\n");
}

/** Underscores and unusual spaces as spaces, where a text has more of them than of ordinary ones. */
function realSpaces(text) {
  const joints = text.match(JOINED)?.length ?? 0;
  return joints > text.split(" ").length - 1 ? text.replace(JOINED, " ") : text;
}

function characterBefore(text, place) {
  const low = text.charCodeAt(place - 1), pair = place > 1 && low >= 0xdc00 && low <= 0xdfff;
  return place > 0 ? text.slice(place - (pair ? 2 : 1), place) : "";
}

function characterAt(text, place) {
  return place < text.length ? String.fromCodePoint(text.codePointAt(place)) : "";
}

const MAX_FORM = 64;
const ASCII = /^[\x00-\x7f]*$/;
const LATIN = /\p{Script=Latin}/u;
const SCRIPTS = { Latin: LATIN, Cyrillic: /\p{Script=Cyrillic}/u, Greek: /\p{Script=Greek}/u };
const RUN = /[\p{L}\p{M}]+/gu;
const INLINE = new Set(("a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark q rb ruby s " +
  "samp small span strike strong sub sup time tt u var wbr").split(" "));
const BLOCK = new Set(("address applet area article aside audio base blockquote body br button canvas caption " +
  "center col colgroup datalist dd details dialog dir div dl dt embed fieldset figcaption figure footer form " +
  "frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe img input label legend li link main map " +
  "menu meta meter nav noframes noscript object ol optgroup option output p param picture pre progress rp rt " +
  "script search section select slot source style summary svg table tbody td template textarea tfoot th thead " +
  "title tr track ul video").split(" "));
const SPACE = "\\p{White_Space}";
const ENTITY = "(?:[A-Za-z][A-Za-z0-9]{1,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6})";
const HIDDEN = "(?:script|SCRIPT|style|STYLE)";
const MARKUP = new RegExp(
  `(?<hidden><${HIDDEN}(?![\\p{L}\\p{M}\\p{N}_])[^<>]*>[^<]*</${HIDDEN}${SPACE}*>)` +
  `|(?<tag></?(?<name>[A-Za-z][A-Za-z1-6]*)(?:${SPACE}[^<>]*|/)?>)` +
  `|(?<declaration><[!?][^<>]*>)` +
  `|(?<entity>&(?:(?:amp;)+(?:${ENTITY};)?|${ENTITY};))` +
  `|\\](?<target>\\([^()\\p{White_Space}<>]{1,2000}(?:${SPACE}"[^"\\n]{0,500}")?\\))` +
  `|(?<emphasis>\\*{2,3}(?<=\\p{L}\\*{2,3})|~~(?<=\\p{L}~~))(?=\\p{L})`, "gu");
const BLANK = "(?:(?![\\r\\n])\\p{White_Space})";
const NUMBERED = new RegExp(`^${BLANK}*([0-9]{1,6})([.:|)\\]│→]?)(?:${BLANK}+|\\r?$)`, "u");
const HYPHEN = /[-\u2010\u00AD](?<=\p{L}\p{Ll}.)[ \t]*\r?\n[ \t]*(?=\p{Ll}\p{Ll})/gu;
const ALWAYS = "\\u00AD\\u034F\\u061C\\u115F\\u1160\\u17B4\\u17B5\\u180E\\u200E\\u200F\\u202A-\\u202E\\u2060-\\u206F" +
  "\\u3164\\uFEFF\\uFFA0\\uFFF9-\\uFFFB\\u0305\\u0332\\u0333\\u0335-\\u0338\\u033F\\u20D0-\\u20DC\\u20E0-\\u20F0\\u200B";
const SOMETIMES = "\\u200C\\u200D\\u180B-\\u180D\\u180F\\uFE00-\\uFE0F\\u{E0000}-\\u{E0FFF}";
const INVISIBLE = new RegExp(`[${ALWAYS}${SOMETIMES}]+`, "gu");
const HARMLESS = new RegExp(`^[${ALWAYS}]+$`, "u");
const UNJOINED = /[\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{Nd}\p{P}\p{White_Space}]/u;
const UNSEEN = /[\p{Cf}\u0640\u064B-\u065F\u0670\u0591-\u05BD\u05BF\u05C1\u05C2\u05C4\u05C5\u05C7]+/gu;
const NARROW_PAIR = /[\uff66-\uff9d][\uff9e\uff9f]/g;
const JOINED = /[_\u00a0\u202f\u205f\u2000-\u200a](?<=[\p{L}\p{N}].)(?=[\p{L}\p{N}])/gu;
const WITH_X = "[xCTU]*(?![xCTU])"; // as many as there are, and never fewer
const WORD = new RegExp(
  `[cC][cxCTU]*|[tT][txCTU]*|[uU][uxCTU]*` +
  `|(?=[LHD])(?:L+(?!L)${WITH_X}(?:[:.']${WITH_X}(?=[LH]))?` +
  `|H${WITH_X}(?:[:.']${WITH_X}(?=[LH])|q${WITH_X}(?=H)|(?!'))` +
  `|D+(?!D)${WITH_X}(?:[,.']${WITH_X}(?=D))?)*` +
  `(?:H${WITH_X}'${WITH_X})?`, "g");
