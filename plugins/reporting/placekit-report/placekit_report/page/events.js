// The events of a timeline as typed arrays, and questions about them. They are sorted by track, then by start.

class Events {
  constructor(t) {
    const e = t.events;
    this.size = e.track.length;
    this.texts = t.texts;
    this.tracks = t.tracks;
    this.modules = t.colours.module;
    this.track = Int32Array.from(e.track);
    this.start = Float64Array.from(e.start_s);
    this.duration = Float64Array.from(e.duration_s);
    this.end = this.start.map((s, i) => s + this.duration[i]);
    this.colour = Int8Array.from(e.colour);
    this.phase = Uint8Array.from(e.phase);
    this.cause = Int32Array.from(e.cause);
    this.columns = e;
    this.critical = new Uint8Array(this.size);
    t.critical.forEach((i) => (this.critical[i] = 1));
    this.first = Int32Array.from(t.tracks.name, (_, k) => firstWhere(0, this.size, (i) => this.track[i] >= k));
    this.last = Int32Array.from(t.tracks.name, (_, k) => firstWhere(0, this.size, (i) => this.track[i] > k));
    // The latest end so far on each track: it grows with the index, so it can be searched.
    this.reach = this.end.slice();
    for (let i = 1; i < this.size; i++)
      if (this.track[i] === this.track[i - 1]) this.reach[i] = Math.max(this.reach[i], this.reach[i - 1]);
  }

  nameOf(e) {
    return this.texts[this.columns.name[e]];
  }

  // The events of a track that touch a range of time: from the first index to before the second.
  range(track, from, to) {
    const a = this.first[track], b = this.last[track];
    return [firstWhere(a, b, (i) => this.reach[i] > from), firstWhere(a, b, (i) => this.start[i] > to)];
  }

  // The longest event at a time, give or take `slack` seconds; or -1.
  at(track, time, slack) {
    const [a, b] = this.range(track, time - slack, time + slack);
    let best = -1;
    for (let i = a; i < b; i++)
      if (this.end[i] >= time - slack && (best < 0 || this.duration[i] > this.duration[best])) best = i;
    return best;
  }

  // The event before (-1) or after (1) another one on its track.
  beside(e, by) {
    return this.track[e + by] === this.track[e] ? e + by : e;
  }

  // Events whose name holds a text, in the order of time.
  named(wanted) {
    const holds = this.texts.map((t) => t.toLowerCase().includes(wanted.toLowerCase()));
    return [...this.start.keys()].filter((i) => holds[this.columns.name[i]]).sort((a, b) => this.start[a] - this.start[b]);
  }

  // The events that waited for this one.
  effects(e) {
    return [...this.cause.keys()].filter((i) => this.cause[i] === e);
  }

  // Pairs of a name and a text about an event.
  facts(e) {
    const c = this.columns, kind = this.tracks.kind[this.track[e]], sent = kind === "link";
    const why = this.texts[c.why[e]];
    return [
      ["takes", seconds(this.duration[e])],
      ["starts at", seconds(this.start[e])],
      [sent ? "on link" : "on", this.tracks.name[this.track[e]]],
      [sent ? "message" : "output", c.bytes[e] > 0 ? bytes(c.bytes[e]) : ""],
      ["module", c.module[e] >= 0 ? this.texts[c.module[e]] : ""],
      ["type", this.texts[c.type[e]] + (kind === "device" ? `, ${PHASES[this.phase[e]]}` : "")],
      ["why then", why && this.cause[e] >= 0 ? `${why} ${this.nameOf(this.cause[e])}` : why],
      ["critical", this.critical[e] ? "on the critical path" : ""],
    ].filter(([, text]) => text);
  }
}
