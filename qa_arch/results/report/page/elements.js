// What every page of qa_arch has: the data that it was given, elements, light and dark.
const DATA = JSON.parse(document.getElementById("qa-data").textContent);

/** Bytes of a packed element: Base64 of deflate. */
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpackText(id) {
  return new TextDecoder().decode(await unpack(id));
}

/** Remembers what an asynchronous function of one key gave. */
function once(load) {
  const kept = new Map();
  return (key) => {
    if (!kept.has(key)) kept.set(key, load(key));
    return kept.get(key);
  };
}

const STORED = "qa-arch-report-theme";

/** An element with attributes, listeners (`onclick`) and children; text is never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Buttons of which one is pressed. */
function choice(parent, options, current, pick) {
  parent.replaceChildren(
    ...Object.entries(options).map(([key, name]) =>
      make("button", { type: "button", "aria-pressed": String(key === current), onclick: () => pick(key) }, name)),
  );
}

function paintTheme(theme) {
  document.documentElement.dataset.theme = theme;
}
function firstTheme() {
  try {
    const kept = localStorage.getItem(STORED);
    if (kept) return kept;
  } catch { /* pages from disk may not store anything */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
/** Change between light and dark; `painted` is called with the new colours. */
function turnTheme(painted) {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem(STORED, next); } catch { /* likewise */ }
  paintTheme(next);
  painted();
}
