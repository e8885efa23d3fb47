/* page_flame.js: the flame graph: live bytes of a moment by stack, callers above callees, as wide as their share of the bytes. */

const FLAME_ROW = 19;

function isPython(frame) { return /\.py:\d+\)$/.test(frame); }

/* "name (file:line)" with the last two parts of the path. */
function shortFrame(frame) {
  return frame.replace(/\(([^()]*\/)([^/()]+\/[^/()]+)\)$/, "($2)");
}

function flameNode(words) { return { words, bytes: 0, count: 0, below: new Map() }; }

/* The tree of some blocks: {words, bytes, count, below}. A block without a stack is below its category. */
function flameTree(recording, blocks, python) {
  const sums = new Map(), root = flameNode("all");
  for (const i of blocks) {
    const stack = recording.stack[i], key = stack || -1 - recording.tag[i], sum = sums.get(key) || { bytes: 0, count: 0 };
    sum.bytes += recording.bytes[i];
    sum.count++;
    sums.set(key, sum);
  }
  for (const [key, { bytes, count }] of sums) {
    const all = key < 0 ? [`${recording.meta.tags[-1 - key][0]}, without a stack`] : recording.stacks[key].map((n) => recording.frames[n]).reverse();
    const some = python ? all.filter(isPython) : all;
    let node = root;
    node.bytes += bytes;
    node.count += count;
    for (const frame of some.length ? some : all) {
      if (!node.below.has(frame)) node.below.set(frame, flameNode(frame));
      node = node.below.get(frame);
      node.bytes += bytes;
      node.count += count;
    }
  }
  return root;
}

/* Boxes {node, path, row, from, to} of the tree below `path`, whose nodes are as wide as the whole; from and to are parts of it. */
function flameBoxes(path, least) {
  const boxes = path.map((node, row) => ({ node, path: path.slice(0, row + 1), row, from: 0, to: 1 }));
  const all = path[path.length - 1].bytes;
  for (let at = path.length - 1; at < boxes.length; at++) {
    const box = boxes[at];
    let from = box.from;
    for (const node of [...box.node.below.values()].sort((a, b) => b.bytes - a.bytes)) {
      const to = from + node.bytes / all;
      if (to - from >= least) boxes.push({ node, path: [...box.path, node], row: box.row + 1, from, to });
      from = to;
    }
  }
  return boxes;
}

function drawFlame(canvas, flame, colours) {
  const wide = canvas.node.parentElement.clientWidth;
  flame.boxes = flameBoxes(flame.path, 0.7 / Math.max(1, wide));
  canvas.node.style.height = `${FLAME_ROW * (1 + Math.max(...flame.boxes.map((box) => box.row)))}px`;
  canvas.fit();
  canvas.clear(colours);
  const { context, scale } = canvas, width = canvas.node.width, high = FLAME_ROW * scale;
  context.textBaseline = "middle";
  for (const { node, row, from, to } of flame.boxes) {
    const x = Math.round(from * width), over = Math.max(1, Math.round(to * width) - x - scale), file = /\(([^()]*?):?\d*\)$/.exec(node.words);
    let hash = 0;
    for (const letter of file ? file[1] : node.words) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
    const shade = mix(rgb(palette[hash % palette.length]), [255, 255, 255], row < flame.path.length - 1 ? 0.75 : 0.35);
    context.fillStyle = `rgb(${shade})`;
    context.fillRect(x, row * high, over, high - scale);
    const room = Math.floor(over / (6.4 * scale)) - 1, words = shortFrame(node.words);
    if (room > 3) canvas.label(words.length > room ? words.slice(0, room - 1) + "…" : words, x + 4 * scale, row * high + high / 2, "#101418");
  }
  context.textBaseline = "alphabetic";
}

/* The box at a part of the width and a row; undefined: none. */
function flameBoxAt(flame, part, row) {
  return flame.boxes && flame.boxes.find((box) => box.row === row && box.from <= part && part < box.to);
}
