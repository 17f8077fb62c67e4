// Adds the parts that need scripts: timelines and a choice of programs.

const programOf = (node) => DATA.run.programs[Number(node.closest("article").dataset.number)];

document.documentElement.classList.add("live");

const timelines = [];
function enliven(article) {
  if (article.dataset.live) return;
  article.dataset.live = "yes";
  article.querySelectorAll(".timeline").forEach((root) => timelines.push(new Timeline(root, programOf(root).timeline)));
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

// Copy the text beside a button; where the browser refuses, select it.
document.querySelectorAll("button.copy").forEach((button) => {
  const text = button.closest("div").querySelector("pre");
  const tell = (copied) => {
    button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), 4000);
  };
  const select = () => {
    getSelection().selectAllChildren(text);
    tell(document.execCommand("copy"));
  };
  button.hidden = false;
  button.addEventListener("click", () =>
    navigator.clipboard ? navigator.clipboard.writeText(text.textContent).then(() => tell(true), select) : select());
});

window.placekit = { data: DATA, timelines };
