// What the timeline draws from: columns unpacked from one deflated block, running sums for far-away views, search.
"use strict";
const wtData = (() => {
  const STRIDE = 16; // running sums are kept for every 16th task
  const NUM_COLORS = 8; // color slots: kinds or phases; the last one is "dimmed"

  async function unpack(base64) {
    const text = atob(base64);
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const block = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = Number(new DataView(block.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(block.subarray(8, 8 + size)));
    const columns = {};
    let at = 8 + size;
    for (const { name, width, count } of header.columns) {
      columns[name] = numbers(block.subarray(at, at + width * count), width, count);
      at += width * count;
    }
    return model(header, columns);
  }

  // bytes are grouped by significance: first the lowest byte of every value, then the next
  function numbers(bytes, width, count) {
    if (width === 1) return bytes;
    const values = width <= 4 ? new Uint32Array(count) : new Float64Array(count);
    for (let plane = width - 1; plane >= 0; plane--) {
      const base = plane * count;
      for (let i = 0; i < count; i++) values[i] = values[i] * 256 + bytes[base + i];
    }
    return values;
  }

  function model(header, columns) {
    const count = columns.start.length;
    const start = new Float64Array(count), end = new Float64Array(count);
    const tracks = [];
    let first = 0;
    for (const [label, rank, last, isPath] of header.tracks) {
      let time = 0;
      for (let i = first; i < last; i++) {
        time += columns.start[i];
        start[i] = time;
        end[i] = time + columns.duration[i];
      }
      tracks.push({ label, rank, first, last, isPath });
      first = last;
    }
    // the first line repeats the tasks of the critical path; all after it are the tasks themselves
    const pathEnd = tracks.length && tracks[0].isPath ? tracks[0].last : 0;
    const critical = new Uint8Array(count).fill(1, 0, pathEnd);
    for (const row of columns.critical) critical[row] = 1;
    const data = {
      header, columns, start, end, tracks, critical, count,
      endNs: Math.max(header.end_ns, 1),
      pathEnd,
      color: new Uint8Array(count),
      palette: [],
      sums: null,
    };
    return data;
  }

  // what decides a task's color now: kind or phase; tasks outside `keep` are dimmed
  function recolor(data, by, keep) {
    const source = by === "phase" ? data.columns.phase : data.columns.kind;
    const labels = by === "phase" ? data.header.phases : data.header.kinds;
    data.palette = labels.map(([, color]) => color);
    while (data.palette.length < NUM_COLORS) data.palette.push("#eceff2");
    for (let i = 0; i < data.count; i++) data.color[i] = keep && !keep[i] ? NUM_COLORS - 1 : source[i];
    data.sums = runningSums(data);
  }

  // sums[(block) * NUM_COLORS + color]: busy ns of that color in all tasks before the block, over all tracks
  function runningSums(data) {
    const blocks = Math.floor(data.count / STRIDE) + 1;
    const sums = new Float64Array((blocks + 1) * NUM_COLORS);
    for (let block = 0; block < blocks; block++) {
      const at = block * NUM_COLORS, next = at + NUM_COLORS;
      for (let c = 0; c < NUM_COLORS; c++) sums[next + c] = sums[at + c];
      const stop = Math.min((block + 1) * STRIDE, data.count);
      for (let i = block * STRIDE; i < stop; i++) sums[next + data.color[i]] += data.end[i] - data.start[i];
    }
    return sums;
  }

  // adds the busy time per color of tasks [a, b) to into[0..NUM_COLORS)
  function addBusy(data, a, b, into) {
    const blockA = Math.ceil(a / STRIDE), blockB = Math.floor(b / STRIDE);
    if (blockB <= blockA) {
      for (let i = a; i < b; i++) into[data.color[i]] += data.end[i] - data.start[i];
      return;
    }
    for (let i = a; i < blockA * STRIDE; i++) into[data.color[i]] += data.end[i] - data.start[i];
    for (let c = 0; c < NUM_COLORS; c++) {
      into[c] += data.sums[blockB * NUM_COLORS + c] - data.sums[blockA * NUM_COLORS + c];
    }
    for (let i = blockB * STRIDE; i < b; i++) into[data.color[i]] += data.end[i] - data.start[i];
  }

  // first row in [lo, hi) whose value is >= limit (values ascend within a track)
  function lowerBound(values, limit, lo, hi) {
    while (lo < hi) {
      const mid = (lo + hi) >>> 1;
      if (values[mid] < limit) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }

  // the same, looking near `lo` first: cheap when the answer is close
  function gallop(values, limit, lo, hi) {
    let step = 1;
    while (lo + step < hi && values[lo + step] < limit) step *= 2;
    return lowerBound(values, limit, lo + (step >> 1), Math.min(lo + step + 1, hi));
  }

  function matches(data, query) {
    const needle = query.trim().toLowerCase();
    if (!needle) return null;
    const inNames = data.header.names.map((name) => name.toLowerCase().includes(needle));
    const inLayers = data.header.layers.map((layer) => layer.toLowerCase().includes(needle));
    const keep = new Uint8Array(data.count);
    let count = 0, busy = 0;
    for (let i = 0; i < data.count; i++) {
      if (inNames[data.columns.name[i]] || inLayers[data.columns.layer[i]]) {
        keep[i] = 1;
        if (i < data.pathEnd) continue;
        count++;
        busy += data.end[i] - data.start[i];
      }
    }
    return { keep, count, busy };
  }

  function bindingOf(data, row) {
    const code = data.columns.binding ? data.columns.binding[row] : 0;
    if (!code) return -1;
    const zigzag = code - 1;
    return row - (zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2);
  }

  function trackOf(data, row) {
    return lowerBound(data.tracks.map((track) => track.last), row + 1, 0, data.tracks.length);
  }

  return { NUM_COLORS, unpack, recolor, addBusy, lowerBound, gallop, matches, bindingOf, trackOf };
})();
