/* page.js: the page: selection, keys, wheel, fingers, tables. */

const at = (id) => document.getElementById(id);
const state = { index: 0, moment: 0, axis: "time", by: "tag", colouring: null, found: null, matches: [], block: -1, compare: false, others: [] };
const recordings = [];
let recording = null, view = null, waiting = false, lastMode = "";
const canvases = { curve: new Canvas("curve"), map: new Canvas("map"), flame: new Canvas("flame") };
const flame = { path: [], boxes: [] };

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["back", "fore", "soft", "free", "accent", "bad", "axis", "hit"].map((name) => [name, style.getPropertyValue("--" + name).trim()]));
}

function say(words, bad) {
  at("status").textContent = words;
  at("status").classList.toggle("bad", Boolean(bad));
}

function make(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

/* ---- Drawing, once a frame --------------------------------------------------------------------------------------- */

function draw() {
  waiting = false;
  if (!recording || !view) return;
  const own = colours();
  drawCurve(canvases.curve, recording, view, state, own);
  lastMode = drawMap(canvases.map, recording, view, state, own);
  if (flame.path.length) drawFlame(canvases.flame, flame, own);
}

function request() {
  if (!waiting) { waiting = true; requestAnimationFrame(draw); }
}

function whole() {
  return { t0: recording.first, t1: recording.end, y0: 0, y1: Math.max(1, recording.meta.axis_bytes) };
}

/* Limits a view to the recording. */
function setView(next) {
  const all = whole();
  for (const [low, high, least] of [["t0", "t1", 4], ["y0", "y1", 64]]) {
    let span = Math.min(all[high] - all[low], Math.max(Math.min(least, all[high] - all[low]), next[high] - next[low]));
    let begin = next[low] + (next[high] - next[low] - span) / 2;
    begin = Math.max(all[low], Math.min(all[high] - span, begin));
    next[low] = begin;
    next[high] = begin + span;
  }
  view = next;
  request();
}

function zoom(time, address, x = 0.5, y = 0.5) {
  const wide = (view.t1 - view.t0) * time, high = (view.y1 - view.y0) * address;
  const t = view.t0 + (view.t1 - view.t0) * x, p = view.y0 + (view.y1 - view.y0) * y;
  setView({ t0: t - wide * x, t1: t + wide * (1 - x), y0: p - high * y, y1: p + high * (1 - y) });
}

function pan(x, y) {
  const t = (view.t1 - view.t0) * x, p = (view.y1 - view.y0) * y;
  setView({ t0: view.t0 + t, t1: view.t1 + t, y0: view.y0 + p, y1: view.y1 + p });
}

/* ---- Text and tables --------------------------------------------------------------------------------------------- */

function blockWords(i) {
  const meta = recording.meta, to = recording.to[i];
  const life = to >= recording.end ? "to the end" : `to event ${to}`;
  const where = meta.has_addresses ? ` at ${recording.addressAt(recording.place[i])}` : "";
  const frame = recording.stack[i] ? `, ${shortFrame(recording.frameOf(recording.stack[i]))}` : "";
  return `${meta.tags[recording.tag[i]][0]} ${bytesWords(recording.bytes[i])} (${recording.requested[i]} requested)${where}, ` +
    `event ${recording.from[i]} ${life}${recording.stream[i] ? `, stream ${recording.stream[i]}` : ""}${frame}`;
}

/* Shows all frames of a block's stack, the innermost first; -1: none. */
function showStack(i) {
  const frames = i < 0 ? [] : recording.stacks[recording.stack[i]].map((n, k) => make("li", recording.frames[n], k < recording.noise[recording.stack[i]] ? "noise" : ""));
  at("stack").hidden = frames.length === 0;
  at("stack").replaceChildren(...frames);
  at("stack").scrollTop = 0;
}

/* The reasons that zr why gives, on top. */
function reasons() {
  const { meta } = recording, list = meta.reasons || [], box = at("reason");
  const row = (head, words) => {
    const line = make("p");
    line.append(make("strong", head), words);
    return line;
  };
  box.hidden = list.length === 0 && !meta.failure;
  box.classList.toggle("bad", Boolean(meta.failure));
  const refused = meta.failure && recording.refused.find((one) => one.moment === meta.failure.moment);
  const rows = [row(refused ? `${bytesWords(refused.bytes)} refused after event ${refused.moment}` : "No request was refused", list.length ? "; as zr why explains it:" : "")];
  if (list.length) rows.push(row(`reason: ${list[0].reason}: `, list[0].evidence));
  if (list.length && list[0].remedy) rows.push(row("change: ", list[0].remedy));
  const more = make("details"), frames = list.length ? list[0].stack : [];
  more.append(make("summary", list.length > 1 ? `${list.length - 1} more reason${list.length > 2 ? "s" : ""}${frames.length ? ", and the stack" : ""}` : "the stack"));
  for (const one of list.slice(1)) more.append(row(`${one.reason}: `, `${one.evidence}${one.remedy ? `; change: ${one.remedy}` : ""}`));
  if (frames.length) {
    const all = make("ol", undefined, "stack");
    all.append(...frames.map((frame) => make("li", frame)));
    more.append(all);
  }
  if (list.length > 1 || frames.length) rows.push(more);
  box.replaceChildren(...rows);
}

function blockAt(moment, place) {
  let found = -1;
  if (recording.ready && recording.meta.has_addresses)
    for (let n = recording.collect(moment, moment + 1) - 1; n >= 0; n--) {
      const i = recording.there[n];
      if (recording.place[i] <= place && place < recording.place[i] + recording.bytes[i]) found = i;
    }
  return found;
}

function momentWords(moment) {
  const meta = recording.meta, parts = [`event ${moment}`];
  if (meta.has_times) parts.push(timeWords(recording.timeAt(moment)));
  if (recording.ready) {
    const sums = recording.liveAt(moment), pending = sums[recording.kinds - 1];
    parts.push(`live ${bytesWords(sums.reduce((a, b) => a + b, 0) - pending)}`);
    if (meta.has_pending) parts.push(`pending ${bytesWords(pending)}`);
  }
  if (meta.has_maps && !recording.scope) parts.push(`reserved ${bytesWords(recording.reservedAt(moment))}`);
  const mark = recording.markAt(moment);
  if (mark) parts.push(`after '${mark.label}'`);
  const refused = recording.refused.find((one) => one.moment === moment);
  if (refused) parts.push(`an allocation of ${bytesWords(refused.bytes)} was refused here`);
  return parts.join(", ");
}

/* Paths may break behind their slashes, and nowhere inside a word. */
function breakable(words, className) {
  const cell = make("td", undefined, className);
  words.split(/(?<=\/)/).forEach((part, i) => cell.append(...(i ? [make("wbr"), part] : [part])));
  return cell;
}

/* The largest holders, one row for each call site and category, or for each size of blocks without a stack. */
function holders() {
  const table = at("holders"), groups = new Map(), blocks = at("group").value === "block";
  table.textContent = "";
  at("holders_title").textContent = `Largest holders after event ${state.moment}`;
  if (!recording.ready) return;
  const site = (i) => recording.stack[i] ? shortFrame(recording.frameOf(recording.stack[i])) : `no stack, ${bytesWords(recording.bytes[i])} each`;
  const sites = new Map(), own = (i) => { // by stack, so that a site is found once
    const key = recording.stack[i] || `of ${recording.bytes[i]}`;
    if (!sites.has(key)) sites.set(key, site(i));
    return sites.get(key);
  };
  for (const i of recording.blocksAt(state.moment)) {
    const what = own(i), key = blocks ? i : `${recording.tag[i]} ${what}`, group = groups.get(key) || { bytes: 0, count: 0, block: i, stacks: new Set(), what };
    group.bytes += recording.bytes[i];
    group.count++;
    group.stacks.add(recording.stack[i]);
    groups.set(key, group);
  }
  const head = table.createTHead().insertRow(), placed = blocks && recording.meta.has_addresses;
  for (const [text, className] of [["bytes"], ["blocks"], ["category", "name"], ...(placed ? [["address", "name"]] : []), ["what", "words"]]) head.append(make("th", text, className));
  const body = table.createTBody();
  for (const { bytes, count, block: i, stacks, what } of [...groups.values()].sort((a, b) => b.bytes - a.bytes).slice(0, 25)) {
    const row = body.insertRow();
    row.className = "pick";
    row.append(make("td", bytesWords(bytes)), make("td", count), make("td", recording.meta.tags[recording.tag[i]][0], "name"));
    if (placed) row.append(make("td", recording.addressAt(recording.place[i]), "name"));
    row.append(breakable(what + (stacks.size > 1 ? `, ${stacks.size} stacks` : ""), "words"));
    row.onclick = () => choose(i, false);
  }
}

/* The flame graph of the chosen moment. */
function grow() {
  at("flame_title").textContent = `Flame graph of live bytes after event ${state.moment}`;
  if (!recording.ready) return;
  at("python_label").hidden = !recording.frames.some(isPython);
  flame.path = [flameTree(recording, recording.blocksAt(state.moment), at("python").checked && !at("python_label").hidden)];
  flame.path[0].words = `all live blocks: ${bytesWords(flame.path[0].bytes)}`;
  sayFlame(flame.path[0]);
  request();
}

function sayFlame(node) {
  const all = flame.path[0].bytes;
  at("flame_words").textContent = node === flame.path[0] ? "" : `${node.words}: ${bytesWords(node.bytes)}, ${(100 * node.bytes / Math.max(1, all)).toFixed(1)} % of live bytes, ${node.count} block${node.count === 1 ? "" : "s"}`;
}

function figures() {
  const table = at("figures"), several = recordings.filter((one) => one.meta);
  table.textContent = "";
  const row = (name, cells, title) => {
    const line = table.insertRow();
    line.append(make(title ? "th" : "td", name, "name"));
    for (const text of cells) line.append(make(title ? "th" : "td", text));
  };
  const show = (meta, moments) => {
    row(several.length > 1 ? meta.name : "", moments, true);
    const rows = [["live", "live_bytes", true], ["requested", "requested_bytes", true], ["rounding", "internal_bytes", true],
      ["pending", "pending_bytes", meta.has_pending], ["reserved", "reserved_bytes", meta.has_maps],
      ["releasable", "releasable_bytes", meta.has_maps], ["stranded", "stranded_bytes", meta.has_maps]];
    for (const [name, key, known] of rows) row(name, moments.map((moment) => known ? bytesWords(meta[moment][key]) : "-"));
    row("event", moments.map((moment) => meta[moment].moment));
    if (!meta.has_maps) return;
    const ratio = (moment) => moment.reserved_bytes ? `${(100 * moment.stranded_bytes / moment.reserved_bytes).toFixed(1)} %` : "0";
    row("stranded of reserved", moments.map((moment) => ratio(meta[moment])));
    row("the same over time", [`${(100 * meta.stranded_time_weighted).toFixed(1)} %`]);
    row("1 - peak live / peak reserved", [`${(100 * meta.gmlake_ratio).toFixed(1)} %`]);
    for (const [bytes, part] of meta.unusable) row(`free in runs below ${bytesWords(bytes)}`, [`${(100 * part).toFixed(0)} %`]);
  };
  for (const one of several) show(one.meta, one.meta.failure ? ["now", "peak", "failure"] : ["now", "peak"]);
}

function legend() {
  const list = state.colouring.legend || recording.meta.tags.filter((_, i) => i === recording.kinds - 1 ? recording.meta.has_pending : used(i));
  const own = colours(), all = [...list, ...(recording.meta.has_maps ? [["free", own.free], ["reserved (line)", own.fore]] : [])];
  if (recording.refused.length) all.push(["refused", own.bad]);
  at("legend").replaceChildren(...all.map(([words, colour]) => {
    const item = make("span"), box = make("i");
    box.style.background = colour;
    item.append(box, words);
    return item;
  }));
}

function used(tag) {
  for (let i = tag; i < recording.peaks.length; i += recording.values) if (recording.peaks[i] > 0) return true;
  return false;
}

/* ---- Selection --------------------------------------------------------------------------------------------------- */

let later = 0;
function setMoment(moment) {
  state.moment = Math.max(0, Math.min(recording.end - 1, Math.floor(moment)));
  at("under").textContent = momentWords(state.moment);
  clearTimeout(later);
  later = setTimeout(() => { listSegments(); holders(); grow(); }, 30);
  request();
}

/* Selects a block: outlines and describes it, and with `near` scrolls to it. */
function choose(i, near) {
  state.block = i;
  if (near) {
    const life = Math.max(8, recording.to[i] - recording.from[i]), bytes = Math.max(64, recording.bytes[i]);
    setView({ t0: recording.from[i] - life, t1: recording.to[i] + life, y0: recording.place[i] - 3 * bytes, y1: recording.place[i] + 4 * bytes });
  }
  if (recording.from[i] > state.moment || recording.to[i] <= state.moment) setMoment(recording.from[i]);
  at("under").textContent = momentWords(state.moment) + "\n" + blockWords(i);
  showStack(i);
  request();
}

/* ---- Pools and segments ------------------------------------------------------------------------------------------ */

const SEGMENTS_MAX = 2000;

function options(id, list) {
  at(id).replaceChildren(...list.map(([value, words]) => {
    const option = make("option", words);
    option.value = value;
    return option;
  }));
}

function listPools() {
  options("pool", [[-1, "all pools"], ...recording.pools.map((pool, i) => [i, recording.poolWords(pool)])]);
  at("pool").hidden = recording.pools.length < 2;
  at("segment").replaceChildren();
  recording.setScope(-1, null);
}

/* The segments of the chosen pool and moment; the chosen one stays, if it is still there. */
function listSegments() {
  const chosen = at("segment").value, all = recording.ready ? recording.segmentsAt(state.moment, Number(at("pool").value)) : [];
  const rows = all.slice(0, SEGMENTS_MAX).map((one) => [`${one.place} ${one.end}`, `${recording.addressAt(one.place)}, ${bytesWords(one.end - one.place)}`]);
  options("segment", [["", `all ${all.length} segments`], ...rows]);
  at("segment").value = rows.some(([value]) => value === chosen) ? chosen : "";
  at("segment").hidden = all.length < 2;
  if (at("segment").value !== chosen) limit(false);
}

/* Shows only what is in the chosen pool and segment; with `near` in full height. */
function limit(near) {
  const [place, end] = at("segment").value.split(" ").map(Number), segment = at("segment").value ? { place, end } : null;
  recording.setScope(Number(at("pool").value), segment);
  if (near) setView({ ...view, ...(segment ? { y0: place, y1: end } : { y0: 0, y1: whole().y1 }) });
  at("under").textContent = momentWords(state.moment);
  holders();
  grow();
}

function search() {
  const words = at("search").value, test = recording.ready ? recording.search(words) : null;
  state.found = null;
  state.matches = [];
  if (test) {
    let bytes = 0;
    state.found = new Uint8Array(recording.count);
    for (let i = 0; i < recording.count; i++)
      if (test(i)) { state.found[i] = 1; state.matches.push(i); bytes = Math.max(bytes, recording.bytes[i]); }
    say(`${state.matches.length} of ${recording.count} blocks match, the largest of ${bytesWords(bytes)}; n goes to the next`);
  } else {
    introduce();
  }
  request();
}

function step(by) {
  const count = state.matches.length;
  if (!count) return;
  const now = state.matches.indexOf(state.block);
  choose(state.matches[((now < 0 ? (by > 0 ? -1 : 0) : now) + by + count) % count], true);
}

function introduce() {
  const meta = recording.meta;
  say(`${meta.name}: ${meta.format}, ${meta.moments_count - 1} events, ${meta.allocations_count} allocations` +
    (meta.before_count ? `, ${meta.before_count} events make what was there before` : "") +
    (meta.refused_count ? `, ${meta.refused_count} refused` : "") + (meta.cut_short ? "; the file is cut short" : ""));
}

function setColours(by) {
  state.by = at("colour").value = by;
  state.colouring = colouring(recording, by);
  legend();
  request();
}

/* Recordings of one file are its devices. */
function listDevices() {
  const own = recordings.map((one, i) => [i, one]).filter(([, one]) => one.meta && one.meta.name === recording.meta.name);
  options("device", own.map(([i, one]) => [i, `device ${one.meta.device}`]));
  at("device").value = state.index;
  at("device").hidden = own.length < 2;
}

async function show(index) {
  if (!recordings[index]) return;
  state.index = index;
  recording = recordings[index];
  if (!recording.meta) await recording.readFirst();
  if (state.index !== index) return;
  state.block = -1;
  state.found = null;
  showStack(-1);
  listPools();
  listDevices();
  at("axis").hidden = !recording.meta.has_times || !recording.meta.now.time_ns;
  state.axis = at("axis").hidden ? "events" : at("axis").value;
  state.others = recordings.filter((one) => one !== recording && one.meta);
  [...at("files").children].forEach((button) => button.setAttribute("aria-pressed", String(button.title === recording.meta.name)));
  setView(whole());
  const tags = recording.meta.tags.filter((_, i) => i < recording.kinds - 1 && used(i)).length;
  setColours(tags > 1 || !recording.meta.has_addresses ? "tag" : recording.stacks.length > 2 ? "stack" : "tag");
  setMoment(recording.meta.failure ? recording.meta.failure.moment : recording.meta.peak.moment);
  introduce();
  reasons();
  figures();
  await new Promise((go) => setTimeout(go)); // lets the browser paint first
  if (!recording.ready && !recording.reading) recording.reading = recording.readBlocks();
  await recording.reading;
  if (state.index !== index) return;
  setMoment(state.moment);
  search();
}

/* ---- Theme, keys, pointers --------------------------------------------------------------------------------------- */

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = false;
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "light" : "dark";
  if (recording && recording.meta) legend();
  request();
}
dark.addEventListener("change", () => { if (!chosen) setTheme(dark.matches ? "dark" : "light"); });
function turnTheme() { chosen = true; setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }

function compare() {
  state.compare = !state.compare;
  at("compare").setAttribute("aria-pressed", String(state.compare));
  request();
}

const keys = {
  ArrowLeft: (far) => pan(far ? -1 : -0.1, 0), ArrowRight: (far) => pan(far ? 1 : 0.1, 0),
  ArrowUp: (far) => pan(0, far ? 1 : 0.1), ArrowDown: (far) => pan(0, far ? -1 : -0.1),
  "+": () => zoom(0.7, 1), "=": () => zoom(0.7, 1), "-": () => zoom(1 / 0.7, 1), "]": () => zoom(1, 0.7), "[": () => zoom(1, 1 / 0.7),
  Home: () => setView(whole()), ",": () => setMoment(state.moment - 1), ".": () => setMoment(state.moment + 1),
  p: () => setMoment(recording.meta.peak.moment), e: () => setMoment(recording.end - 1),
  f: () => recording.meta.failure && setMoment(recording.meta.failure.moment),
  "/": () => at("search").focus(), n: () => step(1), N: () => step(-1), d: turnTheme, o: compare, "?": () => at("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = /INPUT|SELECT/.test(event.target.tagName);
  if (event.key === "Escape" && typing) { at("search").value = ""; search(); event.target.blur(); return; }
  if (event.key === "Enter" && event.target === at("search")) { step(1); event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || at("help").open || !view) return;
  const run = keys[event.key] || (/^[1-9]$/.test(event.key) && at("files").children[event.key - 1] ? () => at("files").children[event.key - 1].click() : null);
  if (run) { event.preventDefault(); run(event.shiftKey); }
});

/* For fingers and the mouse: one pointer moves, two zoom, a tap selects. */
function listen(canvas, isMap) {
  const down = new Map();
  let moved = 0, before = null;
  const place = (event) => {
    const box = canvas.node.getBoundingClientRect(), scale = canvas.scale || 1;
    return { x: ((event.clientX - box.left - 1) * scale - canvas.left) / canvas.width, y: 1 - (event.clientY - box.top - 1) * scale / canvas.height };
  };
  const spread = () => {
    const [a, b] = [...down.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, wide: Math.max(0.02, Math.abs(a.x - b.x)), high: Math.max(0.02, Math.abs(a.y - b.y)) };
  };
  const moments = ({ x }) => Math.floor(view.t0 + (view.t1 - view.t0) * x);
  const places = ({ y }) => view.y0 + (view.y1 - view.y0) * y;
  canvas.node.addEventListener("pointerdown", (event) => {
    if (!view) return;
    canvas.node.setPointerCapture(event.pointerId);
    down.set(event.pointerId, place(event));
    if (down.size === 1) moved = 0;
    before = down.size === 2 ? spread() : null;
  });
  canvas.node.addEventListener("pointermove", (event) => {
    if (!view) return;
    const here = place(event), last = down.get(event.pointerId);
    if (!last) {
      const i = isMap ? blockAt(moments(here), places(here)) : -1;
      at("under").textContent = momentWords(Math.max(0, Math.min(recording.end - 1, moments(here)))) + (i < 0 ? "" : "\n" + blockWords(i));
      return;
    }
    moved += Math.abs(here.x - last.x) + Math.abs(here.y - last.y);
    down.set(event.pointerId, here);
    if (down.size === 1 && moved > 0.008) pan(last.x - here.x, isMap ? last.y - here.y : 0);
    if (down.size === 2 && before) {
      const now = spread();
      pan(before.x - now.x, isMap ? before.y - now.y : 0);
      const wide = now.wide > 0.1 || before.wide > 0.1, high = isMap && (now.high > 0.1 || before.high > 0.1);
      zoom(wide ? before.wide / now.wide : 1, high ? before.high / now.high : 1, now.x, now.y);
      before = now;
    }
  });
  const up = (event) => {
    const here = down.get(event.pointerId);
    down.delete(event.pointerId);
    before = null;
    if (!here || event.type === "pointercancel" || moved > 0.008) return;
    const i = isMap ? blockAt(moments(here), places(here)) : -1;
    state.block = -1;
    showStack(-1);
    setMoment(moments(here));
    if (i >= 0) choose(i, false);
  };
  canvas.node.addEventListener("pointerup", up);
  canvas.node.addEventListener("pointercancel", up);
  canvas.node.addEventListener("wheel", (event) => {
    if (!view) return;
    event.preventDefault();
    const by = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) * 0.002))), here = place(event);
    if (event.shiftKey) zoom(1, by, here.x, here.y);
    else zoom(by, 1, here.x, here.y);
  }, { passive: false });
}

/* The flame graph: what is pointed at is described; a click makes it as wide as the whole. */
function listenFlame(node) {
  const boxAt = (event) => {
    const box = node.getBoundingClientRect();
    return flameBoxAt(flame, (event.clientX - box.left) / box.width, Math.floor((event.clientY - box.top) / FLAME_ROW));
  };
  node.addEventListener("pointermove", (event) => {
    const box = boxAt(event);
    if (box) sayFlame(box.node);
  });
  node.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (!box) return;
    flame.path = box.path;
    sayFlame(box.node);
    request();
  });
}

/* ---- Start ------------------------------------------------------------------------------------------------------- */

async function start() {
  setTheme(dark.matches ? "dark" : "light");
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the data: it lacks DecompressionStream");
  for (let i = 0; element(i, "meta"); i++) recordings.push(new Recording(i));
  await Promise.all(recordings.map((one) => one.readFirst()));
  const names = new Set(recordings.map((one) => one.meta.name));
  recordings.forEach((one, i) => {
    if (names.size < 2 || recordings.findIndex((other) => other.meta.name === one.meta.name) !== i) return;
    const button = make("button", one.meta.name.split("/").pop());
    button.title = one.meta.name;
    button.onclick = () => show(i);
    at("files").append(button);
  });
  at("compare").hidden = names.size < 2;
  document.title = `zr report: ${[...names].map((name) => name.split("/").pop()).join(", ")}`;
  at("search").addEventListener("input", () => { clearTimeout(search.later); search.later = setTimeout(search, 150); });
  at("colour").onchange = () => setColours(at("colour").value);
  at("group").onchange = holders;
  at("python").onchange = grow;
  at("device").onchange = () => show(Number(at("device").value));
  at("pool").onchange = () => { at("segment").value = ""; limit(true); listSegments(); };
  at("segment").onchange = () => limit(true);
  at("axis").onchange = () => { state.axis = at("axis").value; request(); };
  at("compare").onclick = compare;
  at("home").onclick = () => setView(whole());
  at("theme").onclick = turnTheme;
  at("keys").onclick = () => at("help").showModal();
  listen(canvases.curve, false);
  listen(canvases.map, true);
  listenFlame(canvases.flame.node);
  new ResizeObserver(request).observe(at("map"));
  await show(0);
}

/* For tests: the middle of a block in window coordinates. */
function middleOf(i) {
  const box = canvases.map.node.getBoundingClientRect(), map = canvases.map;
  const from = Math.max(view.t0, recording.from[i]), to = Math.min(view.t1, recording.to[i]);
  const low = Math.max(view.y0, recording.place[i]), high = Math.min(view.y1, recording.place[i] + recording.bytes[i]);
  return { x: box.left + 1 + (map.left + ((from + to) / 2 - view.t0) / (view.t1 - view.t0) * map.width) / map.scale,
    y: box.top + 1 + (1 - ((low + high) / 2 - view.y0) / (view.y1 - view.y0)) * map.height / map.scale };
}

const ready = start().then(() => "ready", (error) => { say(String(error.message || error), true); return String(error); });
