/* page_draw.js: the two canvases. What is drawn is a function of a view: {t0, t1} moments, {y0, y1} places. */

const BLOCKS_MOST = 150000; // in a view: beyond that the cells made by zr are shown
const EXACT_MOST = 100000;  // moments in a view: beyond that the steps of the curves
const MARGIN = 58, FOOT = 18;

const palette = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7", "#9c755f", "#8cd17d", "#499894",
  "#d37295", "#6b8fc9", "#b6992d"];

function rgb(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }
function word(parts) { return (255 << 24 | parts[2] << 16 | parts[1] << 8 | parts[0]) >>> 0; }
function mix(from, to, part) { return from.map((value, i) => Math.round(value + (to[i] - value) * part)); }

function bytesWords(bytes) {
  let unit = 0;
  for (; Math.abs(bytes) >= 1024 && unit < 6; unit++) bytes /= 1024;
  return `${unit && Math.abs(bytes) < 100 ? bytes.toPrecision(3) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit]}`;
}

/* A time; with `step_ns`, as exact as neighbours so far apart need it. */
function timeWords(ns, step_ns = Infinity) {
  const [unit, name, digits] = ns < 1e6 ? [1e3, "µs", 1] : ns < 1e9 ? [1e6, "ms", 1] : [1e9, "s", 2];
  const needed = step_ns > 0 && step_ns < Infinity ? Math.ceil(Math.log10(unit / step_ns)) : 0;
  return `${(ns / unit).toFixed(Math.max(digits, Math.min(9, needed)))} ${name}`;
}

/* Colours of blocks: the number of one, and a list of [words, colour] for the legend. */
function colouring(recording, by) {
  const meta = recording.meta;
  const hashed = (number) => palette[(number * 2654435761 >>> 0) % palette.length];
  if (by === "stack") return { of: (i) => hashed(recording.stack[i]), legend: [["a colour for each stack", palette[0]]] };
  if (by === "stream") return { of: (i) => hashed(recording.stream[i]), legend: [["a colour for each stream", palette[0]]] };
  if (by === "size")
    return { of: (i) => palette[Math.min(13, Math.max(0, Math.floor(Math.log2(recording.bytes[i] + 1) / 2) - 4))],
      legend: palette.map((colour, i) => [i ? `from ${bytesWords(4 ** (i + 4))}` : "less", colour]) };
  return { of: (i) => meta.tags[recording.tag[i]][1], legend: null };
}

class Canvas {
  constructor(id) {
    this.node = document.getElementById(id);
    this.context = this.node.getContext("2d");
  }
  /* Fits the canvas to its place on the screen. */
  fit() {
    const scale = Math.min(window.devicePixelRatio || 1, 2), box = this.node.getBoundingClientRect();
    const width = Math.max(1, Math.round((box.width - 2) * scale)), height = Math.max(1, Math.round((box.height - 2) * scale));
    if (this.node.width !== width || this.node.height !== height) { this.node.width = width; this.node.height = height; }
    this.scale = scale;
    this.left = Math.round(MARGIN * scale);
    this.width = Math.max(1, width - this.left);
    this.height = Math.max(1, height - Math.round(FOOT * scale));
    this.context.font = `${11 * scale}px system-ui, sans-serif`;
  }
  clear(colours) {
    this.context.fillStyle = colours.back;
    this.context.fillRect(0, 0, this.node.width, this.node.height);
  }
  /* `around`: a colour that keeps the words apart from what is drawn below them. */
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
  /* A line over the whole height, or a `tick` that is so long. */
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
  moments(recording, view, colours) {
    const steps = Math.max(2, Math.floor(this.width / (110 * this.scale)));
    const step_ns = (recording.timeAt(view.t1) - recording.timeAt(Math.max(0, view.t0))) / steps;
    for (let i = 0; i <= steps; i++) {
      const moment = view.t0 + (view.t1 - view.t0) * i / steps, x = this.x(view, moment);
      const text = recording.meta.has_times && recording.meta.now.time_ns ? timeWords(recording.timeAt(Math.max(0, moment)), step_ns)
        : `${Math.floor(moment)}`;
      this.label(text, x, this.height + 13 * this.scale, colours.soft, i === 0 ? "left" : i === steps ? "right" : "center");
    }
  }
}

/* ---- The curve ------------------------------------------------------------------------------------------------ */

/* For each pixel the bytes by kind at the moment when they were the most: {sums, reserved}. */
function curveOf(recording, view, width) {
  const kinds = recording.kinds, sums = new Float64Array(width * kinds), reserved = new Float64Array(width).fill(-1);
  const best = new Float64Array(width).fill(-1), per = (view.t1 - view.t0) / width;
  const put = (x, values, at, total) => {
    if (x < 0 || x >= width || total <= best[x]) return;
    best[x] = total;
    for (let k = 0; k < kinds; k++) sums[x * kinds + k] = values[at + k];
  };
  const total = (values, at) => { let sum = 0; for (let k = 0; k < kinds; k++) sum += values[at + k]; return sum; };
  if (recording.ready && view.t1 - view.t0 <= EXACT_MOST) {
    exactCurve(recording, view, (first, last, values) => {
      const from = Math.max(0, Math.floor((first - view.t0) / per)), to = Math.min(width - 1, Math.ceil((last - view.t0) / per) - 1);
      const sum = total(values, 0);
      for (let x = from; x <= Math.max(from, to); x++) put(x, values, 0, sum);
    });
    for (let x = 0; x < width; x++) reserved[x] = recording.reservedAt(view.t0 + (x + 1) * per - 1e-9);
  } else {
    const step = recording.meta.step_moments, values = recording.values, steps = recording.peaks.length / values;
    for (let x = 0; x < width; x++) {
      const from = Math.max(0, Math.floor((view.t0 + x * per) / step));
      const to = Math.min(steps - 1, Math.max(from, Math.ceil((view.t0 + (x + 1) * per) / step) - 1));
      for (let i = from; i <= to; i++) {
        put(x, recording.peaks, i * values, total(recording.peaks, i * values));
        reserved[x] = Math.max(reserved[x], recording.peaks[i * values + kinds]);
      }
    }
  }
  return { sums, reserved, best };
}

/* Calls put(first, last, bytes by kind) for each stretch of moments between two changes. */
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
  const { from, to, asked, freed, askedOrder, tag, bytes } = recording;
  let a = recording.firstFrom(begin + 1), f = after(freed, to), q = after(askedOrder, asked), moment = begin;
  for (;;) {
    const next = Math.min(a < recording.count ? from[a] : end, f < freed.length ? to[freed[f]] : end,
      q < askedOrder.length ? asked[askedOrder[q]] : end, end);
    if (next > moment) put(moment, next, values);
    if (next >= end) return;
    moment = next;
    for (; a < recording.count && from[a] === next; a++) values[tag[a]] += bytes[a];
    for (; q < askedOrder.length && asked[askedOrder[q]] === next; q++) {
      values[tag[askedOrder[q]]] -= bytes[askedOrder[q]];
      values[pending] += bytes[askedOrder[q]];
    }
    for (; f < freed.length && to[freed[f]] === next; f++) values[asked[freed[f]] < next ? pending : tag[freed[f]]] -= bytes[freed[f]];
  }
}

function drawCurve(canvas, recording, view, state, colours) {
  canvas.fit();
  canvas.clear(colours);
  const { context, left, width, height, scale } = canvas, meta = recording.meta, kinds = recording.kinds;
  const curve = curveOf(recording, view, width), others = state.compare ? state.others : [];
  let most = 1;
  for (let x = 0; x < width; x++) most = Math.max(most, curve.best[x], curve.reserved[x]);
  for (const other of others) most = Math.max(most, other.meta.peak.live_bytes + other.meta.peak.pending_bytes);
  most *= 1.08;
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  const shades = meta.tags.map(([, hex]) => word(rgb(hex)));
  pixels.fill(word(rgb(colours.back)));
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
  context.putImageData(image, left, 0);
  const plot = (colour, bytesAt, dash) => {
    context.strokeStyle = colour;
    context.lineWidth = 1.5 * scale;
    context.setLineDash(dash ? [5 * scale, 3 * scale] : []);
    context.beginPath();
    for (let x = 0; x < width; x++) context.lineTo(left + x, height - bytesAt(x) / most * height);
    context.stroke();
    context.setLineDash([]);
  };
  if (meta.has_maps) plot(colours.fore, (x) => Math.max(0, curve.reserved[x]));
  others.forEach((other, i) => {
    const moment = (m) => other.first + (m - recording.first) / (recording.end - recording.first) * (other.end - other.first);
    const theirs = curveOf(other, { t0: moment(view.t0), t1: moment(view.t1) }, width);
    plot(palette[(i * 5 + 3) % palette.length], (x) => Math.max(0, theirs.best[x]), true);
  });
  for (let i = 0; i <= 3; i++)
    canvas.label(bytesWords(most * i / 3), left - 4 * scale, Math.max(10 * scale, height - height * i / 3), colours.soft, "right");
  canvas.moments(recording, view, colours);
  canvas.line(canvas.x(view, meta.peak.moment + 0.5), colours.axis, true);
  drawEvents(canvas, recording, view, colours);
  const marker = canvas.x(view, meta.peak.moment + 0.5), words = `peak ${bytesWords(meta.peak.live_bytes + meta.peak.pending_bytes)}`;
  const before = marker + 4 * scale + context.measureText(words).width > left + width;
  if (marker >= left && marker <= left + width)
    canvas.label(words, marker + (before ? -4 : 4) * scale, 26 * scale, colours.fore, before ? "right" : "left", colours.back);
  canvas.line(canvas.x(view, state.moment + 0.5), colours.accent);
}

const FAILURES_APART = 24; // pixels: closer ones are ticks at the top, or they would hide all else

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

/* Failures and marks, as far as there is room. */
function drawEvents(canvas, recording, view, colours) {
  drawFailures(canvas, recording, view, colours, false);
  let free = -1e9;
  for (const one of recording.marks) {
    const x = canvas.x(view, one.moment), wide = canvas.context.measureText("▾" + one.label).width;
    if (x < canvas.left || x < free || x + wide > canvas.left + canvas.width) continue;
    canvas.label("▾" + one.label, x, canvas.height - 4 * canvas.scale, colours.fore, "left", colours.back);
    free = x + wide + 24 * canvas.scale;
  }
}

/* ---- The map -------------------------------------------------------------------------------------------------- */

/* Fills pixels of [x0, x1) x [y0, y1), cut to the picture. */
function fillPixels(pixels, width, height, box, colour) {
  const x0 = Math.max(0, box.x0), x1 = Math.min(width, box.x1), y1 = Math.min(height, box.y1);
  for (let y = Math.max(0, box.y0); x1 > x0 && y < y1; y++) pixels.fill(colour, y * width + x0, y * width + x1);
}

function boxOf(view, width, height, from, to, place, end) {
  const sx = width / (view.t1 - view.t0), sy = height / (view.y1 - view.y0);
  const x0 = Math.floor((from - view.t0) * sx), y0 = Math.floor(height - (end - view.y0) * sy);
  return { x0, x1: Math.max(x0 + 1, Math.floor((to - view.t0) * sx)), y0, y1: Math.max(y0 + 1, Math.floor(height - (place - view.y0) * sy)) };
}

function drawMap(canvas, recording, view, state, colours) {
  canvas.fit();
  canvas.clear(colours);
  const { context, left, width, height, scale } = canvas, meta = recording.meta;
  if (!meta.has_addresses) {
    canvas.label("This file does not say where its blocks lie: zr pack gives them places.", left, 40 * scale, colours.soft);
    return "none";
  }
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  pixels.fill(word(rgb(colours.back)));
  const free = word(rgb(colours.free));
  for (const one of recording.mapped)
    if (one.from < view.t1 && one.to > view.t0 && one.place < view.y1 && one.end > view.y0)
      fillPixels(pixels, width, height, boxOf(view, width, height, one.from, one.to, one.place, one.end), free);
  const cells = !recording.ready || (state.by === "tag" && !state.found && recording.count > BLOCKS_MOST &&
    recording.exceeds(view.t0, view.t1, BLOCKS_MOST));
  if (cells) drawCells(pixels, width, height, recording, view);
  else drawBlocks(pixels, width, height, recording, view, state, colours);
  context.putImageData(image, left, 0);
  for (let i = 0; i <= 4; i++) {
    const text = "+" + bytesWords(view.y0 + (view.y1 - view.y0) * i / 4);
    canvas.label(text, left - 4 * scale, Math.max(10 * scale, height - height * i / 4), colours.soft, "right");
  }
  canvas.moments(recording, view, colours);
  drawFailures(canvas, recording, view, colours, true);
  canvas.line(canvas.x(view, state.moment + 0.5), colours.accent);
  if (state.block >= 0) {
    const i = state.block, box = boxOf(view, width, height, recording.from[i], recording.to[i], recording.place[i], recording.place[i] + recording.bytes[i]);
    context.strokeStyle = colours.hit;
    context.lineWidth = 2 * scale;
    context.strokeRect(left + box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0);
  }
  return cells ? "cells" : "blocks";
}

function drawBlocks(pixels, width, height, recording, view, state, colours) {
  const { from, to, place, bytes, asked } = recording, kinds = new Map(), back = rgb(colours.back);
  const colourOf = state.colouring.of, pending = word(rgb(recording.meta.tags[recording.kinds - 1][1]));
  const shades = (hex) => {
    let known = kinds.get(hex);
    if (!known) {
      const plain = rgb(hex), dim = mix(plain, back, 0.82);
      kinds.set(hex, known = [word(plain), word(mix(plain, [0, 0, 0], 0.12)), word(dim), word(mix(plain, [0, 0, 0], 0.4))]);
    }
    return known;
  };
  recording.each(view.t0, view.t1, (i) => {
    const end = place[i] + bytes[i];
    if (place[i] >= view.y1 || end <= view.y0 || bytes[i] === 0) return;
    const known = shades(colourOf(i)), box = boxOf(view, width, height, from[i], to[i], place[i], end);
    const dim = state.found && !state.found[i];
    fillPixels(pixels, width, height, box, dim ? known[2] : known[i & 1]);
    if (asked[i] < to[i] && !dim)
      fillPixels(pixels, width, height, boxOf(view, width, height, asked[i], to[i], place[i], end), pending);
    if (!dim && box.x1 - box.x0 > 4 && box.y1 - box.y0 > 4) {
      fillPixels(pixels, width, height, { ...box, y1: box.y0 + 1 }, known[3]);
      fillPixels(pixels, width, height, { ...box, x1: box.x0 + 1 }, known[3]);
    }
  });
}

function drawCells(pixels, width, height, recording, view) {
  const meta = recording.meta, rows = meta.rows_count, columns = Math.ceil(meta.moments_count / meta.column_moments);
  const colours = meta.tags.map(([, hex]) => rgb(hex));
  const range = (begin, end, unit, most) => {
    const low = Math.max(0, Math.floor(begin / unit)), high = Math.min(most, Math.max(low + 1, Math.ceil(end / unit)));
    return [low, high];
  };
  const across = Array.from({ length: width }, (_, x) => range(view.t0 + (view.t1 - view.t0) * x / width,
    view.t0 + (view.t1 - view.t0) * (x + 1) / width, meta.column_moments, columns));
  const up = Array.from({ length: height }, (_, y) => range(view.y0 + (view.y1 - view.y0) * (height - y - 1) / height,
    view.y0 + (view.y1 - view.y0) * (height - y) / height, meta.row_bytes, rows));
  const [first, last] = [view.y1, view.y0].map((place) => Math.floor(height - (place - view.y0) / (view.y1 - view.y0) * height));
  const top = Math.max(first, Math.floor(height - (meta.axis_bytes - view.y0) / (view.y1 - view.y0) * height), 0);
  const cells = recording.cells;
  for (let x = 0; x < width; x++) {
    const [column0, column1] = across[x];
    for (let y = top; y < Math.min(last, height); y++) {
      const [row0, row1] = up[y];
      let sum = 0, count = 0, best = 0, kind = 0;
      for (let c = column0; c < column1; c++)
        for (let i = c * rows + row0, end = c * rows + row1; i < end; i++) {
          const much = cells[i] & 15;
          count++;
          sum += much;
          if (much > best) { best = much; kind = cells[i] >> 4; }
        }
      if (sum === 0) continue;
      const part = Math.max(0.15, sum / count / 15), at = y * width + x, under = pixels[at], over = colours[kind];
      const red = under & 255, green = under >> 8 & 255, blue = under >> 16 & 255;
      pixels[at] = (255 << 24 | (blue + (over[2] - blue) * part + 0.5) << 16 | (green + (over[1] - green) * part + 0.5) << 8 |
        (red + (over[0] - red) * part + 0.5)) >>> 0;
    }
  }
}
