// Puts what scripts can do into the page: timelines, curves, bars in the module tree, a choice of programs.

const programOf = (node) => {
  const [run, program] = node.closest("[data-of]").dataset.of.split(".").map(Number);
  return DATA.runs[run].programs[program];
};

document.documentElement.classList.add("live");

for (const box of document.querySelectorAll(".command")) {
  const code = box.querySelector("code");
  const button = element("button", { type: "button", click: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // A file opened from a disk may not write to the clipboard in every browser; a selection can always be copied.
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  } }, "Copy");
  box.append(button);
}

const timelines = [];
function enliven(article) {
  if (article.dataset.live) return;
  article.dataset.live = "yes";
  const roots = [...article.querySelectorAll(".timeline")];
  const data = roots.map((r) => programOf(r).timeline);
  const view = new View(Math.max(0, ...data.map((t) => t.end_s)), Math.max(0, ...data.flatMap((t) => t.tracks.name.map((n) => n.length))));
  roots.forEach((root, i) => timelines.push(new Timeline(root, data[i], view, root.dataset.label)));
  const ends = [...article.querySelectorAll(".of")].map((o) => (programOf(o).timeline || { end_s: 0 }).end_s);
  article.querySelectorAll(".devices").forEach((box) => {
    const end = Math.max(0, ...ends);
    const dashed = [...box.querySelectorAll("[data-memory]")].filter((root) => memoryChart(root, programOf(root), end)).length;
    const told = (dashed ? "Dashed: capacity. " : "") + "Drag to zoom; double click to see all.";
    if (!box.closest("details")) box.before(element("p", { class: "soft note" }, told));
  });
  article.querySelectorAll("[data-search]").forEach((root) => searchChart(root, programOf(root)));
  article.querySelectorAll(".tree").forEach(growTree);
}

// Bars of the devices' shares beside each module, made when they are first seen.
function growTree(tree) {
  const { modules, devices } = programOf(tree);
  // Bars are as long as the longest module below the whole network's; its own is full.
  const root = Math.max(...modules.seconds, 1e-300);
  const inner = Math.max(...modules.seconds.filter((_, i) => modules.depth[i] > 0), 0) || root;
  const bar = (line) => {
    const i = Number(line.dataset.m);
    const on = modules.device_seconds[i];
    const total = on.reduce((a, b) => a + b, 0);
    const whole = modules.depth[i] > 0 ? inner : root;
    const made = element("span", { class: "share" });
    on.forEach((s, d) => {
      if (s <= 0) return;
      const part = element("i", { class: `c${d % 9}`, title: `${devices.name[d]}: ${seconds(s)}, ${percent(s / total)}` });
      part.style.width = (100 * s) / whole + "%";
      if (s / whole > 0.06) part.textContent = d;
      made.append(part);
    });
    line.append(made);
  };
  const below = (node) => [...node.children].forEach((child) => {
    const line = child.matches("details") ? child.firstElementChild : child;
    if (line.dataset.m && !line.querySelector(".share")) bar(line);
    if (child.matches("details")) {
      if (child.open) below(child);
      child.addEventListener("toggle", () => child.open && below(child));
    }
  });
  below(tree);
  const all = (open) => tree.querySelectorAll("details").forEach((d) => (d.open = open));
  tree.before(element("div", { class: "tools" }, element("span", { class: "group" },
    element("button", { type: "button", click: () => all(true) }, "Open all"),
    element("button", { type: "button", click: () => all(false) }, "Close all"))));
}

const articles = [...document.querySelectorAll("article")];
function choose(which) {
  articles.forEach((a) => (a.hidden = a !== which));
  enliven(which);
}
if (articles.length > 1) {
  const select = element("select", { change: () => choose(articles[select.selectedIndex]) },
    ...articles.map((a) => element("option", {}, a.dataset.program)));
  articles[0].before(element("p", { class: "tools" }, element("label", {}, "Program ", select)));
}
if (articles.length) choose(articles[0]);
window.placekit = { data: DATA, timelines };
