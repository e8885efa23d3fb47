/* page_map.js: the map of addresses and moments: every block of a view, or the cells made by zr if there are too many blocks. */

const BLOCKS_MAX = 150000; // in a view: more blocks are shown as cells

/* Fills pixels of [x0, x1) x [y0, y1), clipped to the picture. */
function fillPixels(pixels, width, height, x0, y0, x1, y1, colour) {
  x0 = Math.max(0, x0);
  x1 = Math.min(width, x1);
  y1 = Math.min(height, y1);
  for (let y = Math.max(0, y0); x1 > x0 && y < y1; y++) {
    const begin = y * width + x0, end = y * width + x1;
    if (end - begin > 32) pixels.fill(colour, begin, end);
    else for (let at = begin; at < end; at++) pixels[at] = colour;
  }
}

/* Converts a rectangle of moments and places to pixels. */
function boxOf(view, width, height, from, to, place, end) {
  const sx = width / (view.t1 - view.t0), sy = height / (view.y1 - view.y0);
  const x0 = Math.floor((from - view.t0) * sx), y0 = Math.floor(height - (end - view.y0) * sy);
  return { x0, x1: Math.max(x0 + 1, Math.floor((to - view.t0) * sx)), y0, y1: Math.max(y0 + 1, Math.floor(height - (place - view.y0) * sy)) };
}

function drawMap(canvas, recording, view, state, colours) {
  canvas.fit();
  canvas.clear(colours);
  const { context, left, width, height, scale } = canvas;
  if (!recording.meta.has_addresses) {
    canvas.label("This file does not say where its blocks lie: zr pack gives them places.", left, 40 * scale, colours.soft);
    return "none";
  }
  const { image } = canvas.picture();
  if (canvas.changes(recording, recording.ready, recording.scope, view.t0, view.t1, view.y0, view.y1, state.by, state.found, colours.back))
    canvas.mode = fillMap(canvas, recording, view, state, colours);
  context.putImageData(image, left, 0);
  for (let i = 0; i <= 4; i++) {
    const text = "+" + bytesWords(view.y0 + (view.y1 - view.y0) * i / 4);
    canvas.label(text, left - 4 * scale, Math.max(10 * scale, height - height * i / 4), colours.soft, "right");
  }
  canvas.moments(recording, view, colours, state.axis);
  drawMarks(canvas, recording, view, colours);
  drawFailures(canvas, recording, view, colours, true);
  canvas.line(canvas.x(view, state.moment + 0.5), colours.accent);
  if (state.block >= 0) {
    const i = state.block, box = boxOf(view, width, height, recording.from[i], recording.to[i], recording.place[i], recording.place[i] + recording.bytes[i]);
    context.strokeStyle = colours.hit;
    context.lineWidth = 2 * scale;
    context.strokeRect(left + box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0);
  }
  return canvas.mode;
}

/* Draws the picture without lines and text; returns "cells" or "blocks". */
function fillMap(canvas, recording, view, state, colours) {
  const { pixels, width, height } = canvas, free = word(rgb(colours.free));
  pixels.fill(word(rgb(colours.back)));
  for (const one of recording.mapped) {
    if (one.from >= view.t1 || one.to <= view.t0 || one.place >= view.y1 || one.end <= view.y0) continue;
    const { x0, y0, x1, y1 } = boxOf(view, width, height, one.from, one.to, one.place, one.end);
    fillPixels(pixels, width, height, x0, y0, x1, y1, free);
  }
  const most = state.by === "tag" && !state.found && !recording.scope ? BLOCKS_MAX : Infinity;
  const count = recording.ready ? recording.collect(view.t0, view.t1, most) : Infinity;
  if (count > most || !recording.ready) {
    drawCells(canvas, recording, view);
    return "cells";
  }
  drawBlocks(canvas, recording, view, state, rgb(colours.back), count);
  return "blocks";
}

/* ---- Blocks --------------------------------------------------------------------------------------------------- */

/* Four shades per colour: even blocks, odd blocks, blocks outside the search, edges. */
function shadesOf(list, back) {
  return Uint32Array.from(list.flatMap((hex) => {
    const plain = rgb(hex);
    return [plain, mix(plain, [0, 0, 0], 0.12), mix(plain, back, 0.82), mix(plain, [0, 0, 0], 0.4)].map(word);
  }));
}

/* The colour index of each block. */
function kindsOf(recording, colouring) {
  if (colouring.kinds) return colouring.kinds;
  const kinds = new Uint8Array(recording.count);
  for (let i = 0; i < kinds.length; i++) kinds[i] = colouring.of(i);
  return colouring.kinds = kinds;
}

/* Draws the first `count` results of collect(). */
function drawBlocks(canvas, recording, view, state, back, count) {
  const { from, to, place, bytes, asked, there } = recording, { pixels, width, height } = canvas, { t0, t1, y0, y1 } = view;
  const sx = width / (t1 - t0), sy = height / (y1 - y0), found = state.found, scope = recording.scope, colours = state.colouring.colours;
  const shades = shadesOf(colours, back), pending = word(rgb(recording.meta.tags[recording.kinds - 1][1])), waits = asked !== to;
  const kinds = kindsOf(recording, state.colouring);
  for (let n = 0; n < count; n++) {
    const i = there[n], begin = place[i], end = begin + bytes[i];
    if (begin >= y1 || end <= y0 || begin === end) continue;
    const left = Math.floor((from[i] - t0) * sx), right = Math.max(left + 1, Math.floor((to[i] - t0) * sx));
    const top = Math.floor(height - (end - y0) * sy), low = Math.max(top + 1, Math.floor(height - (begin - y0) * sy));
    const dim = (found !== null && found[i] === 0) || (scope !== null && scope[i] === 0), shade = 4 * kinds[i];
    fillPixels(pixels, width, height, left, top, right, low, shades[shade + (dim ? 2 : i & 1)]);
    if (dim) continue;
    if (waits && asked[i] < to[i]) {
      const freed = Math.floor((asked[i] - t0) * sx);
      fillPixels(pixels, width, height, freed, top, Math.max(freed + 1, right), low, pending);
    }
    if (right - left > 4 && low - top > 4) {
      fillPixels(pixels, width, height, left, top, right, top + 1, shades[shade + 3]);
      fillPixels(pixels, width, height, left, top, left + 1, low, shades[shade + 3]);
    }
  }
}

/* ---- Cells ---------------------------------------------------------------------------------------------------- */

/* For each of `count` pixels, the range [first, end) of its cells. */
function cellsOf(count, edge, unit, most) {
  const out = new Int32Array(2 * count);
  for (let i = 0; i < count; i++) {
    out[2 * i] = Math.max(0, Math.floor(edge(i) / unit));
    out[2 * i + 1] = Math.min(most, Math.max(out[2 * i] + 1, Math.ceil(edge(i + 1) / unit)));
  }
  return out;
}

/* For each column and line of pixels, the sum of its cells and the fullest cell. Reused while the places of the view are
 * unchanged. */
function tileOf(canvas, recording, view) {
  const { height } = canvas, { cells, meta } = recording, rows = meta.rows_count, tile = canvas.tile;
  const columns = Math.ceil(meta.moments_count / meta.column_moments);
  if (tile && tile.recording === recording && tile.y0 === view.y0 && tile.y1 === view.y1 && tile.height === height) return tile;
  const up = cellsOf(height, (i) => view.y0 + (view.y1 - view.y0) * i / height, meta.row_bytes, rows); // from the foot
  const sums = tile && tile.sums.length === columns * height ? tile.sums : new Uint16Array(columns * height);
  const fullest = sums === (tile && tile.sums) ? tile.fullest : new Uint8Array(columns * height);
  for (let c = 0; c < columns; c++)
    for (let y = 0; y < height; y++) {
      let sum = 0, best = 0;
      for (let i = c * rows + up[2 * (height - 1 - y)], end = c * rows + up[2 * (height - 1 - y) + 1]; i < end; i++) {
        const much = cells[i] & 15;
        sum += much;
        if (much > (best & 15)) best = cells[i];
      }
      sums[y * columns + c] = sum;
      fullest[y * columns + c] = best;
    }
  return canvas.tile = { recording, y0: view.y0, y1: view.y1, height, columns, up, sums, fullest };
}

/* Draws each pixel in the colour of its fullest cell, with an intensity proportional to the use. */
function drawCells(canvas, recording, view) {
  const { pixels, width, height } = canvas, { meta } = recording, { t0, t1, y0, y1 } = view;
  const { columns, up, sums, fullest } = tileOf(canvas, recording, view), colours = meta.tags.map(([, hex]) => rgb(hex));
  const across = cellsOf(width, (x) => t0 + (t1 - t0) * x / width, meta.column_moments, columns);
  const top = Math.max(0, Math.floor(height - (meta.axis_bytes - y0) / (y1 - y0) * height));
  for (let y = top; y < height; y++) {
    const line = y * columns, rows = up[2 * (height - 1 - y) + 1] - up[2 * (height - 1 - y)];
    for (let x = 0, last = -1, kind = -1, under = 0, now = 0; x < width; x++) {
      let sum = 0, best = 0;
      const begin = across[2 * x], end = across[2 * x + 1];
      for (let at = line + begin; at < line + end; at++) {
        sum += sums[at];
        if ((fullest[at] & 15) > (best & 15)) best = fullest[at];
      }
      if (sum === 0) continue;
      const full = sum / ((end - begin) * rows), at = y * width + x;
      if (full !== last || best >> 4 !== kind || pixels[at] !== under) {
        const part = Math.max(0.15, full / 15), over = colours[best >> 4];
        last = full;
        kind = best >> 4;
        under = pixels[at];
        const red = under & 255, green = under >> 8 & 255, blue = under >> 16 & 255;
        now = (255 << 24 | (blue + (over[2] - blue) * part + 0.5) << 16 | (green + (over[1] - green) * part + 0.5) << 8 |
          (red + (over[0] - red) * part + 0.5)) >>> 0;
      }
      pixels[at] = now;
    }
  }
}
