// The events of a timeline as typed arrays, and questions about them.

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
    this.phase = Uint8Array.from(e.phase, (p) => Math.max(p, 0));
    this.cause = Int32Array.from(e.cause);
    this.columns = e;
    this.chain = t.critical;
    this.critical = new Uint8Array(this.size);
    t.critical.forEach((i) => (this.critical[i] = 1));
    this.first = Int32Array.from(t.tracks.name, (_, k) => firstWhere(0, this.size, (i) => this.track[i] >= k));
    this.last = Int32Array.from(t.tracks.name, (_, k) => firstWhere(0, this.size, (i) => this.track[i] > k));
    // Until when a track is busy with what started so far: grows with the index, so it can be searched.
    this.reach = this.end.slice();
    for (let i = 1; i < this.size; i++)
      if (this.track[i] === this.track[i - 1]) this.reach[i] = Math.max(this.reach[i], this.reach[i - 1]);
  }

  text(index) {
    return index >= 0 ? this.texts[index] : "";
  }

  nameOf(e) {
    return this.text(this.columns.name[e]);
  }

  isTransfer(e) {
    return this.tracks.kind[this.track[e]] !== "device";
  }

  // The events of a track that touch a range of time: from the first index to before the second.
  range(track, from, to) {
    const a = this.first[track], b = this.last[track];
    return [firstWhere(a, b, (i) => this.reach[i] > from), firstWhere(a, b, (i) => this.start[i] > to)];
  }

  // The event at a time, or the longest of those that are at most `slack` seconds away; with how many there are.
  at(track, time, slack) {
    const [a, b] = this.range(track, time - slack, time + slack);
    let best = -1, inside = false, near = 0;
    for (let i = a; i < b; i++) {
      if (this.end[i] < time - slack) continue;
      near++;
      const holds = this.start[i] <= time && time <= this.end[i];
      if (best < 0 || (holds && !inside) || (holds === inside && this.duration[i] > this.duration[best])) best = i;
      inside = inside || holds;
    }
    return { event: best, near: near };
  }

  // How many events touch a range of time.
  visible(from, to) {
    let found = 0;
    for (let k = 0; k < this.first.length; k++) {
      const [a, b] = this.range(k, from, to);
      found += b - a;
    }
    return found;
  }

  // Events whose name holds a text, in the order of time.
  named(wanted) {
    const small = wanted.toLowerCase();
    const holds = this.texts.map((t) => t.toLowerCase().includes(small));
    const found = [];
    for (let i = 0; i < this.size; i++) if (holds[this.columns.name[i]]) found.push(i);
    return found.sort((a, b) => this.start[a] - this.start[b] || a - b);
  }

  // What an event made start, the first few.
  effects(e) {
    if (!this.followers) {
      this.followers = new Map();
      this.cause.forEach((c, i) => c >= 0 && (this.followers.has(c) ? this.followers.get(c).push(i) : this.followers.set(c, [i])));
    }
    return this.followers.get(e) || [];
  }

  // Why an event started when it did, as a sentence.
  why(e) {
    const said = this.text(this.columns.why[e]);
    const cause = this.cause[e];
    return said && cause >= 0 ? `${said} ${this.nameOf(cause)}` : said;
  }

  // Pairs of a name and a text about an event.
  facts(e) {
    const c = this.columns;
    const found = [["takes", seconds(this.duration[e])], ["starts at", seconds(this.start[e])]];
    found.push([this.isTransfer(e) ? "on link" : "on", this.tracks.name[this.track[e]]]);
    if (c.bytes[e] > 0) found.push([this.isTransfer(e) ? "message" : "output", bytes(c.bytes[e])]);
    if (c.module[e] >= 0 && this.text(c.module[e])) found.push(["module", this.text(c.module[e])]);
    const type = this.text(c.type[e]);
    if (type) found.push(["type", this.isTransfer(e) ? type : `${type}, ${PHASES[this.phase[e]]}`]);
    if (this.why(e)) found.push(["why then", this.why(e)]);
    if (this.critical[e]) found.push(["critical", "on the critical path"]);
    return found;
  }

  sentence(e) {
    return [this.nameOf(e), ...this.facts(e).map(([k, v]) => `${k} ${v}`)].join(", ");
  }
}
