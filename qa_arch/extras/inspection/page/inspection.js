// One window of text: choose layer and head in the grid and a token in the text to see its attention.
const PARTS = ["special", "question", "passage"];
const TOP_ROWS = 12; // of the short table
const DIRECTIONS = { to: "attention from the token", from: "attention to the token" };
const chosen = { layer: 0, head: -1, token: 0, hovered: null, direction: "to" }; // head -1 is the mean
let drawings = 0;
const letters = { 1: Array.from(DATA.question), 2: Array.from(DATA.passage) }; // Python counts characters

const layer = () => DATA.layers[chosen.layer];
const view = () => DATA.views[layer().name === DATA.match ? 1 : 0];
const isMatch = () => layer().name === DATA.match;
const layerName = (item) => (item.name === DATA.match ? "match-LSTM" : `layer ${item.name}`);
const headName = (item, head) => (head < 0 ? "mean" : item.name === DATA.match ? item.heads[head] : `head ${item.heads[head]}`);
const number = (value) => value.toFixed(4);
const percent = (value) => String(Math.round(100 * value));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const crossing = (item, head) => (head < 0 ? mean(item.crossing) : item.crossing[head]);

/** Probabilities of a layer, (heads, rows, columns) in one array. */
const weightsOf = once(async (name) => {
  const bytes = await unpack(`pack-layer-${name}`);
  return Float32Array.from(new Uint16Array(bytes.buffer), (weight) => weight / DATA.scale);
});

/** Weight of each unit of the view for `token`, null if it has none; and whether the token attends. */
function weightsFor(token, all) {
  const { units, rows, columns } = view();
  const heads = chosen.head < 0 ? layer().heads.map((_, head) => head) : [chosen.head];
  const at = (row, column) => mean(heads.map((head) => all[(head * rows.length + row) * columns.length + column]));
  const [row, column] = [rows.indexOf(token), columns.indexOf(token)];
  const attends = column < 0 || (row >= 0 && chosen.direction === "to");
  const values = new Array(units.length).fill(null);
  (attends ? columns : rows).forEach((unit, i) => { values[unit] = attends ? at(row, i) : at(i, column); });
  return { values, attends };
}

// ---- layers and heads

function drawGrid() {
  const most = Math.max(...DATA.layers.map((item) => item.heads.length));
  const grid = byId("grid");
  grid.style.gridTemplateColumns = `auto repeat(${most + 1}, auto)`;
  grid.setAttribute("role", "radiogroup");
  grid.setAttribute("aria-label", "Layer and head");
  const name = (text, top) => make("span", { class: top ? "name top" : "name", "aria-hidden": "true" }, text);
  const encoder = DATA.layers.filter((item) => item.name !== DATA.match);
  const heading = encoder.length ? [name("", true), name("mean", true), ...encoder[0].heads.map((head) => name(head, true))] : [];
  const cells = [...heading, ...Array(Math.max(0, encoder.length ? most - encoder[0].heads.length : 0)).fill(null).map(() => name("", true))];
  DATA.layers.forEach((item, at) => {
    cells.push(name(layerName(item), false));
    for (let head = -1; head < most; head += 1) cells.push(head < item.heads.length ? cell(item, at, head) : name("", true));
  });
  grid.replaceChildren(...cells);
  grid.onkeydown = gridKeys;
}

function cell(item, at, head) {
  const share = crossing(item, head);
  const largest = Math.max(0.05, ...DATA.layers.flatMap((other) => other.crossing));
  return make("button", {
    type: "button", role: "radio", "data-layer": at, "data-head": head, "aria-checked": "false", tabindex: "-1",
    "aria-label": `${layerName(item)}, ${headName(item, head)}: ${percent(share)}%`, style: `--share: ${(share / largest).toFixed(3)}`,
    onclick: () => choose(at, head),
  }, percent(share));
}

function choose(at, head) {
  const before = view();
  Object.assign(chosen, { layer: at, head: Math.min(head, DATA.layers[at].heads.length - 1) });
  if (view() !== before) drawText(firstToken());
  draw();
}

function gridKeys(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -99], End: [0, 99] }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = chosen.layer + step[0];
  if (!DATA.layers[at]) return;
  choose(at, Math.max(-1, Math.min(chosen.head + step[1], DATA.layers[at].heads.length - 1)));
  byId("grid").querySelector(`[data-layer="${chosen.layer}"][data-head="${chosen.head}"]`).focus();
}

// ---- the text

/** Initially selected token: the first of the answer, or of the question. */
function firstToken() {
  const { units } = view();
  const start = DATA.answer?.[0];
  const answer = units.findIndex(([, part, from, to]) => part === 2 && start >= from && start < to);
  return answer >= 0 ? answer : Math.max(0, units.findIndex(([, part]) => part === 1));
}

function drawText(token) {
  const blocks = { question: [], passage: [] };
  const last = { 1: 0, 2: DATA.window[2] };
  let block = blocks.question;
  if (last[2] > 0) blocks.passage.push("… ");
  view().units.forEach((unit, i) => {
    const [text, part, from, to] = unit;
    if (part === 2) block = blocks.passage;
    if (part === 0) { block.push(option(i, text, "special")); return; }
    const begin = Math.max(from, last[part]); // pieces of one character overlap
    if (from > last[part]) block.push(letters[part].slice(last[part], from).join(""));
    const inside = part === 2 && DATA.answer && from < DATA.answer[1] && to > DATA.answer[0];
    block.push(begin < to ? option(i, letters[part].slice(begin, to).join(""), inside ? "answer" : "") : option(i, text, "special"));
    last[part] = Math.max(last[part], to);
  });
  if (last[2] < letters[2].length) blocks.passage.push(" …");
  const line = (title, children) => make("div", { class: "spread", role: "group", "aria-label": title }, make("b", { "aria-hidden": "true" }, title), children);
  const box = byId("tokens");
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Tokens of the window");
  box.replaceChildren(line("Question", blocks.question), line("Passage", blocks.passage));
  Object.assign(chosen, { token, hovered: null });
}

function option(i, text, kind) {
  return make("span", { role: "option", "data-token": i, class: kind, tabindex: "-1", "aria-selected": "false", dir: "auto" }, text);
}

const options = () => [...byId("tokens").querySelectorAll("[role=option]")];

/** Clicks and focus select a token; hovering previews one until the mouse leaves the text. */
function pick(event) {
  const token = event.target.closest("[data-token]")?.dataset.token;
  if (token === undefined) return;
  chosen.hovered = Number(token);
  if (event.type !== "mouseover") chosen.token = chosen.hovered;
  draw();
}

function leave() {
  chosen.hovered = null;
  draw();
}

function tokenKeys(event) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  const all = options();
  const at = all.findIndex((node) => Number(node.dataset.token) === chosen.token);
  const next = step ? at + step : { Home: 0, End: all.length - 1 }[event.key];
  if (next === undefined || !all[next]) return;
  event.preventDefault();
  all[next].focus(); // focus selects it
}

// ---- numbers

function row([text, part], value) {
  return make("tr", {}, make("td", { class: "text" }, text), make("td", { class: "text" }, PARTS[part]), make("td", {}, number(value)));
}

function table(id, caption, rows) {
  const head = make("thead", {}, make("tr", {}, ["token", "part"].map((name) => make("th", { class: "text", scope: "col" }, name)), make("th", { scope: "col" }, "weight")));
  byId(id).replaceChildren(make("caption", { class: "away" }, caption), head, make("tbody", {}, rows));
}

async function draw() {
  const drawing = ++drawings;
  const all = await weightsOf(layer().name);
  if (drawing !== drawings) return; // the selection changed meanwhile
  const { units } = view();
  const token = chosen.hovered ?? chosen.token;
  const { values, attends } = weightsFor(token, all);
  const known = units.map((unit, i) => [unit, values[i], i]).filter(([, value]) => value !== null);
  const texts = known.filter(([unit, , i]) => unit[1] !== 0 && i !== token);
  const largest = Math.max(...texts.map(([, value]) => value), 1e-6);
  for (const node of options()) {
    const i = Number(node.dataset.token);
    node.setAttribute("aria-selected", String(i === token));
    node.tabIndex = i === chosen.token ? 0 : -1;
    node.style.setProperty("--share", values[i] === null ? 0 : Math.min(1, values[i] / largest).toFixed(3));
  }
  for (const node of byId("grid").querySelectorAll("[role=radio]")) {
    const checked = Number(node.dataset.layer) === chosen.layer && Number(node.dataset.head) === chosen.head;
    node.setAttribute("aria-checked", String(checked));
    node.tabIndex = checked ? 0 : -1;
  }
  const place = `${layerName(layer())}, ${headName(layer(), chosen.head)}`;
  const name = units[token][0];
  byId("shown").textContent = place[0].toUpperCase() + place.slice(1);
  byId("scale").textContent = `full colour: ${number(largest)}, the largest weight of a word; special tokens may exceed it`;
  byId("selected").textContent = attends ? `“${name}” attends to` : `“${name}” is attended by`;
  const sum = (part) => known.reduce((total, [unit, value]) => total + (unit[1] === part ? value : 0), 0);
  const parts = [1, 2, 0].filter((part) => known.some(([unit]) => unit[1] === part));
  const shares = parts.map((part) => `${PARTS[part]} ${number(sum(part))}`).join(", ");
  byId("sums").textContent = attends ? `${shares}; total ${number(known.reduce((total, [, value]) => total + value, 0))}` : `attention received from: ${shares}`;
  const ranked = [...known].sort((a, b) => b[1] - a[1]);
  table("top", `${TOP_ROWS} largest weights`, ranked.slice(0, TOP_ROWS).map(([unit, value]) => row(unit, value)));
  if (byId("all").open) drawAll(known);
  byId("all").ontoggle = () => { if (byId("all").open) drawAll(known); };
  choice(byId("direction"), DIRECTIONS, attends ? "to" : "from", (key) => { chosen.direction = key; draw(); });
}

function drawAll(known) {
  table("every", "All weights in text order", known.map(([unit, value]) => row(unit, value)));
}

// ---- the page

function drawAbout() {
  const [window_, windows, first, last] = DATA.window;
  const facts = [
    ["Window", `${window_} of ${windows}: characters ${first} to ${last} of ${letters[2].length}`],
    ["Checked", `the weights of each token sum to 1 (largest error ${DATA.error.toExponential(1)})`],
    ["Network", "no data is loaded or sent"],
  ];
  byId("about-list").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  byId("facts").textContent = `window ${window_} of ${windows} · ${DATA.facts}`;
  byId("asked").textContent = DATA.question.trim();
  byId("answered").textContent = DATA.answer ? letters[2].slice(...DATA.answer).join("") : "no answer";
  byId("caveat").textContent = `${DATA.caveat[0].toUpperCase()}${DATA.caveat.slice(1)}.`;
  byId("heads-hint").textContent = "% of attention mass from the question to the passage (for a match-LSTM, from the passage to the question). Choose a cell with mouse or arrow keys, then a token below.";
}

function start() {
  paintTheme(firstTheme());
  byId("theme").addEventListener("click", () => turnTheme(() => {}));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintTheme(firstTheme()));
  const at = DATA.layers.findIndex((item) => item.name === DATA.opened[0]);
  Object.assign(chosen, { layer: at, head: DATA.layers[at].heads.indexOf(DATA.opened[1]) });
  drawAbout();
  drawGrid();
  drawText(firstToken());
  const box = byId("tokens");
  for (const name of ["mouseover", "focusin", "click"]) box.addEventListener(name, pick);
  box.addEventListener("mouseleave", leave);
  box.addEventListener("keydown", tokenKeys);
  return draw();
}
start().then(() => {
  byId("wait").remove();
  document.documentElement.dataset.ready = "yes";
}).catch((error) => {
  byId("wait").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later (DecompressionStream).`;
  throw error;
});
