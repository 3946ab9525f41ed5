// What a reader does with the timeline: wheel, drag, keys, search, hover and click. Text from a trace is only ever
// set as text or drawn on the canvas, never read as HTML.
"use strict";
(async () => {
  const { view, canvas, root, duration } = wtView;
  const byId = (id) => document.getElementById(id);
  const tooltip = byId("timeline-tooltip"), detail = byId("timeline-detail"), found = byId("timeline-found");
  const state = { by: byId("timeline-by").value, match: null, onlyPath: false, hit: -1 };
  let data;

  function facts(row) {
    const { columns, header } = data;
    const lines = [[header.names[columns.name[row]] || "(no name)", ""]];
    const layer = header.layers[columns.layer[row]];
    if (layer) lines.push(["layer", layer]);
    lines.push(["takes", duration(data.end[row] - data.start[row])], ["starts at", duration(data.start[row])]);
    lines.push(["kind", `${header.kinds[columns.kind[row]][0]}, ${header.phases[columns.phase[row]][0]}`]);
    if (data.critical[row]) lines.push(["critical", "yes: the whole ends later if this takes longer"]);
    else if (columns.slack) lines.push(["slack", duration(columns.slack[row])]);
    return lines;
  }

  function fill(element, lines) {
    element.replaceChildren();
    lines.forEach(([label, value], index) => {
      const line = document.createElement(index ? "div" : "strong");
      line.textContent = index ? `${label}: ${value}` : label;
      element.append(line);
    });
  }

  function button(text, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", action);
    return made;
  }

  function select(row) {
    view.selected = row;
    detail.hidden = row < 0;
    if (row >= 0) {
      const lines = facts(row);
      const cause = wtData.bindingOf(data, row);
      lines.push(["on", data.tracks[wtData.trackOf(data, row)].label]);
      lines.push(["could start because of", cause < 0 ? "nothing before it" : data.header.names[data.columns.name[cause]]]);
      fill(detail, lines);
      const buttons = document.createElement("p");
      if (cause >= 0) buttons.append(button("go to its cause", () => { wtView.reveal(cause); select(cause); }));
      buttons.append(button("zoom to it", () => zoomTo(row)), button("find all with this name", () => search(lines[0][0])));
      detail.append(buttons);
    }
    wtView.changed();
  }

  function zoomTo(row) {
    const pad = Math.max((data.end[row] - data.start[row]) * 2, 100);
    [view.from, view.to] = [data.start[row] - pad, data.end[row] + pad];
    wtView.reveal(row);
  }

  function recolor() {
    wtView.recolor(state.by, state.match ? state.match.keep : state.onlyPath ? data.critical : null);
    const used = new Set(data.columns[state.by]);
    byId("timeline-legend").replaceChildren(...data.header[`${state.by}s`].filter((_, code) => used.has(code)).map(([label, color]) => {
      const entry = document.createElement("span");
      const swatch = document.createElement("i");
      swatch.style.background = color;
      entry.append(swatch, label);
      return entry;
    }));
  }

  function search(text) {
    byId("timeline-search").value = text;
    state.match = wtData.matches(data, text);
    state.hit = -1;
    found.textContent = state.match
      ? `${state.match.count.toLocaleString("en")} tasks, ${duration(state.match.busy)} in all; Enter shows the next` : "";
    recolor();
  }

  function nextMatch() {
    if (!state.match || !state.match.count) return;
    const from = data.pathEnd;
    let row = Math.max(state.hit + 1, from);
    while (row < data.count && !state.match.keep[row]) row++;
    if (row >= data.count) row = state.match.keep.indexOf(1, from);
    state.hit = row;
    wtView.reveal(row);
    select(row);
  }

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  function hover(event) {
    const [x, y] = place(event);
    const row = wtView.taskAt(x, y);
    tooltip.hidden = row < 0;
    if (row < 0) return;
    fill(tooltip, facts(row));
    tooltip.style.left = `${Math.min(x + 14, Math.max(0, root.clientWidth - tooltip.offsetWidth - 4))}px`;
    tooltip.style.top = `${canvas.offsetTop + y + 16}px`;
  }

  function listen() {
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      const [x, y] = place(event);
      const amount = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
      if (x < wtView.GUTTER) wtView.pan(0, amount);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) wtView.pan(event.deltaX || amount, 0);
      else if (amount > 0 && wtView.isWhole()) return; // all is in view: let the page scroll
      else wtView.zoom(Math.exp(Math.max(-1, Math.min(1, amount * 0.0025))), x, y);
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = place(event);
      drag = { x, y, moved: 0, strip: y < wtView.OVERVIEW };
      canvas.setPointerCapture(event.pointerId);
      if (drag.strip) wtView.jump(x);
      canvas.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return hover(event);
      const [x, y] = place(event);
      drag.moved += Math.abs(x - drag.x) + Math.abs(y - drag.y);
      if (drag.strip) wtView.jump(x);
      else wtView.pan(drag.x - x, drag.y - y);
      [drag.x, drag.y] = [x, y];
      tooltip.hidden = true;
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event);
      if (drag && drag.moved < 4 && !drag.strip) select(wtView.taskAt(x, y));
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { tooltip.hidden = true; });
    canvas.addEventListener("keydown", (event) => {
      const middle = (wtView.GUTTER + root.clientWidth) / 2;
      const keys = {
        w: () => wtView.zoom(0.7, middle), s: () => wtView.zoom(1.4, middle),
        a: () => wtView.pan(-80, 0), d: () => wtView.pan(80, 0),
        ArrowLeft: () => wtView.pan(-80, 0), ArrowRight: () => wtView.pan(80, 0),
        ArrowUp: () => wtView.pan(0, -40), ArrowDown: () => wtView.pan(0, 40),
        "+": () => wtView.zoom(0.7, middle), "-": () => wtView.zoom(1.4, middle),
        Escape: () => select(-1), 0: whole,
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      keys[event.key]();
      event.preventDefault();
    });
    byId("timeline-search").addEventListener("input", (event) => search(event.target.value));
    byId("timeline-search").addEventListener("keydown", (event) => { if (event.key === "Enter") nextMatch(); });
    byId("timeline-by").addEventListener("change", (event) => { state.by = event.target.value; recolor(); });
    byId("timeline-path").addEventListener("change", (event) => { state.onlyPath = event.target.checked; recolor(); });
    byId("timeline-whole").addEventListener("click", whole);
    new ResizeObserver(() => wtView.resize()).observe(root);
  }

  function whole() {
    [view.from, view.to] = [0, data.endNs];
    wtView.changed();
  }

  const note = byId("timeline-note");
  if (typeof DecompressionStream === "undefined") {
    note.textContent = "This browser is too old to unpack the timeline (Chromium 80, Firefox 113 or Safari 16.4 can).";
    return;
  }
  data = await wtData.unpack(byId("timeline-data").textContent.trim());
  wtView.show(data);
  if (data.header.num_hidden) {
    note.append(` Not drawn: ${data.header.num_hidden.toLocaleString("en")} tasks that take no time on no resource.`);
  }
  listen();
  recolor();
  root.dataset.ready = "true";
})();
