// Curves: memory over time and the search, drawn by uPlot.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [5, 2, 1, 2, 1, 2], [12, 4], [3, 6], [1, 2]];
const dashOf = (i) => DASHES[i % DASHES.length];

// Round values of an axis of bytes: powers of two apart.
function byteMarks(u, axis, from, to) {
  const rough = (to - from) / 4 || 1;
  const step = 2 ** Math.ceil(Math.log2(rough));
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
  return found;
}

function shortBytes(x) {
  const [scale, unit] = x >= 2 ** 30 ? [2 ** 30, "GiB"] : x >= 2 ** 20 ? [2 ** 20, "MiB"] : x >= 2 ** 10 ? [2 ** 10, "KiB"] : [1, "B"];
  return digits(Number((x / scale).toPrecision(3))) + " " + unit;
}

const axis = (values, size, more = {}) => ({
  stroke: css("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: css("--line"), width: 1 },
  ticks: { stroke: css("--line"), width: 1, size: 4 }, values: (u, at) => at.map(values), size, ...more,
});

// A box beside the cursor; `told` gives its lines, pairs of a name and a value, for an index.
function tooltip(told) {
  const box = element("div", { class: "tip", hidden: true });
  return {
    hooks: {
      init: (u) => u.over.append(box),
      setCursor: (u) => {
        const { left, idx } = u.cursor;
        const rows = left >= 0 && idx !== null && idx !== undefined ? told(u, idx) : [];
        box.hidden = !rows.length;
        if (!rows.length) return;
        box.replaceChildren(element("dl", {}, ...rows.map(([k, v]) => element("div", {}, element("dt", {}, k), element("dd", {}, v)))));
        const width = u.over.clientWidth;
        box.style.left = (left > width / 2 ? Math.max(left - box.offsetWidth - 12, 0) : Math.min(left + 12, width - box.offsetWidth)) + "px";
        box.style.top = "6px";
      },
    },
  };
}

// A chart in an element: made again when the colours change, resized with the element.
function chart(root, label, height, options, data) {
  let made = null;
  root.setAttribute("role", "img");
  root.setAttribute("aria-label", label);
  const draw = () => {
    if (!root.clientWidth) return;
    if (made) made.destroy();
    made = new uPlot({ width: root.clientWidth, height, legend: { show: false }, ...options() }, data(), root);
  };
  root.redraw = draw;
  DARK.addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    if (made && width) made.setSize({ width, height });
    else draw();
  }).observe(root);
}

// Returns whether the line of the capacity is drawn.
function memoryChart(root, program, end) {
  const i = Number(root.dataset.memory);
  const m = program.memory.device[i];
  const name = program.devices.name[i];
  const capacity = m.capacity_bytes > 0 && Number.isFinite(m.capacity_bytes) ? m.capacity_bytes : null;
  // A line of capacity far above what is used would leave nothing to see: then the text alone says it.
  const shown = capacity && capacity < 4 * m.peak_bytes ? capacity : null;
  const last = m.bytes.length ? m.bytes[m.bytes.length - 1] : 0;
  const times = [...m.time_s], held = [...m.bytes];
  if (times.length && times[times.length - 1] < end) {
    times.push(end);
    held.push(last);
  }
  const options = () => ({
    padding: [8, 22, 0, 0],
    cursor: { sync: { key: "memory" }, y: false, points: { size: 6 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: [0, 1.06 * Math.max(m.peak_bytes, shown || 0) || 1] } },
    axes: [axis(seconds, 30, { space: 70 }), axis(shortBytes, 62, { splits: byteMarks })],
    series: [{}, { stroke: colourOf(i % 9), fill: colourOf(i % 9) + "33", width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
      { stroke: css("--critical"), width: 1.5, dash: [6, 4], points: { show: false } }],
    plugins: [tooltip((u, at) => [["at", seconds(u.data[0][at])], ["held", bytes(u.data[1][at])],
      ...(capacity ? [["capacity", bytes(capacity)], ["in use", percent(u.data[1][at] / capacity)]] : [])])],
  });
  chart(root, `Memory of ${name} over the step: at most ${bytes(m.peak_bytes)}${capacity ? " of " + bytes(capacity) : ""}`, 150, options,
    () => [times, held, times.map(() => shown)]);
  return shown !== null;
}

function searchChart(root, program) {
  const found = program.search;
  let across = "evaluations";
  const data = () => {
    const tables = [];
    found.forEach((s) => {
      const keep = s[across].map((x, i) => [x, s.best_s[i], s.mean_s[i]]).filter(([x], i, all) => i === 0 || x > all[i - 1][0]);
      tables.push([keep.map((k) => k[0]), keep.map((k) => k[1]), keep.map((k) => k[2])]);
    });
    // Means first, so that the best lie over them.
    const [x, ...columns] = uPlot.join(tables);
    return [x, ...columns.filter((_, i) => i % 2 === 1), ...columns.filter((_, i) => i % 2 === 0)];
  };
  const ends = found.flatMap((s) => s.best_s).filter((x) => x !== null);
  const means = found.flatMap((s) => s.mean_s).filter((x) => x !== null).sort((a, b) => a - b);
  const low = ends.reduce((a, b) => Math.min(a, b), program.bound_s || Infinity);
  const high = ends.reduce((a, b) => Math.max(a, b), means.length ? means[Math.floor(0.8 * (means.length - 1))] : 0);
  // Values that the axis would give the same text lie on one line: rounding must not look like a gap.
  const room = 0.06 * (high - low > 1e-4 * high ? high - low : high) || 1;
  const options = () => ({
    padding: [8, 22, 0, 0],
    cursor: { y: false, points: { size: 6 } },
    scales: { x: { time: false }, y: { range: (u, a, b) => [Math.max(low - room, 0), high + room] } },
    axes: [axis((x) => (across === "seconds" ? seconds(x) : x.toLocaleString("en")), 30, { space: 70 }), axis(seconds, 70)],
    series: [{}, ...found.map((s, i) => ({ stroke: colourOf(i % 9) + "60", width: 1, spanGaps: true, points: { show: false } })),
      ...found.map((s, i) => ({ stroke: colourOf(i % 9), width: i ? 1.5 : 2.5, dash: dashOf(i), spanGaps: true,
        paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }))],
    plugins: [tooltip((u, at) => {
      const x = u.data[0][at];
      const rows = [[across, across === "seconds" ? seconds(x) : x.toLocaleString("en")]];
      found.forEach((s) => {
        const k = firstWhere(0, s[across].length, (i) => s[across][i] > x) - 1;
        if (k >= 0) rows.push([s.label, `${seconds(s.best_s[k])}, mean ${seconds(s.mean_s[k])}`]);
      });
      return rows.length > 9 ? [...rows.slice(0, 9), ["and", `${rows.length - 9} more`]] : rows;
    }), {
      hooks: { draw: (u) => {
        if (!program.bound_s) return;
        const y = u.valToPos(program.bound_s, "y", true), c = u.ctx, { left, width, top } = u.bbox;
        if (y < top || y > top + u.bbox.height) return;
        c.save();
        c.strokeStyle = c.fillStyle = css("--critical");
        c.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        c.lineWidth = devicePixelRatio;
        c.beginPath();
        c.moveTo(left, y);
        c.lineTo(left + width, y);
        c.stroke();
        c.textAlign = "right";
        c.textBaseline = "bottom";
        c.fillText("proven bound", left + width - 4, y - 3);
        c.restore();
      } },
    }],
  });
  chart(root, `The search: the best ${program.objective} against ${across}, ${counted(found.length, "curve")}`, 240, options, data);
  const choose = ["evaluations", "seconds"].map((name) => element("button", { type: "button", "aria-pressed": String(name === across), click: () => {
    across = name;
    choose.forEach((b) => b.setAttribute("aria-pressed", String(b.textContent === "by " + name)));
    root.redraw();
  } }, "by " + name));
  const line = (i) => {
    const made = element("canvas", { width: 56, height: 12, class: "line" });
    const c = made.getContext("2d");
    c.strokeStyle = colourOf(i % 9);
    c.lineWidth = 4;
    c.setLineDash(dashOf(i).map((d) => 2 * d));
    c.beginPath();
    c.moveTo(0, 6);
    c.lineTo(56, 6);
    c.stroke();
    return made;
  };
  root.before(element("div", { class: "tools" }, element("span", { class: "group" }, ...choose)));
  root.after(element("p", { class: "legend" }, ...found.map((s, i) => element("span", {}, line(i), s.label)),
    element("span", { class: "soft" }, "bold: the best so far; fine: the mean of a batch")));
}
