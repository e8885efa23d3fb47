/* page_draw.js: a canvas, and the curve. A drawing is a function of a view: {t0, t1} moments, {y0, y1} places. */

const EXACT_MAX = 100000;  // moments in a view: larger views use the steps of the curves
const MARGIN = 58, FOOT = 18, MARKS_FOOT = 15, MARK_LETTERS = 28;

const palette = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#8cd17d", "#499894",
  "#d37295", "#6b8fc9", "#b6992d"];

function rgb(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }
function word(parts) { return (255 << 24 | parts[2] << 16 | parts[1] << 8 | parts[0]) >>> 0; }
function mix(from, to, part) { return from.map((value, i) => Math.round(value + (to[i] - value) * part)); }

/* Same as zr_size_print() of alloc/base/sizes.h. */
function bytesWords(bytes) {
  let unit = 0;
  for (; Math.abs(bytes) >= 1023.5 && unit < 6; unit++) bytes /= 1024;
  return `${unit && Math.abs(bytes) < 99.95 ? bytes.toPrecision(3) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit]}`;
}

/* Formats a time; with `step_ns`, precise enough to distinguish times that far apart. */
function timeWords(ns, step_ns = Infinity) {
  const [unit, name, digits] = ns < 1e6 ? [1e3, "µs", 1] : ns < 1e9 ? [1e6, "ms", 1] : [1e9, "s", 2];
  const needed = step_ns > 0 && step_ns < Infinity ? Math.ceil(Math.log10(unit / step_ns)) : 0;
  return `${(ns / unit).toFixed(Math.max(digits, Math.min(9, needed)))} ${name}`;
}

/* Colours of blocks: `colours`, the index of(block), and [text, colour] for the legend. */
function colouring(recording, by) {
  const hashed = (number) => (number * 2654435761 >>> 0) % palette.length;
  if (by === "stack") return { colours: palette, of: (i) => hashed(recording.stack[i]), legend: [["a colour for each stack", palette[0]]] };
  if (by === "stream") return { colours: palette, of: (i) => hashed(recording.stream[i]), legend: [["a colour for each stream", palette[0]]] };
  if (by === "size")
    return { colours: palette, of: (i) => Math.min(13, Math.max(0, Math.floor(Math.log2(recording.bytes[i] + 1) / 2) - 4)),
      legend: palette.map((colour, i) => [i ? `from ${bytesWords(4 ** (i + 4))}` : "less", colour]) };
  return { colours: recording.meta.tags.map(([, colour]) => colour), of: (i) => recording.tag[i], legend: null };
}

class Canvas {
  constructor(id) {
    this.node = document.getElementById(id);
    this.context = this.node.getContext("2d");
    this.more = 0; // pixels below the axis
  }
  /* Fits the canvas to its size on the screen. */
  fit() {
    const scale = Math.min(window.devicePixelRatio || 1, 2), box = this.node.getBoundingClientRect();
    const width = Math.max(1, Math.round((box.width - 2) * scale)), height = Math.max(1, Math.round((box.height - 2) * scale));
    if (this.node.width !== width || this.node.height !== height) { this.node.width = width; this.node.height = height; }
    this.scale = scale;
    this.left = Math.round(MARGIN * scale);
    this.width = Math.max(1, width - this.left);
    this.height = Math.max(1, height - Math.round((FOOT + this.more) * scale));
    this.context.font = `${11 * scale}px system-ui, sans-serif`;
  }
  clear(colours) {
    this.context.fillStyle = colours.back;
    this.context.fillRect(0, 0, this.node.width, this.node.height);
  }
  /* The pixels of the picture, reused while its size is unchanged: {image, pixels}. */
  picture() {
    if (!this.image || this.image.width !== this.width || this.image.height !== this.height) {
      this.image = this.context.createImageData(this.width, this.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.drawn = null;
    }
    return this;
  }
  /* Whether the inputs `of` differ from those of the last picture; remembers them. */
  changes(...of) {
    const same = this.drawn && this.drawn.length === of.length && of.every((one, i) => one === this.drawn[i]);
    this.drawn = of;
    return !same;
  }
  /* `around`: a colour that separates the text from the drawing below it. */
  label(text, x, y, colour, align, around) {
    this.context.textAlign = align || "left";
    if (around) {
      this.context.strokeStyle = around;
      this.context.lineWidth = 3 * this.scale;
      this.context.lineJoin = "round";
      this.context.strokeText(text, x, y);
    }
    this.context.fillStyle = colour;
    this.context.fillText(text, x, y);
  }
  /* A line over the whole height, or of length `tick`. */
  line(x, colour, dash, tick) {
    if (x < this.left || x > this.left + this.width) return;
    this.context.strokeStyle = colour;
    this.context.lineWidth = this.scale;
    this.context.setLineDash(dash ? [4 * this.scale, 3 * this.scale] : []);
    this.context.beginPath();
    this.context.moveTo(x, 0);
    this.context.lineTo(x, tick || this.height);
    this.context.stroke();
    this.context.setLineDash([]);
  }
  /* The place of a moment, in pixels of the canvas. */
  x(view, moment) { return this.left + (moment - view.t0) / (view.t1 - view.t0) * this.width; }
  /* The axis: every event is equally wide; its label is the event's number or its time. */
  moments(recording, view, colours, axis) {
    const steps = Math.max(2, Math.floor(this.width / (110 * this.scale)));
    const step_ns = (recording.timeAt(view.t1) - recording.timeAt(Math.max(0, view.t0))) / steps;
    for (let i = 0; i <= steps; i++) {
      const moment = view.t0 + (view.t1 - view.t0) * i / steps, x = this.x(view, moment);
      const text = axis === "time" ? timeWords(recording.timeAt(Math.max(0, moment)), step_ns) : `${Math.floor(moment)}`;
      this.label(text, x, this.height + 13 * this.scale, colours.soft, i === 0 ? "left" : i === steps ? "right" : "center");
    }
    this.label(axis === "time" ? "time" : "event", this.left - 4 * this.scale, this.height + 13 * this.scale, colours.fore, "right");
  }
}

/* ---- The curve ------------------------------------------------------------------------------------------------ */

/* For each pixel, the bytes by kind at its moment with the most bytes: {sums, reserved}. */
function curveOf(recording, view, width) {
  const kinds = recording.kinds, sums = new Float64Array(width * kinds), reserved = new Float64Array(width).fill(-1);
  const best = new Float64Array(width).fill(-1), per = (view.t1 - view.t0) / width;
  const put = (x, values, at, total) => {
    if (total <= best[x]) return;
    best[x] = total;
    for (let k = 0; k < kinds; k++) sums[x * kinds + k] = values[at + k];
  };
  if (recording.ready && (recording.scope || view.t1 - view.t0 <= EXACT_MAX)) {
    exactCurve(recording, view, (first, last, values, total) => {
      const from = Math.max(0, Math.floor((first - view.t0) / per)), to = Math.min(width - 1, Math.ceil((last - view.t0) / per) - 1);
      for (let x = from, end = Math.min(width - 1, Math.max(from, to)); x <= end; x++) put(x, values, 0, total);
    });
    for (let x = 0; x < width; x++) reserved[x] = recording.reservedAt(view.t0 + (x + 1) * per - 1e-9);
  } else {
    const step = recording.meta.step_moments, { values, peaks, totals } = recording, steps = totals.length;
    for (let x = 0; x < width; x++) {
      const from = Math.max(0, Math.floor((view.t0 + x * per) / step));
      const to = Math.min(steps - 1, Math.max(from, Math.ceil((view.t0 + (x + 1) * per) / step) - 1));
      for (let i = from; i <= to; i++) {
        put(x, peaks, i * values, totals[i]);
        reserved[x] = Math.max(reserved[x], peaks[i * values + kinds]);
      }
    }
  }
  return { sums, reserved, best };
}

/* Calls put(first, last, bytes by kind, their sum) for each range of moments between two changes. */
function exactCurve(recording, view, put) {
  const begin = Math.max(0, Math.floor(view.t0)), end = Math.min(recording.end, Math.ceil(view.t1));
  const values = recording.liveAt(begin), pending = recording.kinds - 1;
  const after = (order, ends) => {
    let low = 0, high = order.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[order[middle]] > begin) high = middle; else low = middle + 1;
    }
    return low;
  };
  const { from, to, asked, freed, askedOrder, tag, scope } = recording;
  const size = scope ? (i) => scope[i] * recording.bytes[i] : (i) => recording.bytes[i];
  let a = recording.firstFrom(begin + 1), f = after(freed, to), q = after(askedOrder, asked), moment = begin;
  let total = values.reduce((sum, value) => sum + value, 0);
  for (;;) {
    const next = Math.min(a < recording.count ? from[a] : end, f < freed.length ? to[freed[f]] : end,
      q < askedOrder.length ? asked[askedOrder[q]] : end, end);
    if (next > moment) put(moment, next, values, total);
    if (next >= end) return;
    moment = next;
    for (; a < recording.count && from[a] === next; a++) {
      values[tag[a]] += size(a);
      total += size(a);
    }
    for (; q < askedOrder.length && asked[askedOrder[q]] === next; q++) {
      values[tag[askedOrder[q]]] -= size(askedOrder[q]);
      values[pending] += size(askedOrder[q]);
    }
    for (; f < freed.length && to[freed[f]] === next; f++) {
      values[asked[freed[f]] < next ? pending : tag[freed[f]]] -= size(freed[f]);
      total -= size(freed[f]);
    }
  }
}

/* Stacks the bytes of each pixel's moment by kind. */
function drawBands(pixels, width, height, curve, most, shades, back) {
  const kinds = shades.length;
  pixels.fill(back);
  for (let x = 0; x < width; x++) {
    let under = 0, low = height;
    for (let k = 0; k < kinds; k++) {
      const bytes = curve.sums[x * kinds + k];
      if (bytes <= 0) continue;
      under += bytes;
      const top = Math.max(0, Math.round(height - under / most * height));
      for (let at = top * width + x; at < low * width; at += width) pixels[at] = shades[k];
      low = Math.min(low, top);
    }
  }
}

/* A line through one value per pixel; equal values become one segment of the path. */
function plot(canvas, values, most, colour, dash) {
  const { context, left, width, height, scale } = canvas;
  context.strokeStyle = colour;
  context.lineWidth = 1.5 * scale;
  context.setLineDash(dash ? [5 * scale, 3 * scale] : []);
  context.beginPath();
  for (let x = 0; x < width; x++)
    if (x === 0 || x === width - 1 || values[x] !== values[x - 1] || values[x] !== values[x + 1])
      context.lineTo(left + x, height - Math.max(0, values[x]) / most * height);
  context.stroke();
  context.setLineDash([]);
}

function drawCurve(canvas, recording, view, state, colours) {
  canvas.more = recording.marks.length ? MARKS_FOOT : 0;
  canvas.fit();
  canvas.clear(colours);
  const { context, left, width, height, scale } = canvas, meta = recording.meta, { image, pixels } = canvas.picture();
  const others = state.compare ? state.others : [];
  if (canvas.changes(recording, recording.scope, view.t0, view.t1, colours.back, ...[recording, ...others].map((one) => one.ready))) {
    canvas.theirs = others.map((other) => {
      const moment = (m) => other.first + (m - recording.first) / (recording.end - recording.first) * (other.end - other.first);
      return curveOf(other, { t0: moment(view.t0), t1: moment(view.t1) }, width);
    });
    const curve = canvas.curve = curveOf(recording, view, width);
    let most = 1;
    for (let x = 0; x < width; x++) most = Math.max(most, curve.best[x], recording.scope ? 0 : curve.reserved[x]);
    for (const other of others) most = Math.max(most, other.meta.peak.live_bytes + other.meta.peak.pending_bytes);
    canvas.most = most * 1.08;
    drawBands(pixels, width, height, curve, canvas.most, meta.tags.map(([, hex]) => word(rgb(hex))), word(rgb(colours.back)));
  }
  const most = canvas.most;
  context.putImageData(image, left, 0);
  if (meta.has_maps && !recording.scope) plot(canvas, canvas.curve.reserved, most, colours.fore);
  canvas.theirs.forEach(({ best }, i) => plot(canvas, best, most, palette[(i * 5 + 3) % palette.length], true));
  for (let i = 0; i <= 3; i++)
    canvas.label(bytesWords(most * i / 3), left - 4 * scale, Math.max(10 * scale, height - height * i / 3), colours.soft, "right");
  canvas.moments(recording, view, colours, state.axis);
  canvas.line(canvas.x(view, meta.peak.moment + 0.5), colours.axis, true);
  drawEvents(canvas, recording, view, colours);
  const marker = canvas.x(view, meta.peak.moment + 0.5), words = `peak ${bytesWords(meta.peak.live_bytes + meta.peak.pending_bytes)}`;
  const before = marker + 4 * scale + context.measureText(words).width > left + width;
  if (marker >= left && marker <= left + width && !recording.scope)
    canvas.label(words, marker + (before ? -4 : 4) * scale, 26 * scale, colours.fore, before ? "right" : "left", colours.back);
  canvas.line(canvas.x(view, state.moment + 0.5), colours.accent);
}

const FAILURES_APART = 24; // pixels: closer ones become ticks at the top, so that the curve stays visible

function drawFailures(canvas, recording, view, colours, dash) {
  const inside = recording.refused.map((one) => canvas.x(view, one.moment + 0.5)).filter((x) => x >= canvas.left && x <= canvas.left + canvas.width);
  const dense = inside.length * FAILURES_APART * canvas.scale > canvas.width;
  let free = -1e9;
  for (const x of inside) {
    if (x - free < 2) continue;
    canvas.line(x, colours.bad, dash && !dense, dense ? 7 * canvas.scale : 0);
    free = x;
  }
}

/* Failures; annotations as ticks on the axis, and their labels below it, as far as they fit. */
function drawEvents(canvas, recording, view, colours) {
  drawFailures(canvas, recording, view, colours, false);
  drawMarks(canvas, recording, view, colours);
  let free = -1e9;
  for (const one of recording.marks) {
    const x = canvas.x(view, one.moment), words = one.label.length > MARK_LETTERS ? one.label.slice(0, MARK_LETTERS - 1) + "…" : one.label;
    const wide = canvas.context.measureText(words).width;
    if (x < canvas.left || x < free || x > canvas.left + canvas.width) continue;
    const over = Math.max(0, x + wide - canvas.left - canvas.width);
    if (x - over < free) continue;
    canvas.label(words, x - over, canvas.height + (FOOT + 8) * canvas.scale, colours.fore);
    free = x + wide + 14 * canvas.scale;
  }
}

/* A tick on the axis for each annotation, at most one per pixel. */
function drawMarks(canvas, recording, view, colours) {
  const { context, scale, height } = canvas;
  let last = -1;
  context.fillStyle = colours.fore;
  for (const one of recording.marks) {
    const x = Math.round(canvas.x(view, one.moment));
    if (x === last || x < canvas.left || x > canvas.left + canvas.width) continue;
    context.fillRect(x, height - 5 * scale, scale, 8 * scale);
    last = x;
  }
}
