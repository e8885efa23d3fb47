/* page_data.js: the columns of the page as arrays, and queries on them. A moment is a number of events after the start. */

const GROUP = 64; // blocks, or groups of blocks, per entry of the index

function element(file, column) {
  return document.querySelector(`script[data-file="${file}"][data-column="${column}"]`);
}

/* Unpacks a column, and frees its text. */
async function unpack(file, column) {
  const from = element(file, column);
  const text = atob(from.textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  from.textContent = "";
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  const out = new Uint8Array(Number(from.dataset.bytes));
  let at = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    out.set(value, at);
    at += value.length;
  }
  if (at !== out.length) throw new Error(`the column ${column} is damaged`);
  return out;
}

/* Iterates over the numbers of a column. Numbers beyond 2^53 are rounded; big() is exact. */
class Numbers {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  more() { return this.at < this.bytes.length; }
  next() {
    const bytes = this.bytes;
    let byte = bytes[this.at++], number = byte & 127, shift = 7;
    for (; byte > 127 && shift < 28; shift += 7) {
      byte = bytes[this.at++];
      number |= (byte & 127) << shift;
    }
    for (let factor = 2 ** 28; byte > 127; factor *= 128) {
      byte = bytes[this.at++];
      number += (byte & 127) * factor;
    }
    return number;
  }
  signed() {
    const number = this.next();
    return number % 2 ? -(number + 1) / 2 : number / 2;
  }
  big() {
    let number = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.bytes[this.at++];
      number |= BigInt(byte & 127) << shift;
      if (byte < 128) return number;
    }
  }
  text(length) {
    this.at += length;
    return new TextDecoder().decode(this.bytes.subarray(this.at - length, this.at));
  }
}

function fill(array, bytes, read) {
  const from = new Numbers(bytes);
  for (let i = 0; i < array.length; i++) array[i] = read(from, i);
  return array;
}

/* Mapped ranges {place, end, from, pool} of a moment: in order of place, disjoint. */
class Ranges {
  constructor() { this.now = []; }
  /* The index of the first range that ends after a place. */
  find(place) {
    let low = 0, high = this.now.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.now[middle].end > place) high = middle; else low = middle + 1;
    }
    return low;
  }
  /* A map or an unmap; parts that end with it go to `done`, if that is not null. */
  apply({ moment, maps, place, end, pool }, done) {
    const { now } = this, low = this.find(place), instead = [];
    let last = low;
    for (; last < now.length && now[last].place < end; last++) {
      const one = now[last];
      if (done && one.from < moment) done.push({ ...one, to: moment });
      if (one.place < place) instead.push({ ...one, end: place, from: moment });
      if (one.end > end) instead.push({ ...one, place: end, from: moment });
    }
    if (maps) instead.splice(instead.length && instead[0].place < place ? 1 : 0, 0, { place, end, from: moment, pool });
    now.splice(low, last - low, ...instead);
  }
}

class Recording {
  constructor(index) { this.index = index; }

  /* Loads the data that can be shown before the blocks. */
  async readFirst() {
    const get = (column) => unpack(this.index, column);
    this.meta = JSON.parse(new TextDecoder().decode(await get("meta")));
    const meta = this.meta;
    this.first = meta.before_count < meta.moments_count - 1 ? meta.before_count : 0;
    this.end = meta.moments_count;
    this.kinds = meta.tags.length;
    this.bands = [];
    let place = 0;
    for (const from = new Numbers(await get("bands")); from.more();) {
      const begin = from.big(), bytes = from.next();
      this.bands.push({ begin, bytes, place });
      place += bytes;
    }
    const values = this.kinds + 2, steps = Math.ceil(meta.moments_count / meta.step_moments);
    const sums = (column) => {
      const out = new Float64Array(steps * values), from = new Numbers(column);
      for (let i = 0; i < out.length; i++) out[i] = from.signed() + (i < values ? 0 : out[i - values]);
      return out;
    };
    this.values = values;
    this.start = sums(await get("curve_start"));
    this.peaks = sums(await get("curve_peak"));
    this.totals = Float64Array.from({ length: steps }, (_, i) => { // live and pending bytes at a step's peak
      let total = 0;
      for (let k = 0; k < this.kinds; k++) total += this.peaks[i * values + k];
      return total;
    });
    let sum = 0;
    this.times = fill(new Float64Array(steps), await get("curve_time"), (from) => (sum += from.signed()));
    this.cells = await get("cells");
    this.refused = [];
    for (const from = new Numbers(await get("refused")); from.more();)
      this.refused.push({ moment: from.next(), bytes: from.next(), tag: from.next() });
    this.marks = [];
    for (const from = new Numbers(await get("marks")); from.more();) {
      const moment = from.next();
      this.marks.push({ moment, label: from.text(from.next()) });
    }
    this.readMaps(new Numbers(await get("maps")));
    this.mapped = this.mappedRanges();
    this.scope = null;
    this.frames = [];
    for (const from = new Numbers(await get("frames")); from.more();) this.frames.push(from.text(from.next()));
    this.stacks = [[]];
    this.noise = [0]; // of a stack: the innermost frames that are the allocator's own
    for (const from = new Numbers(await get("stacks")); from.more();) {
      const count = from.next();
      this.noise.push(from.next());
      this.stacks.push(Array.from({ length: count }, () => from.next()));
    }
  }

  readMaps(from) {
    const pools = new Map();
    this.pools = [];
    this.maps = [];
    while (from.more()) {
      const moment = from.next(), maps = from.next() === 1, place = from.next(), end = place + from.next(), reserved = from.next();
      const number = from.next(), stream = from.next(), key = `${number} ${stream}`;
      if (maps && !pools.has(key)) {
        pools.set(key, this.pools.length);
        this.pools.push({ number, stream });
      }
      this.maps.push({ moment, maps, place, end, reserved, pool: maps ? pools.get(key) : -1 });
    }
  }

  /* Maps and unmaps as rectangles of moments and places. */
  mappedRanges() {
    const done = [], ranges = new Ranges();
    for (const one of this.maps) ranges.apply(one, done);
    for (const one of ranges.now) done.push({ ...one, to: this.end });
    return done;
  }

  /* "large blocks, stream 0": PyTorch's pools have a number of two parts, and small and large blocks. */
  poolWords({ number, stream }) {
    const id = number >>> 1;
    return this.meta.pools === "torch"
      ? `${id ? `private pool (${Math.floor(id / 65599)}, ${id % 65599}), ` : ""}${number & 1 ? "small" : "large"} blocks, stream ${stream}`
      : `pool ${number}, stream ${stream}`;
  }

  /* Segments that are mapped at a moment, in order of place; parts of one pool side by side are one. */
  segmentsAt(moment, pool) {
    const ranges = new Ranges(), out = [];
    for (const one of this.maps) if (one.moment <= moment) ranges.apply(one, null);
    for (const one of ranges.now) {
      const last = out[out.length - 1];
      if (pool >= 0 && one.pool !== pool) continue;
      if (last && last.end === one.place && last.pool === one.pool && this.meta.format !== "torch") last.end = one.end;
      else out.push({ ...one });
    }
    return out;
  }

  /* The pool of each block: that of the segment around it when it was allocated. */
  poolsOfBlocks() {
    if (this.poolOf) return this.poolOf;
    const ranges = new Ranges(), { maps } = this;
    this.poolOf = new Int16Array(this.count).fill(-1);
    for (let i = 0, next = 0; i < this.count; i++) {
      for (; next < maps.length && maps[next].moment <= this.from[i]; next++) ranges.apply(maps[next], null);
      const range = ranges.now[ranges.find(this.place[i])];
      if (range && range.place <= this.place[i]) this.poolOf[i] = range.pool;
    }
    return this.poolOf;
  }

  /* Limits queries to the blocks of a pool (-1: all) and of a segment (null: all). */
  setScope(pool, segment) {
    this.scope = null;
    if (pool < 0 && !segment) return;
    const pools = pool < 0 ? null : this.poolsOfBlocks(), { place } = this;
    this.scope = Uint8Array.from({ length: this.count }, (_, i) =>
      (!pools || pools[i] === pool) && (!segment || (segment.place <= place[i] && place[i] < segment.end)) ? 1 : 0);
  }

  async readBlocks() {
    const get = (column) => unpack(this.index, column), count = this.meta.allocations_count;
    let sum = 0;
    const add = (from) => (sum += from.next());
    this.count = count;
    this.from = fill(new Uint32Array(count), await get("alloc_moment"), add);
    this.place = new Float64Array(count);
    sum = 0;
    if (this.meta.has_addresses) fill(this.place, await get("alloc_place"), (from) => (sum += from.signed()));
    this.requested = fill(new Float64Array(count), await get("alloc_bytes"), (from) => from.next());
    this.bytes = fill(new Float64Array(count), await get("alloc_rounding"), (from, i) => this.requested[i] + from.next());
    this.tag = fill(new Uint8Array(count), await get("alloc_tag"), (from) => from.next());
    this.stack = fill(new Uint32Array(count), await get("alloc_stack"), (from) => from.next());
    this.stream = fill(new Float64Array(count), await get("alloc_stream"), (from) => from.next());
    const ends = async (name) => {
      const moments = new Numbers(await get(`${name}_moment`)), ages = new Numbers(await get(`${name}_age`));
      const to = new Uint32Array(count).fill(this.end), order = [];
      let moment = 0, made = 0; // made: blocks allocated before the moment
      while (moments.more()) {
        moment += moments.next();
        while (made < count && this.from[made] < moment) made++;
        const block = made - 1 - ages.next();
        to[block] = moment;
        order.push(block);
      }
      return { to, order };
    };
    const freed = await ends("free"), asked = await ends("asked");
    this.to = freed.to;
    this.freed = Uint32Array.from(freed.order);
    this.asked = asked.order.length ? asked.to : this.to;
    this.askedOrder = Uint32Array.from(asked.order);
    this.levels = []; // index: the latest end among GROUP blocks, GROUP * GROUP, ..
    for (let below = this.to; below.length > GROUP; below = this.levels[this.levels.length - 1]) {
      const level = new Uint32Array(Math.ceil(below.length / GROUP));
      for (let i = 0; i < below.length; i++) if (below[i] > level[(i / GROUP) | 0]) level[(i / GROUP) | 0] = below[i];
      this.levels.push(level);
    }
    this.there = new Uint32Array(count); // result of collect()
    this.ready = true;
  }

  /* The first block that begins at or after a moment. */
  firstFrom(moment) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.from[middle] >= moment) high = middle; else low = middle + 1;
    }
    return low;
  }

  /* Puts the blocks that exist at some moment of [begin, end) into this.there, in order of allocation; returns their number. One more than
   * `most` is enough. */
  collect(begin, end, most = Infinity) {
    const stop = this.firstFrom(end), { to, levels, there } = this;
    let count = 0;
    for (let i = 0; i < stop;) { // i is a multiple of GROUP
      let level = -1, span = 1;  // climb the index at i while no block in the group lasts
      while (level + 1 < levels.length && i % (span * GROUP) === 0 && levels[level + 1][i / (span * GROUP)] <= begin) {
        level++;
        span *= GROUP;
      }
      if (level >= 0) { i += span; continue; }
      for (const last = Math.min(stop, i + GROUP); i < last; i++) if (to[i] > begin) there[count++] = i;
      if (count > most) break;
    }
    return count;
  }

  /* Blocks of the scope that exist at a moment. */
  blocksAt(moment) {
    const some = this.there.subarray(0, this.collect(moment, moment + 1));
    return this.scope ? some.filter((i) => this.scope[i]) : some;
  }

  /* Live bytes by tag and pending bytes at a moment, of the scope. */
  liveAt(moment) {
    const out = new Float64Array(this.kinds);
    for (const i of this.blocksAt(moment)) {
      out[this.asked[i] <= moment ? this.kinds - 1 : this.tag[i]] += this.bytes[i];
    }
    return out;
  }

  reservedAt(moment) {
    const { maps } = this;
    let low = 0, high = maps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (maps[middle].moment > moment) high = middle; else low = middle + 1;
    }
    return low ? maps[low - 1].reserved : 0;
  }

  /* The last annotation up to a moment; undefined: none. */
  markAt(moment) {
    let found;
    for (const one of this.marks) if (one.moment <= moment) found = one;
    return found;
  }

  timeAt(moment) {
    const at = moment / this.meta.step_moments, step = Math.min(Math.floor(at), this.times.length - 1);
    const next = step + 1 < this.times.length ? this.times[step + 1] : this.meta.now.time_ns;
    return this.times[step] + (next - this.times[step]) * Math.min(1, at - step);
  }

  addressAt(place) {
    let low = 0, high = this.bands.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.bands[middle].place <= place) low = middle; else high = middle;
    }
    const band = this.bands[low];
    return band ? "0x" + (band.begin + BigInt(Math.floor(place - band.place))).toString(16) : "";
  }

  /* The most informative frame: the innermost one of the program itself. */
  frameOf(stack) {
    const frames = this.stacks[stack].map((i) => this.frames[i]);
    return frames.find((text) => isPython(text) && !/site-packages|\/torch\//.test(text)) || frames.find(isPython) ||
      frames.slice(this.noise[stack]).find((text) => !text.startsWith("??")) || frames[0] || "";
  }

  /* Compiles a search text to a predicate on blocks, or null for an empty search. */
  search(words) {
    const tests = words.trim().split(/\s+/).filter(Boolean).map((word) => this.wordTest(word.toLowerCase()));
    return tests.length ? (i) => tests.every((test) => test(i)) : null;
  }

  wordTest(word) {
    const size = /^([<>=]?)(\d+(?:\.\d+)?)([kmgt]?)(i?)b?$/.exec(word);
    if (/^0x[0-9a-f]+$/.test(word)) {
      const address = BigInt(word), band = this.bands.find((b) => address >= b.begin && address < b.begin + BigInt(b.bytes));
      const place = band ? band.place + Number(address - band.begin) : -1;
      return (i) => this.place[i] <= place && place < this.place[i] + Math.max(this.bytes[i], 1);
    }
    if (size && (size[1] || size[3])) {
      const bytes = Number(size[2]) * (size[4] ? 1024 : 1000) ** " kmgt".indexOf(size[3] || " ");
      if (size[1] === ">") return (i) => this.bytes[i] > bytes;
      if (size[1] === "<") return (i) => this.bytes[i] < bytes;
      return (i) => this.bytes[i] === bytes || this.requested[i] === bytes;
    }
    const tags = this.meta.tags.map(([name]) => name.includes(word));
    const frames = this.frames.map((text) => text.toLowerCase().includes(word));
    const stacks = this.stacks.map((stack) => stack.some((i) => frames[i]));
    return (i) => tags[this.tag[i]] || stacks[this.stack[i]];
  }
}
