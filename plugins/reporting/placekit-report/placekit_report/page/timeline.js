// A timeline: a lane per track, drawn by hand. The view may be shared by two of them.

class Timeline {
  constructor(root, data, view, label) {
    this.events = new Events(data);
    this.view = view;
    this.critical = true;
    this.links = true;
    this.module = -1;
    this.selected = this.hovered = -1;
    this.matches = [];
    this.match = -1;
    this.frames = [];
    const n = this.events.size;
    this.none = new Uint8Array(n);
    this.dimmed = new Uint8Array(n);
    this.hits = new Uint8Array(n);
    this.lists = {
      plain: Array.from({ length: 2 * 11 * LEVELS }, () => new Rectangles()),
      pattern: Array.from({ length: 11 }, () => new Rectangles()),
      phase: Array.from({ length: 3 }, () => new Rectangles()),
      chain: new Rectangles(), hits: new Rectangles(), labels: [], weight: new Float64Array(11), phases: new Float64Array(3),
    };
    this.build(root, label);
    this.context = this.canvas.getContext("2d");
    view.listeners.push(() => this.redraw());
    DARK.addEventListener("change", () => ((this.paint = null), this.legend(), this.redraw()));
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.resize();
    this.legend();
  }

  build(root, label) {
    const button = (text, title, act, more = {}) => element("button", { type: "button", title, click: act, ...more }, text);
    const toggle = (text, title, act) => {
      const made = button(text, title, () => {
        const on = made.getAttribute("aria-pressed") !== "true";
        made.setAttribute("aria-pressed", on);
        act(on);
      }, { "aria-pressed": "true" });
      return made;
    };
    this.input = element("input", { type: "search", placeholder: "Search operations", "aria-label": "Search operations by name",
      input: () => this.search(this.input.value), keydown: (k) => this.searchKey(k) });
    this.found = element("output", { class: "soft" });
    this.zoomTo = button("Selection", "Zoom to the selected event (z)", () => this.zoomToSelected(), { disabled: true });
    const onlyDevices = !this.events.tracks.kind.includes("link");
    const bar = element("div", { class: "tools", role: "toolbar", "aria-label": "Timeline" },
      element("span", { class: "group" },
        button("+", "Zoom in (+)", () => this.view.zoom(0.6), { "aria-label": "Zoom in" }),
        button("−", "Zoom out (-)", () => this.view.zoom(1 / 0.6), { "aria-label": "Zoom out" }),
        button("Fit", "Show the whole step (Home)", () => this.view.fit()), this.zoomTo),
      element("span", { class: "group" },
        toggle("Critical path", "Mark the chain of causes that ends last", (on) => ((this.critical = on), this.redraw())),
        onlyDevices ? null : toggle("Links", "Show the lanes of links", (on) => ((this.links = on), this.resize()))),
      element("span", { class: "group find" }, this.found, this.input,
        button("‹", "Previous match (Shift+Enter)", () => this.step(-1), { "aria-label": "Previous match" }),
        button("›", "Next match (Enter)", () => this.step(1), { "aria-label": "Next match" })));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.spacer = element("div", { class: "spacer" });
    const help = "Arrows move; plus and minus zoom; Home shows everything; Tab goes from event to event; Enter opens " +
      "an event; z zooms to it; Escape lets go.";
    this.frame = element("div", { class: "frame", tabindex: "0", role: "application", "aria-roledescription": "timeline",
      "aria-label": `Timeline${label ? " " + label : ""}: ${counted(this.events.size, "event")}. ${help}` },
    this.canvas, this.spacer);
    this.hint = element("p", { class: "hint", hidden: true }, "Ctrl + wheel zooms; after a click, the wheel alone does.");
    this.tip = element("div", { class: "tip", role: "tooltip", hidden: true });
    this.live = element("p", { class: "unseen", "aria-live": "polite" });
    this.keys = element("p", { class: "legend" });
    this.details = element("div", { class: "details", role: "region", "aria-label": "Selected event", hidden: true,
      keydown: (k) => k.key === "Escape" && (this.select(-1), this.frame.focus()) });
    this.box = element("div", { class: "drawn" }, bar, element("div", { class: "hold" }, this.frame, this.tip, this.hint), this.keys,
      this.details, element("p", { class: "help soft" }, "Drag to move, pinch or wheel to zoom, drag on the time axis to choose a " +
        "range. " + help), this.live);
    root.append(this.box);
    listen(this);
  }

  // Lanes from top to bottom, for the width as it is.
  resize() {
    const width = this.frame.clientWidth;
    if (!width) return;
    this.narrow = width < 560;
    const { name, kind } = this.events.tracks;
    const head = this.narrow ? 14 : 0;
    let y = RULER + 6;
    this.lanes = [];
    name.forEach((_, track) => {
      const device = kind[track] === "device";
      if (!device && !this.links) return;
      const h = device ? 24 : 13;
      this.lanes.push({ track, device, top: y, y: y + head, h, bottom: y + head + h + 7 });
      y += head + h + 7;
    });
    this.height = y + 2;
    const seen = Math.min(this.height, Math.max(320, Math.round(0.72 * innerHeight)));
    this.context.font = FONT;
    this.char = this.context.measureText("mmmmmmmmmm").width / 10;
    this.gutter = this.narrow ? 0 : Math.min(Math.ceil(this.view.longest * this.char) + 18, 200);
    this.width = width - this.gutter;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(seen * scale);
    this.canvas.style.width = width + "px";
    this.canvas.style.height = seen + "px";
    this.frame.style.height = seen + 2 + "px";
    this.spacer.style.height = this.height - seen + "px";
    this.seen = seen;
    this.paint = null;
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (this.lanes) this.draw();
    });
  }

  x(time) {
    return this.gutter + ((time - this.view.from) / (this.view.to - this.view.from)) * this.width;
  }

  time(x) {
    return this.view.from + ((x - this.gutter) / this.width) * (this.view.to - this.view.from);
  }

  draw() {
    const began = performance.now();
    const { context: c, view, events } = this;
    const scale = devicePixelRatio || 1;
    this.paint = this.paint || new Paint(c, scale);
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.font = FONT;
    c.fillStyle = this.paint.paper;
    c.fillRect(0, 0, this.gutter + this.width, this.seen);
    const top = this.frame.scrollTop;
    const lanes = this.lanes.filter((l) => l.bottom > top + RULER && l.top < top + this.seen);
    this.drawAxis(lanes, top);
    c.save();
    c.beginPath();
    c.rect(this.gutter, RULER, this.width, this.seen - RULER);
    c.clip();
    const perSecond = this.width / (view.to - view.from);
    const state = { critical: this.critical ? events.critical : this.none, dimmed: this.dimmed, hits: this.hits };
    for (const lane of lanes) {
      const [first, last] = events.range(lane.track, view.from, view.to);
      const range = { first, last, x0: view.from, perSecond, width: this.width };
      layTrack(lane, events, range, { y: lane.y - top, h: lane.h }, this.lists, state);
    }
    c.translate(this.gutter, 0);
    this.fill(c);
    drawLabels(c, this.paint, this.lists, events, this.char);
    c.translate(-this.gutter, 0);
    if (this.critical) this.drawChain(top);
    this.drawMarks(top);
    c.restore();
    this.report(performance.now() - began);
  }

  fill(c) {
    const { paint, lists } = this;
    lists.plain.forEach((list, i) => {
      if (!list.size) return;
      const level = i % LEVELS, kind = Math.floor(i / LEVELS) % 11, dim = i >= 11 * LEVELS;
      c.fillStyle = paint.colours[kind];
      c.globalAlpha = (dim ? 0.22 : 1) * [0.45, 0.75, 1][level];
      list.fill(c);
    });
    c.globalAlpha = 1;
    lists.pattern.forEach((list, kind) => {
      if (paint.patterns[kind]) c.fillStyle = paint.patterns[kind];
      if (paint.patterns[kind]) list.fill(c);
      list.size = 0;
    });
    c.fillStyle = paint.ink;
    lists.phase.forEach((list) => list.fill(c));
    c.fillStyle = paint.critical;
    lists.chain.fill(c);
    c.globalAlpha = 0.55;
    c.fillStyle = paint.match;
    lists.hits.fill(c);
    c.globalAlpha = 1;
  }

  drawAxis(lanes, top) {
    const { context: c, paint, view } = this;
    const { step, at } = marks(view.from, view.to, this.width / 90);
    c.textBaseline = "middle";
    for (const lane of lanes) {
      c.fillStyle = paint.lane;
      c.fillRect(this.gutter, lane.y - top, this.width, lane.h);
    }
    c.fillStyle = paint.line;
    for (const t of at) c.fillRect(Math.round(this.x(t)), RULER - 4, 1, this.seen);
    for (const lane of lanes) {
      const name = this.events.tracks.name[lane.track];
      c.fillStyle = lane.device ? paint.ink : paint.soft;
      const fit = Math.floor(((this.narrow ? this.width : this.gutter) - 12) / this.char);
      const shown = shortened(name, fit);
      c.fillText(shown, this.narrow ? 2 : 6, (this.narrow ? lane.top + 7 : lane.y + lane.h / 2) - top + 0.5);
    }
    c.fillStyle = paint.paper;
    c.fillRect(0, 0, this.gutter + this.width, RULER);
    c.fillStyle = paint.soft;
    for (const t of at) {
      const shown = markText(t, step, view.to);
      const x = this.x(t);
      if (x + 3 + shown.length * this.char < this.gutter + this.width) c.fillText(shown, x + 3, RULER / 2);
    }
    c.fillStyle = paint.line;
    for (const t of at) c.fillRect(Math.round(this.x(t)), 6, 1, RULER - 6);
    c.fillRect(this.gutter, RULER - 1, this.width, 1);
  }

  laneOf(e) {
    return this.lanes.find((l) => l.track === this.events.track[e]);
  }

  // Lines between the lanes where the critical path changes from one to another.
  drawChain(top) {
    const { context: c, events, view } = this;
    const lanes = [];
    this.lanes.forEach((l) => (lanes[l.track] = l));
    c.strokeStyle = this.paint.critical;
    c.lineWidth = 1;
    // Where changes are closer than pixels are, lines would hide what is behind them: there are none until it is zoomed.
    const lines = [], crowd = new Map();
    for (let i = 1; i < events.chain.length; i++) {
      const a = events.chain[i - 1], b = events.chain[i];
      if (events.track[a] === events.track[b] || events.start[b] < view.from || events.end[a] > view.to) continue;
      const from = lanes[events.track[a]], to = lanes[events.track[b]];
      if (!from || !to) continue;
      const x = Math.round(this.x(events.start[b])) + 0.5, near = Math.floor(x / 10);
      crowd.set(near, (crowd.get(near) || 0) + 1);
      lines.push([near, Math.min(x, this.x(events.end[a])), from.y + from.h + 1.5, x, to.y > from.y ? to.y : to.y + to.h + 3]);
    }
    c.globalAlpha = 0.6;
    c.beginPath();
    for (const [near, x, y, toX, toY] of lines) {
      if (crowd.get(near) > 4) continue;
      c.moveTo(x, y - top);
      c.lineTo(toX, toY - top);
    }
    c.stroke();
    c.globalAlpha = 1;
  }

  outline(e, colour, top, width) {
    const lane = e >= 0 && this.laneOf(e);
    if (!lane) return;
    const x = this.x(this.events.start[e]);
    const w = Math.max(3, this.x(this.events.end[e]) - x);
    this.context.strokeStyle = colour;
    this.context.lineWidth = width;
    this.context.strokeRect(x - 1, lane.y - top - 1, w + 1, lane.h + 2);
  }

  drawMarks(top) {
    const { context: c, paint, events } = this;
    this.outline(this.hovered, paint.ink, top, 1);
    this.outline(this.selected, paint.focus, top, 2.5);
    const e = this.selected >= 0 ? this.selected : this.hovered;
    const cause = e >= 0 ? events.cause[e] : -1;
    const from = cause >= 0 && this.laneOf(cause), to = e >= 0 && this.laneOf(e);
    if (from && to) {
      const x = this.x(events.end[cause]), x2 = this.x(events.start[e]);
      const y = from.y + from.h / 2 - top, y2 = to.y + to.h / 2 - top;
      const bend = Math.max(14, Math.abs(x2 - x) / 2);
      c.strokeStyle = paint.ink;
      c.lineWidth = 1.5;
      c.setLineDash([4, 3]);
      c.beginPath();
      c.moveTo(x, y);
      c.bezierCurveTo(x + bend, y, x2 - bend, y2, x2, y2);
      c.stroke();
      c.setLineDash([]);
      this.outline(cause, paint.soft, top, 1.5);
    }
    if (this.chosen) {
      c.fillStyle = paint.focus;
      c.globalAlpha = 0.2;
      const [a, b] = this.chosen;
      c.fillRect(Math.min(a, b), 0, Math.abs(b - a), this.seen);
      c.globalAlpha = 1;
    }
  }

  // What is drawn, for tests and for those who look at the page with a browser's tools.
  report(ms) {
    this.frames.push(ms);
    if (this.frames.length > 60) this.frames.shift();
    const set = this.frame.dataset;
    set.events = this.events.visible(this.view.from, this.view.to);
    set.from = this.view.from;
    set.to = this.view.to;
    set.selected = this.selected;
    set.frameMs = [...this.frames].sort((a, b) => a - b)[this.frames.length >> 1].toFixed(2);
  }

  legend() {
    const { events } = this;
    const paint = new Paint(this.context, devicePixelRatio || 1);
    const swatch = (kind, over) => swatchOf(paint, kind, over);
    const strip = (y, colour) => (c) => ((c.fillStyle = colour), c.fillRect(0, y, 36, 5));
    const buttons = events.modules.map((name, i) => element("button", { type: "button", "aria-pressed": String(this.module === i),
      title: `Pick out ${name}`, click: () => this.highlight(this.module === i ? -1 : i) }, swatch(i), name || "(no module)"));
    const marks = [];
    if (events.tracks.kind.includes("link")) marks.push(element("span", {}, swatch(10), "transfer"));
    if (events.phase.includes(1)) marks.push(element("span", {}, swatch(0, strip(19, paint.ink)), "backward"));
    if (events.phase.includes(2)) marks.push(element("span", {}, swatch(0, strip(0, paint.ink)), "update"));
    if (events.chain.length) {
      marks.push(element("span", {}, swatch(0, (c) => {
        c.fillStyle = paint.paper;
        c.fillRect(0, 0, 36, 24);
        strip(10, paint.critical)(c);
      }), "critical path"));
    }
    this.keys.replaceChildren(...buttons, ...marks);
  }

  highlight(module) {
    this.module = module;
    this.legend();
    this.dim();
  }

  // Events that are not of the module that was chosen, or not found by the search, are pale.
  dim() {
    const { events, hits, module } = this;
    const searching = this.matches.length > 0;
    for (let e = 0; e < events.size; e++)
      this.dimmed[e] = (module >= 0 && events.colour[e] !== module) || (searching && !hits[e]) ? 1 : 0;
    this.redraw();
  }

  search(wanted) {
    this.matches = wanted ? this.events.named(wanted) : [];
    this.match = -1;
    this.hits.fill(0);
    this.matches.forEach((e) => (this.hits[e] = 1));
    this.found.textContent = wanted ? counted(this.matches.length, "match").replace("matchs", "matches") : "";
    this.dim();
  }

  searchKey(k) {
    if (k.key === "Enter") this.step(k.shiftKey ? -1 : 1);
    else if (k.key === "Escape") {
      this.input.value = "";
      this.search("");
    } else return;
    k.preventDefault();
  }

  step(by) {
    const n = this.matches.length;
    if (!n) return;
    this.match = this.match < 0 ? (by > 0 ? 0 : n - 1) : (this.match + by + n) % n;
    this.found.textContent = `${this.match + 1} of ${n}`;
    this.select(this.matches[this.match], true);
  }

  zoomToSelected() {
    if (this.selected < 0) return;
    const { start, duration } = this.events;
    const room = Math.max(duration[this.selected], this.view.end * 1e-7) * 1.5;
    this.view.set(start[this.selected] - room, start[this.selected] + duration[this.selected] + room);
  }

  // Select an event: it is outlined, read aloud, and told about below the timeline.
  select(e, show = false) {
    this.selected = e;
    this.zoomTo.disabled = e < 0;
    if (e >= 0 && !this.laneOf(e)) {
      this.links = true;
      this.resize();
    }
    if (e >= 0 && show) {
      this.view.show(this.events.start[e], this.events.duration[e], this.width);
      const lane = this.laneOf(e), top = this.frame.scrollTop;
      if (lane.top < top + RULER) this.frame.scrollTop = lane.top - RULER - 6;
      else if (lane.bottom > top + this.seen) this.frame.scrollTop = lane.bottom - this.seen;
    }
    this.live.textContent = e < 0 ? "" : this.events.sentence(e);
    this.tell();
    this.redraw();
  }

  tell() {
    const { events, selected: e } = this;
    this.details.hidden = e < 0;
    if (e < 0) return;
    const go = (to, text) => element("button", { type: "button", click: () => (this.select(to, true), this.open()) }, text);
    const facts = events.facts(e).map(([k, v]) => element("div", {}, element("dt", {}, k), element("dd", {}, v)));
    const acts = element("p", { class: "acts" });
    if (events.cause[e] >= 0) acts.append(go(events.cause[e], `← Cause: ${events.nameOf(events.cause[e])}`));
    const next = events.effects(e);
    next.slice(0, 3).forEach((i) => acts.append(go(i, `→ ${events.nameOf(i)}`)));
    if (next.length > 3) acts.append(element("span", { class: "soft" }, `and ${next.length - 3} more that waited for it`));
    acts.append(element("button", { type: "button", click: () => this.zoomToSelected() }, "Zoom to it"),
      element("button", { type: "button", click: () => (this.select(-1), this.frame.focus()) }, "Close"));
    this.details.replaceChildren(element("h4", {}, events.nameOf(e)), element("dl", {}, ...facts), acts);
  }

  // Move the focus into the details.
  open() {
    const first = this.details.querySelector("button");
    if (this.selected >= 0 && first) first.focus();
  }
}
