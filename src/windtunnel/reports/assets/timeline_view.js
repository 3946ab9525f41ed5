// Drawing of the timeline: only what is in view, and many tasks in one pixel become their shares of it.
"use strict";
const wtView = (() => {
  const GUTTER = 168, RULER = 26, OVERVIEW = 44, GAP = 5;
  const N = wtData.NUM_COLORS;
  const root = document.getElementById("timeline");
  const canvas = document.getElementById("timeline-canvas");
  const context = canvas.getContext("2d", { alpha: false });
  const view = { from: 0, to: 1, top: 0, selected: -1 };
  const part = new Float64Array(N);
  let data, width = 0, height = 0, ratio = 1, laneHeight = 20, lanes = [], pending = false;
  let picture, pixels, sums, overview, tones = [], ink = [], lastFrameMs = 0;

  const colorOf = (hex) =>
    (255 << 24 | parseInt(hex.slice(5, 7), 16) << 16 | parseInt(hex.slice(3, 5), 16) << 8 | parseInt(hex.slice(1, 3), 16)) >>> 0;

  function duration(ns) {
    const size = Math.abs(ns);
    if (size >= 1e9) return `${(ns / 1e9).toPrecision(4)} s`;
    if (size >= 1e6) return `${(ns / 1e6).toPrecision(4)} ms`;
    if (size >= 1e3) return `${(ns / 1e3).toPrecision(4)} µs`;
    return `${Math.round(ns)} ns`;
  }

  const plotWidth = () => Math.max(width - GUTTER, 1);
  const laneTop = (lane) => RULER + OVERVIEW + lane * (laneHeight + GAP) - view.top;
  const xOf = (ns) => GUTTER + (ns - view.from) / (view.to - view.from) * plotWidth();
  const timeAt = (x) => view.from + (x - GUTTER) / plotWidth() * (view.to - view.from);
  const maxTop = () => Math.max(0, lanes.length * (laneHeight + GAP) - (height - RULER - OVERVIEW));

  function clampView() {
    const whole = data.endNs, least = Math.max(20, whole / 1e9);
    let span = Math.min(Math.max(view.to - view.from, least), whole);
    view.from = Math.min(Math.max(view.from, 0), whole - span);
    view.to = view.from + span;
    view.top = Math.min(Math.max(view.top, 0), maxTop());
  }

  function changed() {
    clampView();
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  }

  function resize() {
    ratio = Math.min(window.devicePixelRatio || 1, 2);
    width = root.clientWidth;
    laneHeight = lanes.length <= 6 ? 34 : lanes.length <= 14 ? 26 : 20;
    height = RULER + OVERVIEW + Math.min(Math.max(lanes.length * (laneHeight + GAP) + 6, 70), 560);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    picture = context.createImageData(Math.max(1, Math.round(plotWidth() * ratio)), Math.max(1, Math.round(laneHeight * ratio)));
    pixels = new Uint32Array(picture.data.buffer);
    sums = new Float64Array(picture.width * N);
    drawOverview();
    clampView();
    draw(); // at once: a canvas that changes its size loses its picture
  }

  // one lane: tasks wider than two pixels as boxes, all others as their shares of each pixel column
  function drawLane(lane) {
    const columns = picture.width, rows = picture.height;
    const scale = columns / (view.to - view.from);
    const { start, end } = data;
    const { first, last } = lane;
    pixels.fill(0xffffffff);
    sums.fill(0);
    const boxes = [];
    let i = Math.max(first, wtData.lowerBound(start, view.from, first, last) - 1);
    if (i < last && end[i] <= view.from) i++;
    while (i < last && start[i] < view.to) {
      const x0 = (start[i] - view.from) * scale, x1 = (end[i] - view.from) * scale;
      if (x1 - x0 >= 2) {
        addBox(i, scale, boxes);
        i++;
      } else {
        const column = Math.max(0, Math.floor(x0));
        const stop = wtData.gallop(start, view.from + (column + 1) / scale, i, last);
        const next = Math.max(stop, i + 1);
        if (column < columns) addColumn(i, next, column, scale, boxes);
        i = next;
      }
    }
    for (let column = 0; column < columns; column++) paintColumn(column, rows, scale);
    for (const box of boxes) paintBox(box, columns, rows, scale);
    context.putImageData(picture, Math.round(GUTTER * ratio), Math.round(laneTop(lane.index) * ratio));
    return boxes;
  }

  // tasks [a, b) all start in this column; what the last one has beyond it belongs to the next ones
  function addColumn(a, b, column, scale, boxes) {
    const last = b - 1, edge = view.from + (column + 1) / scale;
    const lastIsWide = (data.end[last] - data.start[last]) * scale >= 2;
    part.fill(0);
    wtData.addBusy(data, a, lastIsWide ? last : b, part);
    if (lastIsWide) {
      addBox(last, scale, boxes);
    } else if (data.end[last] > edge) {
      const color = data.color[last], length = data.end[last] - data.start[last];
      let rest = Math.min(data.end[last] - edge, length);
      part[color] -= rest;
      for (let next = column + 1; rest > 0 && next < picture.width; next++, rest -= 1 / scale) {
        sums[next * N + color] += Math.min(rest, 1 / scale);
      }
    }
    for (let c = 0; c < N; c++) sums[column * N + c] += part[c];
  }

  // a wide task fills whole columns by itself; its first and last column it may share
  function addBox(row, scale, boxes) {
    boxes.push(row);
    const x0 = (data.start[row] - view.from) * scale, x1 = (data.end[row] - view.from) * scale;
    const left = Math.floor(x0), right = Math.floor(x1), color = data.color[row];
    if (left >= 0 && left < picture.width) sums[left * N + color] += (left + 1 - x0) / scale;
    if (right >= 0 && right < picture.width) sums[right * N + color] += (x1 - right) / scale;
  }

  function paintColumn(column, rows, scale) {
    const at = column * N, whole = 1 / scale;
    let total = 0;
    for (let c = 0; c < N; c++) total += sums[at + c];
    if (total <= 0) return;
    const shrink = total > whole ? whole / total : 1;
    let filled = 0, y = rows;
    for (let c = 0; c < N; c++) {
      if (!sums[at + c]) continue;
      filled += sums[at + c] * shrink / whole;
      const top = Math.min(rows - 1, rows - Math.round(filled * rows));
      for (; y > top; y--) pixels[(y - 1) * picture.width + column] = tones[c];
    }
  }

  function paintBox(row, columns, rows, scale) {
    const x0 = Math.floor((data.start[row] - view.from) * scale) + 1, x1 = Math.floor((data.end[row] - view.from) * scale);
    const left = Math.max(0, x0), right = Math.min(columns, x1);
    const tone = tones[data.color[row]];
    const edge = x1 - x0 >= 8 && x0 >= 0 ? 1 : 0; // a hair line tells neighbors of one color apart
    for (let y = 0; y < rows; y++) pixels.fill(tone, y * columns + left + edge, y * columns + right);
  }

  function labelBoxes(boxes, lane) {
    const baseline = laneTop(lane.index) + laneHeight / 2 + 4;
    for (const row of boxes) {
      const left = Math.max(xOf(data.start[row]), GUTTER), right = Math.min(xOf(data.end[row]), width);
      const room = Math.floor((right - left - 8) / 6.3);
      if (room < 3) continue;
      const name = data.header.names[data.columns.name[row]];
      context.fillStyle = ink[data.color[row]];
      context.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, left + 5, baseline);
    }
  }

  function draw() {
    const began = performance.now();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    for (const lane of lanes) {
      const top = laneTop(lane.index);
      if (top + laneHeight < RULER + OVERVIEW || top > height) continue;
      labelBoxes(drawLane(lane), lane);
      drawLaneName(lane, top);
    }
    outlineSelected();
    drawRuler();
    if (overview) drawOverviewWindow();
    lastFrameMs = performance.now() - began;
  }

  function drawLaneName(lane, top) {
    context.fillStyle = "#ffffff";
    context.fillRect(0, top - GAP, GUTTER, laneHeight + GAP);
    context.fillStyle = lane.isPath ? "#111827" : "#374151";
    const room = Math.floor((GUTTER - 14) / 6.1);
    const label = lane.label.length > room ? `${lane.label.slice(0, room - 1)}…` : lane.label;
    context.fillText(label, 4, top + laneHeight / 2 + 4);
    context.fillStyle = "#eef0f3";
    context.fillRect(0, top + laneHeight + Math.floor(GAP / 2), width, 1);
  }

  function drawRuler() {
    context.fillStyle = "#ffffff";
    context.fillRect(0, OVERVIEW, width, RULER);
    context.fillStyle = "#6b7280";
    const span = view.to - view.from;
    const rough = span / Math.max(2, Math.floor(plotWidth() / 120));
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
    for (let time = Math.ceil(view.from / tick) * tick; time <= view.to; time += tick) {
      const x = xOf(time);
      context.fillRect(x, OVERVIEW + RULER - 6, 1, 6);
      context.fillText(duration(time), Math.min(x + 3, width - 58), OVERVIEW + RULER - 9);
    }
    context.fillText(`${duration(span)} in view`, 4, OVERVIEW + RULER - 9);
  }

  // the strip on top: how busy all lanes are over the whole time, and the part that is in view
  function drawOverview() {
    if (!width) return;
    overview = document.createElement("canvas");
    overview.width = Math.max(1, plotWidth());
    overview.height = OVERVIEW - 8;
    const strip = overview.getContext("2d");
    const busy = new Float64Array(overview.width * N);
    const whole = data.endNs / overview.width;
    for (const { first, last, isPath } of data.tracks) {
      if (isPath) continue;
      let i = first;
      while (i < last) {
        const column = Math.min(overview.width - 1, Math.floor(data.start[i] / whole));
        const stop = wtData.gallop(data.start, (column + 1) * whole, i, last);
        part.fill(0);
        wtData.addBusy(data, i, Math.max(stop, i + 1), part);
        let rest = data.end[Math.max(stop, i + 1) - 1] - (column + 1) * whole;
        const tail = data.color[Math.max(stop, i + 1) - 1];
        if (rest > 0) part[tail] -= rest;
        for (let c = 0; c < N; c++) busy[column * N + c] += part[c];
        for (let k = column + 1; rest > 0 && k < overview.width; k++, rest -= whole) busy[k * N + tail] += Math.min(rest, whole);
        i = Math.max(stop, i + 1);
      }
    }
    let most = 1;
    for (let k = 0; k < overview.width; k++) most = Math.max(most, busy.subarray(k * N, k * N + N).reduce((a, b) => a + b, 0));
    for (let k = 0; k < overview.width; k++) {
      let y = overview.height;
      for (let c = 0; c < N; c++) {
        const tall = busy[k * N + c] / most * overview.height;
        if (tall <= 0) continue;
        strip.fillStyle = data.palette[c];
        strip.fillRect(k, y - tall, 1, tall);
        y -= tall;
      }
    }
  }

  function drawOverviewWindow() {
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, width, OVERVIEW);
    context.drawImage(overview, GUTTER, 4);
    context.fillStyle = "#6b7280";
    context.fillText("the whole run", 4, 24);
    const x0 = GUTTER + view.from / data.endNs * plotWidth(), x1 = GUTTER + view.to / data.endNs * plotWidth();
    context.fillStyle = "rgba(255,255,255,0.72)";
    context.fillRect(GUTTER, 2, x0 - GUTTER, OVERVIEW - 4);
    context.fillRect(x1, 2, width - x1, OVERVIEW - 4);
    context.strokeStyle = "#111827";
    context.strokeRect(x0 + 0.5, 2.5, Math.max(x1 - x0 - 1, 2), OVERVIEW - 5);
  }

  function laneAt(y) {
    const index = Math.floor((y - RULER - OVERVIEW + view.top) / (laneHeight + GAP));
    return y < RULER + OVERVIEW ? undefined : lanes[index];
  }

  function taskAt(x, y) {
    const lane = laneAt(y);
    if (!lane || x < GUTTER) return -1;
    const row = rowAt(lane, x);
    return lane.isPath && row >= 0 ? data.columns.critical[row] : row;
  }

  function rowAt(lane, x) {
    const time = timeAt(x), reach = 2 * (view.to - view.from) / plotWidth();
    const after = wtData.lowerBound(data.start, time, lane.first, lane.last);
    if (after > lane.first && data.end[after - 1] >= time) return after - 1;
    if (after < lane.last && data.start[after] - time <= reach) return after;
    return after > lane.first && time - data.end[after - 1] <= reach ? after - 1 : -1;
  }

  function outlineSelected() {
    let row = view.selected, hops = 0;
    context.lineWidth = 2;
    while (row >= 0 && hops < 40) {
      const lane = laneOf(row);
      if (!lane) break;
      const left = Math.max(xOf(data.start[row]), GUTTER), right = Math.min(xOf(data.end[row]), width);
      if (right >= GUTTER && left <= width && laneTop(lane.index) >= RULER + OVERVIEW - laneHeight) {
        context.strokeStyle = hops ? "rgba(17,24,39,0.45)" : "#111827";
        context.strokeRect(left, laneTop(lane.index) - 1, Math.max(right - left, 2), laneHeight + 2);
      }
      row = wtData.bindingOf(data, row);
      hops++;
    }
    context.lineWidth = 1;
  }

  function recolor(by, keep) {
    wtData.recolor(data, by, keep);
    tones = data.palette.map(colorOf);
    ink = data.palette.map((hex) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
      return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111827" : "#ffffff";
    });
    drawOverview();
    changed();
  }

  function show(unpacked) {
    data = unpacked;
    lanes = data.tracks.map((track, index) => ({ ...track, index }));
    view.to = data.endNs;
    recolor("kind", null);
    resize();
  }

  function laneOf(row) {
    return lanes.find((lane) => !lane.isPath && lane.first <= row && row < lane.last);
  }

  function reveal(row) {
    const middle = (data.start[row] + data.end[row]) / 2, span = view.to - view.from;
    if (data.end[row] < view.from || data.start[row] > view.to) [view.from, view.to] = [middle - span / 2, middle + span / 2];
    const top = laneTop(laneOf(row).index);
    if (top < RULER + OVERVIEW || top > height - laneHeight) view.top += top - height / 2;
    changed();
  }

  function zoom(factor, x) {
    const time = timeAt(Math.max(x, GUTTER));
    view.from = time - (time - view.from) * factor;
    view.to = time + (view.to - time) * factor;
    changed();
  }

  function pan(dx, dy) {
    const shift = dx / plotWidth() * (view.to - view.from);
    view.from += shift;
    view.to += shift;
    view.top += dy;
    changed();
  }

  // a click or drag in the strip on top brings that time into the middle
  function jump(x) {
    const span = view.to - view.from, time = (x - GUTTER) / plotWidth() * data.endNs;
    [view.from, view.to] = [time - span / 2, time + span / 2];
    changed();
  }

  const isWhole = () => view.to - view.from >= data.endNs;
  return { root, canvas, view, GUTTER, OVERVIEW, show, resize, recolor, changed, draw, zoom, pan, jump, reveal, taskAt, duration, isWhole, frameMs: () => lastFrameMs };
})();
