// Shared by every page of qa_arch: its data, element helpers, and the light and dark theme.
const DATA = JSON.parse(document.getElementById("qa-data").textContent);

/** Bytes of a packed element (Base64 of deflate). */
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpackText(id) {
  return new TextDecoder().decode(await unpack(id));
}

/** Memoises an asynchronous function of one key. */
function once(load) {
  const cache = new Map();
  return (key) => {
    if (!cache.has(key)) cache.set(key, load(key));
    return cache.get(key);
  };
}

const THEME_KEY = "qa-arch-report-theme";

/** Creates an element with attributes, listeners (`onclick`) and children; text is never parsed as HTML. */
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

function paintTheme(theme) {
  document.documentElement.dataset.theme = theme;
}
function firstTheme() {
  try {
    const stored = localStorage.getItem(THEME_KEY);
    if (stored) return stored;
  } catch { /* pages opened from disk may have no storage */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}
/** Toggles between light and dark, then calls `painted`. */
function turnTheme(painted) {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem(THEME_KEY, next); } catch { /* likewise */ }
  paintTheme(next);
  painted();
}
