// Data, numbers with units, colours, elements.

const DATA = JSON.parse(document.getElementById("placekit-data").textContent);
const DARK = matchMedia("(prefers-color-scheme: dark)");
const PHASES = ["forward", "backward", "update"];

// A number with four digits at most, without an exponent.
const digits = (x) => String(Number(x.toPrecision(4)));

function seconds(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size >= 1 || size === 0) return digits(x) + " s";
  return size >= 1e-3 ? digits(x * 1e3) + " ms" : size >= 1e-6 ? digits(x * 1e6) + " µs" : digits(x * 1e9) + " ns";
}

function bytes(x) {
  if (x === null || x === undefined) return "–";
  if (x < 1024) return Math.round(x) + " B";
  if (x < 0.1 * 2 ** 20) return (x / 2 ** 10).toFixed(1) + " KiB";
  return x < 2 ** 30 ? (x / 2 ** 20).toFixed(1) + " MiB" : (x / 2 ** 30).toFixed(2) + " GiB";
}

const counted = (n, noun) => n.toLocaleString("en") + " " + noun + (n === 1 ? "" : "s");

// An element with attributes (functions listen) and children; strings are text, never HTML.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (i) => css(`--c${i % 10}`);

// Black or white, whichever reads better on a colour such as #1b9e77.
function inkOn(colour) {
  const linear = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000000" : "#ffffff";
}

// The first index at which `test` holds, of a range in which it first fails and then holds.
function firstWhere(from, to, test) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (test(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}
