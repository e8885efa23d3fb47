/* page.js: the page: selection, keys, wheel, fingers, tables. */

const at = (id) => document.getElementById(id);
const state = { index: 0, moment: 0, by: "tag", colouring: null, found: null, matches: [], block: -1, compare: false, others: [] };
const recordings = [];
let recording = null, view = null, waiting = false, lastMode = "";
const canvases = { curve: new Canvas("curve"), map: new Canvas("map") };

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
  const frames = recording.stacks[recording.stack[i]].slice(0, 8).map((n) => "\n  " + recording.frames[n]).join("");
  return `${meta.tags[recording.tag[i]][0]} ${bytesWords(recording.bytes[i])} (${recording.requested[i]} asked for)${where}, ` +
    `event ${recording.from[i]} ${life}${recording.stream[i] ? `, stream ${recording.stream[i]}` : ""}${frames}`;
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
  if (meta.has_maps) parts.push(`reserved ${bytesWords(recording.reservedAt(moment))}`);
  const refused = recording.refused.find((one) => one.moment === moment);
  if (refused) parts.push(`an allocation of ${bytesWords(refused.bytes)} was refused here`);
  return parts.join(", ");
}

function holders() {
  const table = at("holders"), groups = new Map(), blocks = at("group").value === "block";
  table.textContent = "";
  at("holders_title").textContent = `Largest holders after event ${state.moment}`;
  if (!recording.ready) return;
  for (let n = 0, count = recording.collect(state.moment, state.moment + 1); n < count; n++) {
    const i = recording.there[n];
    const stack = recording.stack[i];
    const key = blocks ? i : stack ? `${recording.tag[i]} ${stack}` : `${recording.tag[i]} of ${recording.bytes[i]}`;
    const group = groups.get(key) || { bytes: 0, count: 0, block: i };
    group.bytes += recording.bytes[i];
    group.count++;
    groups.set(key, group);
  }
  const head = table.createTHead().insertRow();
  for (const [text, className] of [["bytes"], ["blocks"], ["tag", "words"], [blocks ? "address" : "what", "words"]]) head.append(make("th", text, className));
  const body = table.createTBody();
  for (const group of [...groups.values()].sort((a, b) => b.bytes - a.bytes).slice(0, 25)) {
    const row = body.insertRow(), i = group.block, frame = recording.stack[i] ? recording.frameOf(recording.stack[i]) : `of ${bytesWords(recording.bytes[i])} each`;
    row.className = "pick";
    for (const [text, className] of [[bytesWords(group.bytes)], [group.count], [recording.meta.tags[recording.tag[i]][0], "words"],
      [blocks && recording.meta.has_addresses ? recording.addressAt(recording.place[i]) : frame, "words"]]) row.append(make("td", text, className));
    row.onclick = () => choose(i, false);
  }
}

function figures() {
  const table = at("figures"), several = recordings.filter((one) => one.meta);
  table.textContent = "";
  const row = (name, cells, title) => {
    const line = table.insertRow();
    line.append(make(title ? "th" : "td", name));
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
    row(`over time ${(100 * meta.stranded_time_weighted).toFixed(1)} %, GMLake's ${(100 * meta.gmlake_ratio).toFixed(1)} %`, []);
    row("free in runs too short for " + meta.unusable.map(([bytes, part]) => `${bytesWords(bytes)}: ${(100 * part).toFixed(0)} %`).join(", "), []);
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
  later = setTimeout(holders, 30);
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
  request();
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

async function show(index) {
  if (!recordings[index]) return;
  state.index = index;
  recording = recordings[index];
  if (!recording.meta) await recording.readFirst();
  if (state.index !== index) return;
  state.block = -1;
  state.found = null;
  state.others = recordings.filter((one) => one !== recording && one.meta);
  [...at("files").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
  setView(whole());
  const tags = recording.meta.tags.filter((_, i) => i < recording.kinds - 1 && used(i)).length;
  setColours(tags > 1 || !recording.meta.has_addresses ? "tag" : recording.stacks.length > 2 ? "stack" : "tag");
  setMoment(recording.meta.failure ? recording.meta.failure.moment : recording.meta.peak.moment);
  introduce();
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
  const run = keys[event.key] || (/^[1-9]$/.test(event.key) ? () => show(Number(event.key) - 1) : null);
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

/* ---- Start ------------------------------------------------------------------------------------------------------- */

async function start() {
  setTheme(dark.matches ? "dark" : "light");
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the data: it lacks DecompressionStream");
  for (let i = 0; element(i, "meta"); i++) recordings.push(new Recording(i));
  await Promise.all(recordings.map((one) => one.readFirst()));
  recordings.forEach((one, i) => {
    const button = make("button", one.meta.name.split("/").pop());
    button.title = one.meta.name;
    button.onclick = () => show(i);
    at("files").append(button);
  });
  at("compare").hidden = recordings.length < 2;
  document.title = `zr report: ${recordings.map((one) => one.meta.name.split("/").pop()).join(", ")}`;
  at("search").addEventListener("input", () => { clearTimeout(search.later); search.later = setTimeout(search, 150); });
  at("colour").onchange = () => setColours(at("colour").value);
  at("group").onchange = holders;
  at("compare").onclick = compare;
  at("home").onclick = () => setView(whole());
  at("theme").onclick = turnTheme;
  at("keys").onclick = () => at("help").showModal();
  listen(canvases.curve, false);
  listen(canvases.map, true);
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
