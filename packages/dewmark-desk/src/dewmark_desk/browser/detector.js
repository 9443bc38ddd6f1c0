/* A public detector, as its file describes it: the browser's edition of dewmark.dew.reading, expected, matrix
   and ring. A text becomes pairs of a word and its context, these one matrix M, and M one z for each matrix of
   the key. Vectors are rounded to single precision as in Python; sums are not. All arrays of numbers
   have one type, Float64Array, because browsers compile such loops best. */
"use strict";

const TINY = 1e-9, LEAST_SHARE = 0.01, LEAST_P = 2 ** -256;
const SPELLINGS = 131071, FACTOR = 48271, LENDS = 4096;
const fround = Math.fround;

class PublicDetector {
  /** Open what browser_detector.py wrote: `about` is its detector.json, `blob` the bytes of its arrays. */
  constructor(about, tables, blob) {
    this.about = about;
    const arrays = Object.fromEntries(about.arrays.map((each) => [each.name, arrayOf(each, blob)]));
    this.words = new Words(tables, new TextDecoder().decode(arrays["units"]).trimEnd());
    this.lexicon = new Lexicon(arrays, about, tables);
    this.reader = about.reader === null ? null : new Reader(arrays, this.lexicon);
    this.start = arrays["start"];
    const size = this.lexicon.dim ** 2;
    this.matrices = Array.from({ length: about.matrices }, (_, i) => Float64Array.from(arrays["W"].subarray(i * size, (i + 1) * size)));
  }

  /** What a text says: verdict, p_value, z, effective_length, words_scored. */
  detect(text, fpr = 0.01) {
    const pairs = this.read(this.words.forms(text)), found = this.test(pairs);
    const short = found.effective_length < this.about.least_length;
    const verdict = short ? "too_short" : found.p_value <= fpr ? "marked" : "not_marked";
    return { verdict, ...found, words_scored: pairs.reduce((sum, each) => sum + each.weight, 0) };
  }

  /** The distinct pairs of a text that count, with vectors t, c (d,) and μ (d,), which is null without a reader. */
  read(forms) {
    const { k } = this.about, rows = forms.map((form) => this.lexicon.row(form));
    const pairs = new Map(), occurred = new Map();
    rows.forEach((row, i) => {
      const earlier = occurred.get(row) ?? 0;
      occurred.set(row, earlier + 1);
      const window = rows.slice(Math.max(i - k, 0), i);
      if (i < k || earlier >= this.lexicon.limit(row) || !window.some(Boolean)) return;
      const name = JSON.stringify([row, ...window.map((each, j) => each || forms[i - k + j])]);
      if (!pairs.has(name)) pairs.set(name, { row, window, weight: 0, places: [] });
      const pair = pairs.get(name);
      pair.weight += 1;
      pair.places.push(i);
    });
    const found = [...pairs.values()];
    const means = this.reader?.means(forms.slice(0, this.about.words_read).map((form) => this.lexicon.listed(form)));
    for (const pair of found) {
      pair.t = this.lexicon.token(pair.row);
      pair.c = this.lexicon.context(pair.window);
      pair.mean = means ? average(pair.places.filter((i) => i < means.length).map((i) => means[i]), pair.t.length) : null;
    }
    return found;
  }

  test(pairs) {
    const nothing = { p_value: 1, z: 0, effective_length: 0 };
    const d = this.lexicon.dim, length = pairs.reduce((sum, each) => sum + each.weight, 0);
    if (!pairs.length) return nothing;
    const T = differences(pairs, length), M = new Float64Array(d * d);
    let energy = 0, total = 0, sizes = 0;
    pairs.forEach(({ c, weight }, n) => {
      const size = square(T[n]) * square(c);
      energy += weight * weight * size;
      total += weight * Math.sqrt(size);
      sizes += size;
      for (let i = 0; i < d; i++) {
        const left = T[n][i];
        if (left !== 0) for (let j = 0; j < d; j++) M[i * d + j] += left * weight * c[j];
      }
    });
    const whole = square(M), F = this.flattened(M, pairs.length, length, whole), left = square(F);
    if (!(left > Math.max(TINY, LEAST_SHARE * whole, LEAST_SHARE * energy))) return nothing;
    const z = Math.max(...this.matrices.map((W) => dot(F, W) / Math.sqrt(left)));
    const p = anyOf(upperTail(z), this.matrices.length);
    return { p_value: Math.max(p, LEAST_P), z, effective_length: Math.min(total ** 2 / left, sizes) };
  }

  /** f(M): singular values that stand out are cut down to the bound b. */
  flattened(M, pairs, length, whole) {
    const d = this.lexicon.dim, { flatten } = this.about;
    if (flatten === null || whole <= TINY) return M.slice();
    const count = Math.min(length <= 2 * d ? 24 : 64, pairs, d);
    const { left, values, right } = leadingDirections(M, d, count, this.start);
    const limit = Math.max(flatten * Math.min((2 * d) / length, 1) ** (1 / 3), Math.min(flatten, 1.05));
    const bound = boundOf(values, whole, limit, Math.min(length, d)), F = M.slice();
    values.forEach((value, q) => {
      if (!(value > bound)) return;
      for (let i = 0; i < d; i++) {
        const size = (value - bound) * left[q][i];
        for (let j = 0; j < d; j++) F[i * d + j] -= size * right[q][j];
      }
    });
    return F;
  }
}

class Lexicon {
  constructor(arrays, about, tables) {
    this.forms = new TextDecoder().decode(arrays["forms"]).split("\n");
    this.rows = new Map(this.forms.map((form, i) => [form, i + 1]));
    this.ordered = null;
    this.letters = new Ranges(tables.letters, 0);
    this.codes = arrays["codes"];
    this.levels = arrays["levels"];
    this.scales = arrays["scales"];
    this.running = arrays["running_centre"];
    this.around = arrays["context_centre"];
    this.centibels = arrays["centibels"];
    this.dim = this.scales.length;
    this.sif = about.sif;
    this.frequent = about.frequent;
  }

  /** The row of a form, 0 if it is not listed. */
  listed(form) {
    return this.rows.get(form) ?? 0;
  }

  /** The row of a form, its own or one that its spelling borrows; 0 for words with digits, and ASCII beginnings. */
  row(form) {
    const own = this.listed(form), size = this.forms.length;
    if (own || size < LENDS) return own;
    let spelled = 0;
    for (const letter of form) {
      const code = letter.codePointAt(0);
      if (!this.letters.of(code)) return 0;
      spelled = (spelled * FACTOR + ((((code * 40503 + 12345) % SPELLINGS) * (code + 7)) % SPELLINGS)) % SPELLINGS;
    }
    const first = Math.floor(size / 8);
    return this.begins(form) ? 0 : 1 + first + (spelled % (size - first));
  }

  /** Whether a form is in ASCII and a listed form begins with it. */
  begins(form) {
    if (!ASCII.test(form)) return false;
    this.ordered ??= this.forms.filter((each) => each < "\x80").sort();
    let low = 0, high = this.ordered.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ordered[middle] < form) low = middle + 1;
      else high = middle;
    }
    return low < this.ordered.length && this.ordered[low].startsWith(form);
  }

  frequency(row) {
    return 10 ** (this.centibels[row - 1] / 100);
  }

  /** How often a word carries the mark within one text. */
  limit(row) {
    return row === 0 ? 0 : this.frequency(row) > this.frequent.above ? this.frequent.times : 1;
  }

  coordinates(row) {
    const q = new Float64Array(this.dim), half = this.dim / 2;
    for (let i = 0; i < half; i++) {
      const code = this.codes[(row - 1) * half + i];
      q[2 * i] = fround(this.levels[code & 15] * this.scales[2 * i]);
      q[2 * i + 1] = fround(this.levels[code >> 4] * this.scales[2 * i + 1]);
    }
    return q;
  }

  /** t of a word (d,), a unit vector; 0 for row 0. */
  token(row) {
    if (row === 0) return new Float64Array(this.dim);
    return unit(this.coordinates(row).map((q, i) => fround(q - this.running[i])));
  }

  /** c of the words before a word, (d,): a unit vector. */
  context(window) {
    const sum = new Float64Array(this.dim);
    for (const row of window) {
      if (row === 0) continue;
      const weight = fround(this.sif / (this.sif + this.frequency(row)));
      this.coordinates(row).forEach((q, i) => {
        sum[i] = fround(sum[i] + fround(fround(q - this.around[i]) * weight));
      });
    }
    return unit(sum);
  }
}

/** The packaged reader: μ (d,) of the word to be expected in each place, from the words before it. */
class Reader {
  constructor(arrays, lexicon) {
    this.lexicon = lexicon;
    this.weights = Object.fromEntries(
      Object.entries(arrays).filter(([name]) => name.startsWith("reader/") && name !== "reader/table")
        .map(([name, array]) => [name.slice(7), Float64Array.from(array)]));
    this.table = arrays["reader/table"];
    this.places = new Map(Array.from(arrays["reader/rows"], (row, i) => [row, i]));
    this.width = this.weights["start"].length;
  }

  means(rows) {
    const w = this.weights, D = this.width;
    const sum = new Float64Array(D);
    let h = rows.map((_, i) => {
      const before = i === 0 ? w["start"].slice() : this.entered(rows[i - 1]);
      add(sum, before);
      add(before, times(sum.map((each) => each / (i + 1)), w["topic"], D));
      return before;
    });
    [1, 2, 4, 8].forEach((step, layer) => {
      const n = h.map(scaled), hidden = w[`bias${layer}`].length;
      h = h.map((own, i) => {
        const inner = times(n[i], w[`own${layer}`], hidden);
        add(inner, w[`bias${layer}`]);
        if (i >= step) add(inner, times(n[i - step], w[`earlier${layer}`], hidden));
        const out = times(inner.map((x) => x / (1 + Math.exp(-1.702 * x))), w[`out${layer}`], D);
        add(out, own);
        return out;
      });
    });
    return h.map((each) => {
      const mean = times(scaled(each), w["result"], this.lexicon.dim);
      add(mean, w["offset"]);
      return mean;
    });
  }

  /** x of a word, (D,). */
  entered(row) {
    const w = this.weights, D = this.width, x = times(this.lexicon.token(row), w["lexicon"], D);
    const place = this.places.get(row);
    if (place === undefined) add(x, w["unlisted"]);
    else for (let j = 0; j < D; j++) x[j] += this.table[place * D + j] * w["scales"][j];
    return x;
  }
}

/** t − μ of each pair: μ is what the reader expected, up to the text's own mean. */
function differences(pairs, length) {
  const d = pairs[0].t.length;
  if (pairs.every((each) => each.row === pairs[0].row)) return pairs.map((each) => each.t);
  const T = pairs.map(({ t, mean }) => Float64Array.from(t, (x, i) => x - (mean ? mean[i] : 0)));
  const shared = new Float64Array(d);
  pairs.forEach(({ weight }, n) => T[n].forEach((x, i) => (shared[i] += (weight / length) * x)));
  return T.map((row) => row.map((x, i) => x - shared[i]));
}

/** The leading singular values of M (d, d) and their directions, by three rounds of orthogonal iteration. */
function leadingDirections(M, d, count, start) {
  let right = Array.from({ length: count }, (_, q) => Float64Array.from({ length: d }, (_, i) => start[i * count + q]));
  for (let round = 0; round < 3; round++) {
    right = orthonormal(right.map((column) => transposed(M, applied(M, column, d), d)));
  }
  const image = right.map((column) => applied(M, column, d));
  const gram = image.map((a) => image.map((b) => dot(a, b)));
  const { values, vectors } = symmetricEigen(gram);
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]);
  const sizes = order.map((i) => Math.sqrt(Math.max(values[i], 0)));
  const turned = (columns, i) => columns.reduce((sum, column, j) => addScaled(sum, column, vectors[j][i]), new Float64Array(d));
  const left = order.map((i, q) => turned(image, i).map((x) => (sizes[q] ? x / sizes[q] : 0)));
  return { left, values: sizes, right: order.map((i) => turned(right, i)) };
}

function boundOf(values, whole, limit, rank) {
  const rest = [whole];
  let inner = 0;
  for (const value of values) rest.push(Math.max(whole - (inner += value * value), 0));
  let bound = limit * Math.sqrt(whole / rank), cut = 0;
  for (let round = 0; round < 30; round++) {
    while (cut < values.length && values[cut] > bound) cut += 1;
    const last = bound;
    bound = limit * Math.sqrt((rest[cut] + cut * bound * bound) / rank);
    if (bound === last) break;
  }
  return bound;
}

// Numbers

/** P(N(0, 1) > z). */
function upperTail(z) {
  if (z < 0) return 1 - upperTail(-z);
  const density = Math.exp(-0.5 * z * z) / Math.sqrt(2 * Math.PI);
  if (z < 2.5) { // Φ(z) − 1/2 = φ(z) Σ z^(2n+1) / (1·3·…·(2n+1))
    let term = z, sum = z;
    for (let n = 1; term > 1e-18 * sum; n++) sum += term *= (z * z) / (2 * n + 1);
    return 0.5 - density * sum;
  }
  let fraction = 0; // Laplace's continued fraction
  for (let n = 160; n > 0; n--) fraction = n / (z + fraction);
  return density / (z + fraction);
}

/** The p-value of the smallest of some independent p-values. */
function anyOf(p, tests) {
  return p >= 1 ? 1 : -Math.expm1(tests * Math.log1p(-p));
}

/** Orthonormal columns that span the same space, by Gram and Schmidt, twice. */
function orthonormal(columns) {
  const basis = [];
  for (const column of columns) {
    const rest = Float64Array.from(column);
    for (let pass = 0; pass < 2; pass++) for (const other of basis) addScaled(rest, other, -dot(rest, other));
    const norm = Math.sqrt(square(rest)), original = Math.sqrt(square(column));
    basis.push(norm > 1e-14 * original ? rest.map((x) => x / norm) : new Float64Array(rest.length));
  }
  return basis;
}

/** Eigenvalues of a symmetric matrix, and its eigenvectors as columns, by Jacobi's rotations. */
function symmetricEigen(matrix) {
  const n = matrix.length, A = matrix.map((row) => Float64Array.from(row));
  const V = A.map((_, i) => Float64Array.from({ length: n }, (_, j) => (i === j ? 1 : 0)));
  const size = A.reduce((sum, row) => sum + square(row), 0);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) off += A[p][q] ** 2;
    if (off <= 1e-30 * size) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
      if (A[p][q] === 0) continue;
      const theta = (A[q][q] - A[p][p]) / (2 * A[p][q]);
      const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
      const c = 1 / Math.hypot(t, 1), s = t * c;
      for (let i = 0; i < n; i++) [A[i][p], A[i][q]] = [c * A[i][p] - s * A[i][q], s * A[i][p] + c * A[i][q]];
      for (let i = 0; i < n; i++) [A[p][i], A[q][i]] = [c * A[p][i] - s * A[q][i], s * A[p][i] + c * A[q][i]];
      for (let i = 0; i < n; i++) [V[i][p], V[i][q]] = [c * V[i][p] - s * V[i][q], s * V[i][p] + c * V[i][q]];
    }
  }
  return { values: A.map((row, i) => row[i]), vectors: V };
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function square(a) {
  return dot(a, a);
}

function add(a, b) {
  for (let i = 0; i < a.length; i++) a[i] += b[i];
}

function addScaled(a, b, size) {
  for (let i = 0; i < a.length; i++) a[i] += size * b[i];
  return a;
}

/** A row vector times a matrix with so many columns; four rows of it at a time, since all have such sizes. */
function times(row, matrix, columns) {
  const out = new Float64Array(columns);
  for (let i = 0; i < row.length; i += 4) {
    const a = row[i], b = row[i + 1], c = row[i + 2], d = row[i + 3];
    const p = i * columns, q = p + columns, r = q + columns, s = r + columns;
    for (let j = 0; j < columns; j++) {
      out[j] += a * matrix[p + j] + b * matrix[q + j] + c * matrix[r + j] + d * matrix[s + j];
    }
  }
  return out;
}

function applied(M, column, d) {
  return Float64Array.from({ length: d }, (_, i) => dot(M.subarray(i * d, (i + 1) * d), column));
}

function transposed(M, column, d) {
  return times(column, M, d);
}

function unit(vector) {
  const norm = fround(Math.sqrt(square(vector)));
  return norm > 1e-12 ? vector.map((x) => fround(x / norm)) : new Float64Array(vector.length);
}

function scaled(h) {
  const norm = Math.sqrt(square(h) / h.length + 1e-6);
  return h.map((x) => x / norm);
}

function average(rows, d) {
  const sum = new Float64Array(d);
  for (const row of rows) add(sum, row);
  return rows.length ? sum.map((x) => x / rows.length) : sum;
}

/** An array of the file: half-precision numbers become single ones. */
function arrayOf({ dtype, offset, size }, blob) {
  const kinds = { uint8: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, float32: Float32Array };
  if (dtype !== "float16") return new kinds[dtype](blob.buffer, blob.byteOffset + offset, size);
  return Float32Array.from(new Uint16Array(blob.buffer, blob.byteOffset + offset, size), (half) => {
    const sign = half & 0x8000 ? -1 : 1, exponent = (half >> 10) & 31, fraction = half & 1023;
    return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
  });
}

/** The bytes that `size` deflated bytes become; each character of their `text` has 15 bits. */
async function inflated({ size, text }) {
  const packed = new Uint8Array(size);
  for (let i = 0, at = 0, bits = 0, count = 0; at < size; i++) {
    bits = ((bits & 127) << 15) | (text.charCodeAt(i) - 0x4000);
    for (count += 15; count >= 8 && at < size; at++) packed[at] = bits >> (count -= 8);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
