// Wheel, mouse, fingers and keys of a timeline.

function listen(t) {
  const { frame } = t;
  const point = (p) => {
    const box = t.canvas.getBoundingClientRect();
    return [p.clientX - box.left, p.clientY - box.top];
  };
  const under = (x, y) => {
    const at = y + frame.scrollTop;
    const lane = y > RULER && x >= t.gutter ? t.lanes.find((l) => at >= l.top && at < l.bottom) : null;
    const slack = (1.5 / t.width) * (t.view.to - t.view.from);
    return lane ? t.events.at(lane.track, t.time(x), slack) : { event: -1, near: 0 };
  };
  frame.addEventListener("scroll", () => t.redraw());
  frame.addEventListener("wheel", (w) => {
    const [x] = point(w);
    const unit = w.deltaMode === 1 ? 16 : 1;
    if (w.ctrlKey || w.metaKey || (document.activeElement === frame && !w.shiftKey && Math.abs(w.deltaY) >= Math.abs(w.deltaX) && x >= t.gutter)) {
      t.view.zoom(Math.exp(Math.max(-1, Math.min(1, (w.deltaY * unit * (w.ctrlKey ? 4 : 1)) / 400))), t.time(x));
      t.hint.hidden = true;
    } else if (w.shiftKey || Math.abs(w.deltaX) > Math.abs(w.deltaY)) {
      t.view.pan(((w.deltaX || w.deltaY) * unit) / t.width);
    } else {
      t.hint.hidden = false;
      clearTimeout(t.hiding);
      t.hiding = setTimeout(() => (t.hint.hidden = true), 1600);
      return;
    }
    w.preventDefault();
  }, { passive: false });

  const pointers = new Map();
  let mode = "", began = [0, 0], apart = 0;
  frame.addEventListener("pointerdown", (p) => {
    if (p.button !== 0 || p.offsetX > frame.clientWidth) return;
    const [x, y] = point(p);
    pointers.set(p.pointerId, [x, y]);
    began = [x, y];
    mode = pointers.size > 1 ? "pinch" : y < RULER || p.shiftKey ? "range" : "click";
    const [a, b] = [...pointers.values()];
    apart = b ? Math.abs(a[0] - b[0]) : 0;
    hover(-1);
  });
  frame.addEventListener("pointermove", (p) => {
    const [x, y] = point(p);
    const was = pointers.get(p.pointerId);
    if (!was) {
      if (p.pointerType === "mouse") {
        const found = under(x, y);
        hover(found.event, x, y, found.near);
      }
      return;
    }
    pointers.set(p.pointerId, [x, y]);
    if (mode === "click" && Math.hypot(x - began[0], y - began[1]) > 4) {
      mode = "pan";
      frame.setPointerCapture(p.pointerId);
    }
    if (mode === "pan") {
      t.view.pan((was[0] - x) / t.width);
      if (p.pointerType === "mouse") frame.scrollTop += was[1] - y;
    } else if (mode === "range") {
      t.chosen = [began[0], x];
      t.redraw();
    } else if (mode === "pinch" && pointers.size > 1) {
      const [a, b] = [...pointers.values()];
      const now = Math.abs(a[0] - b[0]);
      if (apart > 10 && now > 10) t.view.zoom(apart / now, t.time((a[0] + b[0]) / 2));
      apart = now;
    }
  });
  const lift = (p) => {
    if (!pointers.delete(p.pointerId)) return;
    const [x, y] = point(p);
    if (p.type === "pointerup" && mode === "click") t.select(under(x, y).event);
    if (p.type === "pointerup" && mode === "range" && Math.abs(x - began[0]) > 4) t.view.set(...[t.time(began[0]), t.time(x)].sort((a, b) => a - b));
    t.chosen = null;
    if (!pointers.size) mode = "";
    t.redraw();
  };
  frame.addEventListener("pointerup", lift);
  frame.addEventListener("pointercancel", lift);
  frame.addEventListener("pointerleave", () => hover(-1));
  frame.addEventListener("dblclick", (p) => {
    t.select(under(...point(p)).event);
    t.zoomToSelected();
  });

  function hover(e, x = 0, y = 0, near = 0) {
    t.tip.hidden = e < 0;
    if (e >= 0 && (e !== t.hovered || t.tip.dataset.near !== String(near))) {
      const rows = t.events.facts(e).map(([k, v]) => element("div", {}, element("dt", {}, k), element("dd", {}, v)));
      const more = near > 1 ? element("p", { class: "soft" }, `the longest of ${near} here: zoom in to see each`) : null;
      t.tip.replaceChildren(element("strong", {}, t.events.nameOf(e)), element("dl", {}, ...rows), ...(more ? [more] : []));
      t.tip.dataset.near = near;
    }
    if (e >= 0) {
      const room = frame.clientWidth - t.tip.offsetWidth - 8;
      t.tip.style.left = Math.max(4, Math.min(x + 14, room)) + "px";
      const below = frame.getBoundingClientRect().top + y + 20 + t.tip.offsetHeight < innerHeight;
      t.tip.style.top = (below ? y + 20 : y - t.tip.offsetHeight - 12) + "px";
    }
    if (e !== t.hovered) {
      t.hovered = e;
      t.redraw();
    }
  }

  // After Escape with nothing selected, Tab leaves the timeline.
  let released = false;
  frame.addEventListener("focus", () => (released = false));
  const visible = () => {
    const found = [];
    for (const lane of t.lanes) {
      const [a, b] = t.events.range(lane.track, t.view.from, t.view.to);
      if (b > a) found.push([a, b]);
    }
    return found;
  };
  const tabbed = (back) => {
    const ranges = visible();
    const k = ranges.findIndex(([a, b]) => t.selected >= a && t.selected < b);
    if (t.selected < 0 || k < 0) return !ranges.length ? -1 : back ? -1 : ranges[0][0];
    const [a, b] = ranges[k];
    if (back) return t.selected > a ? t.selected - 1 : k > 0 ? ranges[k - 1][1] - 1 : -1;
    return t.selected < b - 1 ? t.selected + 1 : k < ranges.length - 1 ? ranges[k + 1][0] : -1;
  };
  // The event of the next lane, up or down, that runs at the time of the selected one or is nearest to it.
  const across = (by) => {
    const { events } = t;
    let k = t.lanes.indexOf(t.laneOf(t.selected)) + by;
    for (; t.lanes[k]; k += by) {
      const first = events.first[t.lanes[k].track], last = events.last[t.lanes[k].track];
      if (last > first) return Math.min(firstWhere(first, last, (i) => events.reach[i] >= events.start[t.selected]), last - 1);
    }
    return t.selected;
  };
  const along = (by) => {
    const to = t.selected + by;
    return t.events.track[to] === t.events.track[t.selected] ? to : t.selected;
  };
  const keys = {
    ArrowLeft: (k) => (t.selected >= 0 && !k.shiftKey ? t.select(along(-1), true) : t.view.pan(-0.15)),
    ArrowRight: (k) => (t.selected >= 0 && !k.shiftKey ? t.select(along(1), true) : t.view.pan(0.15)),
    ArrowUp: () => (t.selected >= 0 ? t.select(across(-1), true) : (frame.scrollTop -= 60)),
    ArrowDown: () => (t.selected >= 0 ? t.select(across(1), true) : (frame.scrollTop += 60)),
    "+": () => t.view.zoom(0.6),
    "=": () => t.view.zoom(0.6),
    "-": () => t.view.zoom(1 / 0.6),
    Home: () => t.view.fit(),
    z: () => t.zoomToSelected(),
    n: () => t.step(1),
    N: () => t.step(-1),
    "/": () => t.input.focus(),
    Enter: () => (t.selected >= 0 ? t.open() : t.select(Math.max(tabbed(false), -1), true)),
    Escape: () => {
      released = true;
      t.select(-1);
    },
  };
  frame.addEventListener("keydown", (k) => {
    if (k.ctrlKey || k.metaKey || k.altKey) return;
    if (k.key === "Tab") {
      const next = released ? -1 : tabbed(k.shiftKey);
      if (next < 0) return;
      t.select(next);
      scrollLane(next);
    } else if (keys[k.key]) keys[k.key](k);
    else return;
    k.preventDefault();
  });
  const scrollLane = (e) => {
    const lane = t.laneOf(e);
    if (lane.bottom > frame.scrollTop + t.seen) frame.scrollTop = lane.bottom - t.seen;
    else if (lane.top < frame.scrollTop + RULER) frame.scrollTop = lane.top - RULER - 6;
  };
}
