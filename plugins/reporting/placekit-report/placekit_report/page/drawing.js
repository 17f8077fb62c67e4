// Drawing a timeline on a canvas. Events that are narrower than a pixel are merged: one column has the colour that takes most of it.

const RULER = 22;
const LEVELS = 3;
const FONT = '11px ui-monospace, "SFMono-Regular", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

// Rectangles of one colour and one opacity, four numbers each.
class Rectangles {
  constructor() {
    this.values = new Float32Array(1024);
    this.size = 0;
  }

  // A rectangle that touches the one before it makes that one wider: fewer to fill.
  add(x, y, w, h) {
    const before = this.size - 4;
    if (before >= 0 && this.values[before + 1] === y && Math.abs(this.values[before] + this.values[before + 2] - x) < 0.02) {
      this.values[before + 2] = x + w - this.values[before];
      return;
    }
    if (this.size + 4 > this.values.length) {
      const grown = new Float32Array(2 * this.values.length);
      grown.set(this.values);
      this.values = grown;
    }
    const v = this.values;
    let i = this.size;
    v[i++] = x;
    v[i++] = y;
    v[i++] = w;
    v[i++] = h;
    this.size = i;
  }

  fill(context) {
    const v = this.values;
    for (let i = 0; i < this.size; i += 4) context.fillRect(v[i], v[i + 1], v[i + 2], v[i + 3]);
    this.size = 0;
  }
}

// Patterns, the second mark of a module beside its colour; number 0 and `other` are plain.
function patternTile(kind, ink, scale) {
  const size = 8 * scale;
  const tile = element("canvas", { width: size, height: size });
  const c = tile.getContext("2d");
  c.scale(scale, scale);
  c.strokeStyle = c.fillStyle = ink;
  c.globalAlpha = 0.24;
  c.lineWidth = 1.2;
  const line = (...p) => {
    c.beginPath();
    for (let i = 0; i < p.length; i += 4) {
      c.moveTo(p[i], p[i + 1]);
      c.lineTo(p[i + 2], p[i + 3]);
    }
    c.stroke();
  };
  const dot = (x, y, r) => {
    c.beginPath();
    c.arc(x, y, r, 0, 7);
    c.fill();
  };
  if (kind === 1 || kind === 5) line(-1, 9, 9, -1, -1, 1, 1, -1, 7, 9, 9, 7);
  if (kind === 2) dot(2, 2, 1.1), dot(6, 6, 1.1);
  if (kind === 3) line(0, 2, 8, 2, 0, 6, 8, 6);
  if (kind === 4 || kind === 5) line(-1, -1, 9, 9, 7, -1, 9, 1, -1, 7, 1, 9);
  if (kind === 6) line(2, 0, 2, 8, 6, 0, 6, 8);
  if (kind === 7) line(0, 4, 8, 4, 4, 0, 4, 8);
  if (kind === 8) dot(4, 4, 2);
  return tile;
}

// The colours of the page as it is now: light, dark.
class Paint {
  constructor(context, scale) {
    this.colours = [...Array(10).keys()].map(colourOf);
    this.colours.push(css("--transfer"));
    this.inks = this.colours.map(inkOn);
    this.patterns = this.colours.map((_, i) => {
      if (i === 0 || i === 9) return null;
      const made = context.createPattern(patternTile(i === 10 ? 4 : i, this.inks[i], scale), "repeat");
      made.setTransform(new DOMMatrix().scale(1 / scale));
      return made;
    });
    for (const name of ["paper", "ink", "soft", "line", "lane", "critical", "match", "focus"]) this[name] = css(`--${name}`);
  }
}

// A colour and its pattern in a legend; `over` draws more on it.
function swatchOf(paint, kind, over) {
  const made = element("canvas", { width: 36, height: 24, class: "swatch" });
  const c = made.getContext("2d");
  c.fillStyle = paint.colours[kind];
  c.fillRect(0, 0, 36, 24);
  if (kind > 0 && kind !== 9) {
    c.fillStyle = c.createPattern(patternTile(kind === 10 ? 4 : kind, paint.inks[kind], 2), "repeat");
    c.fillRect(0, 0, 36, 24);
  }
  if (over) over(c);
  return made;
}

// Draws the events of one track into the lists of `lists`: plain rectangles by colour and opacity, and what lies over them.
function layTrack(line, events, range, place, lists, state) {
  const { start, end, colour } = events;
  const { critical, dimmed, hits } = state;
  const { first, last, x0, perSecond, width } = range;
  const { y, h } = place;
  const { weight, phases } = lists;
  const bar = (phase, x, w) => {
    if (line.device && phase) lists.phase[phase].add(x, phase === 1 ? y + h - 2 : y, w, 2);
  };
  let column = -1, most = 0, taken = 0, hit = false, chain = false, lit = false;
  const flush = () => {
    if (column < 0) return;
    const level = Math.min(LEVELS - 1, Math.floor(taken * LEVELS));
    lists.plain[(lit ? 0 : 1) * 11 * LEVELS + most * LEVELS + level].add(column, y, 1, h);
    bar(phases.indexOf(Math.max(phases[0], phases[1], phases[2])), column, 1);
    if (chain) lists.chain.add(column, y + h, 1, 3);
    if (hit) lists.hits.add(column, y - 2, 1, h + 2);
    weight.fill(0);
    phases.fill(0);
    taken = 0;
    column = -1;
    hit = chain = lit = false;
  };
  for (let e = first; e < last; e++) {
    const a = (start[e] - x0) * perSecond, b = (end[e] - x0) * perSecond;
    const kind = colour[e] < 0 ? 10 : colour[e];
    if (b - a < 1) {
      const at = Math.floor(a);
      if (at !== column) flush();
      if (column < 0) {
        column = at;
        most = kind;
      }
      weight[kind] += b - a + 1e-6;
      phases[events.phase[e]] += b - a + 1e-6;
      taken += b - a;
      if (weight[kind] > weight[most]) most = kind;
      chain = chain || critical[e] === 1;
      hit = hit || hits[e] === 1;
      lit = lit || dimmed[e] === 0;
      continue;
    }
    flush();
    const left = Math.max(a, -2), right = Math.min(b, width + 2);
    const w = Math.max(1, right - left - (right - left > 6 ? 1 : 0));
    lists.plain[dimmed[e] * 11 * LEVELS + kind * LEVELS + LEVELS - 1].add(left, y, w, h);
    if (critical[e]) lists.chain.add(left, y + h, w, 3);
    if (hits[e]) lists.hits.add(left, y - 2, w, h + 2);
    if (!dimmed[e]) lists.pattern[kind].add(left, y, w, h);
    bar(events.phase[e], left, w);
    if (w > 30 && h >= 14) lists.labels.push(e, left, y, w, h, dimmed[e]);
  }
  flush();
}

// A name in so many characters: without its middle, because names of micro-batches and layers differ in their ends.
function shortened(name, fit) {
  if (name.length <= fit) return name;
  const tail = Math.max(2, Math.floor(fit / 3));
  return fit > 4 ? name.slice(0, fit - 1 - tail) + "…" + name.slice(-tail) : "";
}

function drawLabels(context, paint, lists, events, char) {
  context.textBaseline = "middle";
  for (let i = 0; i < lists.labels.length; i += 6) {
    const [e, x, y, w, h, dim] = lists.labels.slice(i, i + 6);
    const fit = Math.floor((w - 7) / char);
    const name = events.nameOf(e);
    const shown = shortened(name, fit);
    if (!shown) continue;
    const kind = events.colour[e] < 0 ? 10 : events.colour[e];
    context.globalAlpha = dim ? 0.5 : 1;
    context.fillStyle = dim ? paint.ink : paint.inks[kind];
    context.fillText(shown, x + 4, y + h / 2 + 0.5);
  }
  context.globalAlpha = 1;
  lists.labels.length = 0;
}
