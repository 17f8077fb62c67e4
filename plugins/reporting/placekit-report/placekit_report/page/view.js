// The visible range of time of a timeline; `changed` is called when it changes.

class View {
  constructor(end, changed) {
    this.end = end > 0 ? end : 1;
    this.from = 0;
    this.to = this.end;
    this.changed = changed;
  }

  set(from, to) {
    const least = this.end * 1e-7;
    const span = Math.min(Math.max(to - from, least), this.end);
    const start = Math.min(Math.max((from + to - span) / 2, 0), this.end - span);
    this.from = start;
    this.to = start + span;
    this.changed();
  }

  // Zoom by a factor (below 1: closer) around a time.
  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.min(Math.max((this.to - this.from) * factor, this.end * 1e-7), this.end);
    const share = (at - this.from) / (this.to - this.from);
    this.set(at - share * span, at + (1 - share) * span);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    const least = Math.min(Math.max(by, -this.from), this.end - this.to);
    this.set(this.from + least, this.to + least);
  }

  fit() {
    this.set(0, this.end);
  }

  // Make a range visible, with room around it; tiny ones come closer.
  show(start, duration, width) {
    const span = this.to - this.from;
    const pixels = (duration / span) * width;
    if (pixels < 12 || pixels > 0.8 * width) {
      const wanted = Math.max(duration * (width / 90), this.end * 1e-6);
      this.set(start + duration / 2 - wanted / 2, start + duration / 2 + wanted / 2);
    } else if (start < this.from || start + duration > this.to) {
      this.set(start + duration / 2 - span / 2, start + duration / 2 + span / 2);
    }
  }
}

// Times at which an axis has marks: 1, 2 or 5 times a power of ten apart.
function marks(from, to, most) {
  const rough = (to - from) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= rough);
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
  return { step, at: found };
}

// The text of a mark: one unit for the whole axis, as many digits as the step needs.
function markText(time, step, to) {
  const [scale, unit] = to >= 1 ? [1, "s"] : to >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const places = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
  return (time * scale).toFixed(places) + " " + unit;
}
