// A timeline on a canvas: a lane per track. It pans, zooms, finds operations by name, and tells about events.

const RULER = 22, DEVICE = 26, LINK = 16, SPACE = 6;
const FONT = '11px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const HELP = "Drag to move; Ctrl and the wheel, or + and −, zoom; Home shows the whole step; click an event to keep it, then " +
  "left and right go to its neighbours; / searches.";

class Timeline {
  constructor(root, data) {
    this.events = new Events(data);
    this.view = new View(data.end_s, () => this.redraw());
    this.critical = true;
    this.module = this.selected = this.hovered = this.match = -1;
    this.matches = [];
    this.dimmed = new Uint8Array(this.events.size);
    this.lanes = [];
    let y = RULER + SPACE;
    this.events.tracks.name.forEach((name, track) => {
      const height = this.events.tracks.kind[track] === "device" ? DEVICE : LINK;
      this.lanes.push({ track, name, y, height });
      y += height + SPACE;
    });
    this.height = y;
    this.build(root);
    this.context = this.canvas.getContext("2d");
    DARK.addEventListener("change", () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.resize();
    this.listen();
  }

  build(root) {
    const button = (text, title, click, more = {}) => element("button", { type: "button", title, click, ...more }, text);
    const critical = button("Critical path", "Mark the chain of causes that ends last", () => {
      this.critical = !this.critical;
      critical.setAttribute("aria-pressed", this.critical);
      this.redraw();
    }, { "aria-pressed": "true" });
    this.input = element("input", { type: "search", placeholder: "Search operations", "aria-label": "Search operations by name",
      input: () => this.search(this.input.value), keydown: (k) => k.key === "Enter" && this.step(k.shiftKey ? -1 : 1) });
    this.found = element("output", { class: "soft" });
    const bar = element("div", { class: "tools", role: "toolbar", "aria-label": "Timeline" },
      element("span", { class: "group" },
        button("+", "Zoom in", () => this.view.zoom(0.6)), button("−", "Zoom out", () => this.view.zoom(1 / 0.6)),
        button("Fit", "Show the whole step", () => this.view.fit()), critical),
      element("span", { class: "group find" }, this.found, this.input,
        button("‹", "Previous match", () => this.step(-1)), button("›", "Next match", () => this.step(1))));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.frame = element("div", { class: "frame", tabindex: "0", role: "application",
      "aria-label": `Timeline: ${counted(this.events.size, "event")}. ${HELP}` }, this.canvas);
    this.tip = element("div", { class: "tip", role: "tooltip", hidden: true });
    this.details = element("div", { class: "details", "aria-live": "polite", hidden: true });
    const names = this.events.modules.map((name, i) => element("button", { type: "button", title: `Pick out ${name}`,
      click: () => this.pickOut(this.module === i ? -1 : i) }, element("i", { class: `d c${i % 10}` }), name || "(no module)"));
    root.append(element("div", { class: "drawn" }, bar, element("div", { class: "hold" }, this.frame, this.tip),
      element("p", { class: "legend" }, ...names), this.details, element("p", { class: "help soft" }, HELP)));
  }

  resize() {
    const scale = devicePixelRatio || 1, width = this.frame.clientWidth;
    this.gutter = Math.min(12 + 7 * Math.max(...this.lanes.map((l) => l.name.length)), width / 4);
    this.width = Math.max(width - this.gutter, 10);
    this.canvas.width = width * scale;
    this.canvas.height = this.height * scale;
    this.canvas.style.width = width + "px";
    this.canvas.style.height = this.height + "px";
    this.redraw();
  }

  redraw() {
    if (this.waiting || !this.context) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  x(time) {
    return this.gutter + ((time - this.view.from) / (this.view.to - this.view.from)) * this.width;
  }

  time(x) {
    return this.view.from + ((x - this.gutter) / this.width) * (this.view.to - this.view.from);
  }

  draw() {
    const { context: c, view } = this, scale = devicePixelRatio || 1;
    const colour = Object.fromEntries(["paper", "ink", "soft", "line", "lane", "critical", "transfer", "focus"].map((n) => [n, css(`--${n}`)]));
    const fills = [...Array(10).keys()].map(colourOf);
    const inks = fills.map(inkOn);
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = colour.paper;
    c.fillRect(0, 0, this.gutter + this.width, this.height);
    const { step, at } = marks(view.from, view.to, this.width / 90);
    for (const lane of this.lanes) {
      c.fillStyle = colour.lane;
      c.fillRect(this.gutter, lane.y, this.width, lane.height);
      c.fillStyle = colour.soft;
      c.fillText(shortened(lane.name, Math.floor((this.gutter - 8) / 7)), 4, lane.y + lane.height / 2);
    }
    for (const t of at) {
      c.fillStyle = colour.line;
      c.fillRect(Math.round(this.x(t)), 6, 1, this.height);
      c.fillStyle = colour.soft;
      if (this.x(t) < this.gutter + this.width - 50) c.fillText(markText(t, step, view.to), this.x(t) + 3, RULER / 2);
    }
    c.save();
    c.beginPath();
    c.rect(this.gutter, RULER, this.width, this.height);
    c.clip();
    this.lanes.forEach((lane) => this.drawLane(lane, colour, fills, inks));
    this.outline(this.hovered, colour.ink, 1);
    this.outline(this.selected, colour.focus, 2.5);
    this.outline(this.selected >= 0 ? this.events.cause[this.selected] : -1, colour.soft, 1.5);
    c.restore();
    Object.assign(this.frame.dataset, { from: view.from, to: view.to, selected: this.selected });
  }

  // The events of a lane. Of several in one column of pixels, the first is drawn, and marked if one is on the critical path.
  drawLane({ track, y, height }, colour, fills, inks) {
    const { events, view, context: c } = this;
    const [first, last] = events.range(track, view.from, view.to);
    let column = -1;
    for (let e = first; e < last; e++) {
      const left = Math.max(this.x(events.start[e]), this.gutter - 2);
      const width = Math.min(this.x(events.end[e]), this.gutter + this.width + 2) - left;
      if (this.critical && events.critical[e]) {
        c.fillStyle = colour.critical;
        c.fillRect(left, y + height, Math.max(width, 1), 3);
      }
      if (width < 1 && Math.floor(left) === column && this.matches.length === 0) continue;
      column = Math.floor(left);
      const kind = events.colour[e];
      c.globalAlpha = this.dimmed[e] ? 0.2 : 1;
      c.fillStyle = kind < 0 ? colour.transfer : fills[kind % 10];
      c.fillRect(left, y, Math.max(width - (width > 6 ? 1 : 0), 1), height);
      if (events.phase[e] && height === DEVICE) {
        c.fillStyle = colour.ink;
        c.fillRect(left, events.phase[e] === 1 ? y + height - 2 : y, Math.max(width - 1, 1), 2);
      }
      if (width > 30) {
        c.fillStyle = kind < 0 ? inkOn(colour.transfer) : inks[kind % 10];
        c.fillText(shortened(events.nameOf(e), Math.floor((width - 7) / 7)), left + 4, y + height / 2);
      }
      c.globalAlpha = 1;
    }
  }

  outline(e, colour, width) {
    if (e < 0) return;
    const { y, height } = this.lanes[this.events.track[e]], x = this.x(this.events.start[e]);
    this.context.strokeStyle = colour;
    this.context.lineWidth = width;
    this.context.strokeRect(x - 1, y - 1, Math.max(3, this.x(this.events.end[e]) - x) + 1, height + 2);
  }

  listen() {
    const { frame } = this;
    const point = (p) => {
      const box = this.canvas.getBoundingClientRect();
      return [p.clientX - box.left, p.clientY - box.top];
    };
    const under = ([x, y]) => {
      const lane = x >= this.gutter && this.lanes.find((l) => y >= l.y && y < l.y + l.height + SPACE);
      return lane ? this.events.at(lane.track, this.time(x), (1.5 / this.width) * (this.view.to - this.view.from)) : -1;
    };
    frame.addEventListener("wheel", (w) => {
      if (w.ctrlKey || w.metaKey || (document.activeElement === frame && Math.abs(w.deltaY) > Math.abs(w.deltaX)))
        this.view.zoom(Math.exp(Math.max(-1, Math.min(1, w.deltaY / 300))), this.time(point(w)[0]));
      else if (w.deltaX) this.view.pan(w.deltaX / this.width);
      else return;
      w.preventDefault();
    }, { passive: false });
    let began = null, last = null;
    frame.addEventListener("pointerdown", (p) => (began = last = point(p)));
    frame.addEventListener("pointermove", (p) => {
      const here = point(p);
      if (!began) return this.hover(under(here), here);
      if (Math.hypot(here[0] - began[0], here[1] - began[1]) > 4) frame.setPointerCapture(p.pointerId);
      if (frame.hasPointerCapture(p.pointerId)) this.view.pan((last[0] - here[0]) / this.width);
      last = here;
    });
    frame.addEventListener("pointerup", (p) => {
      if (began && !frame.hasPointerCapture(p.pointerId)) this.select(under(point(p)));
      began = null;
    });
    frame.addEventListener("pointercancel", () => (began = null));
    frame.addEventListener("pointerleave", () => this.hover(-1));
    frame.addEventListener("dblclick", (p) => this.select(under(point(p)), true));
    const along = (by) => (this.selected >= 0 ? this.select(this.events.beside(this.selected, by), true) : this.view.pan(0.15 * by));
    const keys = {
      ArrowLeft: () => along(-1), ArrowRight: () => along(1), "+": () => this.view.zoom(0.6), "-": () => this.view.zoom(1 / 0.6),
      Home: () => this.view.fit(), Escape: () => this.select(-1), "/": () => this.input.focus(),
    };
    frame.addEventListener("keydown", (k) => {
      if (k.ctrlKey || k.metaKey || k.altKey || !keys[k.key]) return;
      keys[k.key]();
      k.preventDefault();
    });
  }

  hover(e, [x, y] = [0, 0]) {
    this.tip.hidden = e < 0;
    if (e >= 0) {
      if (e !== this.hovered) this.tip.replaceChildren(element("strong", {}, this.events.nameOf(e)), this.facts(e));
      this.tip.style.left = Math.max(4, Math.min(x + 14, this.frame.clientWidth - this.tip.offsetWidth - 8)) + "px";
      this.tip.style.top = y + 20 + "px";
    }
    if (e !== this.hovered) this.redraw();
    this.hovered = e;
  }

  facts(e) {
    return element("dl", {}, ...this.events.facts(e).map(([k, v]) => element("div", {}, element("dt", {}, k), element("dd", {}, v))));
  }

  // Keep an event: it is outlined and described below the timeline; `show` also brings it into view.
  select(e, show = false) {
    this.selected = e;
    if (e >= 0 && show) this.view.show(this.events.start[e], this.events.duration[e], this.width);
    this.details.hidden = e < 0;
    if (e >= 0) {
      const go = (to, arrow) => element("button", { type: "button", click: () => this.select(to, true) }, `${arrow} ${this.events.nameOf(to)}`);
      const cause = this.events.cause[e];
      const acts = element("p", { class: "acts" }, cause >= 0 ? go(cause, "← Cause:") : null,
        ...this.events.effects(e).slice(0, 3).map((to) => go(to, "→")));
      this.details.replaceChildren(element("h4", {}, this.events.nameOf(e)), this.facts(e), acts);
    }
    this.redraw();
  }

  search(wanted) {
    this.matches = wanted ? this.events.named(wanted) : [];
    this.match = -1;
    this.found.textContent = wanted ? `${this.matches.length} found` : "";
    this.dim();
  }

  step(by) {
    const n = this.matches.length;
    if (!n) return;
    this.match = this.match < 0 ? (by > 0 ? 0 : n - 1) : (this.match + by + n) % n;
    this.found.textContent = `${this.match + 1} of ${n}`;
    this.select(this.matches[this.match], true);
  }

  pickOut(module) {
    this.module = module;
    this.dim();
  }

  // Fade events outside the chosen module, and events that the search did not find.
  dim() {
    const found = new Set(this.matches);
    for (let e = 0; e < this.events.size; e++)
      this.dimmed[e] = (this.module >= 0 && this.events.colour[e] !== this.module) || (found.size && !found.has(e)) ? 1 : 0;
    this.redraw();
  }
}

// A name in so many characters: without its middle, because names of micro-batches and layers differ in their ends.
function shortened(name, fit) {
  if (name.length <= fit) return name;
  const tail = Math.max(2, Math.floor(fit / 3));
  return fit > 4 ? name.slice(0, fit - 1 - tail) + "…" + name.slice(-tail) : "";
}
