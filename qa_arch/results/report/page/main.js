// Wires up the page; figures wait until Plotly is unpacked.
const OVER = { F1: "score", EM: "exact", "HasAns F1": "has_answer", "NoAns F1": "no_answer" }; // curves, by name
function drawBar() {
  const chips = [...state.offered].map((group) => make("li", {}, make("button", { type: "button", "aria-pressed": String(state.slots.has(group)), title: DATA.groups[group].label,
    onclick: () => { select(group, !state.slots.has(group)); state.picked = true; changed(); } }, keyOf(group), make("span", {}, DATA.groups[group].label))));
  byId("chips").replaceChildren(...chips);
  choice(byId("measure"), Object.fromEntries(measures().map((key) => [key, MEASURES[key]])), state.measure, (key) => { state.measure = key; changed(); });
  choice(byId("rows"), { systems: "Systems", runs: "Runs" }, state.rows, (key) => { state.rows = key; drawBar(); drawTable(); });
}

/** Draws everything; the promise resolves once the parts that need unpacking are drawn too. */
function changed() {
  drawBar(); drawTable(); drawTableNotes(); drawRun();
  drawLearning(); drawCost(); drawAbstention(); drawCalibration(); drawErrors(); drawBreakdowns();
  viewChanged();
  return browser.found.length ? showQuestion() : null;
}

function drawAbout() {
  const facts = [["Written", `${DATA.created} by qa_arch ${DATA.version}`], ["Runs", `${DATA.runs.length}, of ${DATA.groups.length} system${DATA.groups.length === 1 ? "" : "s"}; a system is all seeds of one configuration`],
    ["Drawn by", `plotly.js ${Plotly.version}, MIT licence, part of this file`], ["Network", "nothing is loaded and nothing is sent"]];
  for (const scored of DATA.sets) facts.push([`Set: ${scored.name}`, `${scored.split}, SQuAD ${scored.protocol}, hash ${scored.fingerprint}, ${scored.runs.length} runs; texts ${scored.texts ? "included" : "not included"}`]);
  if (DATA.problems.length) facts.push(["Not usable", folded(`${DATA.problems.length} runs or files`, DATA.problems)]);
  byId("about-text").replaceChildren(make("dl", { class: "about", id: "about-list" }, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...[value].flat())])));
}

/** A collapsible list; short lists start open. */
function folded(summary, lines) {
  return make("details", { open: lines.length <= 5 }, make("summary", {}, summary), make("ul", { class: "notes" }, lines.map((line) => make("li", {}, line))));
}

/** Switches to a set with its default choices. */
function openSet(number) {
  state.set = number;
  if (!measures().includes(state.measure)) state.measure = "f1";
  selectBest();
  resetBrowser();
}
function chooseSet(number) {
  openSet(number);
  buildBrowser(); // before drawing: it still holds the other set
  changed();
}

/** Keeps link targets below the sticky bar, whose height depends on the number of systems in it. */
function keepClearOfBar() {
  const sticky = getComputedStyle(byId("bar")).position === "sticky";
  document.documentElement.style.scrollPaddingTop = `${sticky ? byId("bar").offsetHeight + 8 : 0}px`;
}

/** Prints a dark page in the light theme. */
function printing(begins) {
  if (firstTheme() !== "dark") return;
  paintTheme(begins ? "light" : "dark");
  changed();
}

/** Page-wide keys, except in form fields: search, next and previous question. */
function keys(event) {
  const search = byId("question-search");
  if (!search || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const step = { j: 1, k: -1 }[event.key];
  if (event.key === "/") search.focus();
  else if (step) {
    goTo(browser.at + step);
    const { top, bottom } = byId("question-list").getBoundingClientRect();
    if (top > innerHeight - 80 || bottom < 80) byId("questions").scrollIntoView();
  } else return;
  event.preventDefault();
}

/** Registers the parts of the view that the address stores, in the order a link restores them. */
function registerView() {
  const only = (value, usual) => (value === usual ? null : value);
  inLink("set", () => (state.set ? set().key : null), ([key]) => { openSet(Math.max(0, DATA.sets.findIndex((other) => other.key === key))); byId("set").value = state.set; });
  inLink("measure", () => only(state.measure, DATA.measure), ([key = DATA.measure]) => { state.measure = measures().includes(key) ? key : "f1"; });
  inLink("draw", () => (state.picked ? [...state.slots.keys()].map((group) => DATA.groups[group].label) : null), (labels) => {
    const groups = labels.map(groupOfWord).filter((group) => groupsOfSet().includes(group));
    if (!groups.length) return;
    state.slots.clear();
    groups.forEach((group) => select(group, true));
    state.picked = true;
  });
  inLink("rows", () => only(state.rows, "systems"), ([key]) => { state.rows = key === "runs" ? "runs" : "systems"; });
  inLink("sort", () => only(`${order.down ? "-" : ""}${order.key}`, `-${DATA.measure}`), ([key = `-${DATA.measure}`]) => {
    const name = key.replace(/^-/, "");
    if (COLUMNS.some((column) => column.key === name)) Object.assign(order, { key: name, down: key.startsWith("-") });
  });
  inLink("filter", () => byId("filter").value, ([text = ""]) => { byId("filter").value = text; });
  inLink("over", () => only(state.over, "F1"), ([name = "F1"]) => { if (Object.hasOwn(OVER, name)) state.over = byId("over").value = name; });
  inLink("run", () => only(runWord(viewed.run), runWord(bestRuns()[0] ?? null)), ([word]) => { viewed.run = runOfWord(word) ?? bestRuns()[0] ?? null; });
  inLink("beside", () => runWord(viewed.beside), ([word]) => { viewed.beside = runOfWord(word); });
  const pair = (key) => inLink(key, () => (browser.own ? runWord(browser[key]) : null), ([word]) => {
    const run = runOfWord(word);
    if (packedRuns().includes(run)) Object.assign(browser, { [key]: run, own: true });
  });
  pair("a"); pair("b");
  inLink("outcome", () => only(browser.outcome, "any"), ([key]) => { browser.outcome = OUTCOMES[key] ? key : "any"; });
  inLink("error", () => only(browser.error, "any"), ([key]) => { browser.error = set() && errorChoices().some(([known]) => known === key) ? key : "any"; });
  inLink("where", () => Object.entries(browser.facet).map(([facet, level]) => `${set().facets[facet].key}:${set().facets[facet].names[level]}`), (words) => words.forEach((word) => {
    const [, key, name] = /^(.*?):(.*)$/s.exec(word) ?? [];
    const facet = set()?.facets.findIndex((other) => other.key === key) ?? -1;
    const level = facet < 0 ? -1 : set().facets[facet].names.indexOf(name);
    if (level >= 0) browser.facet[facet] = level;
  }));
  inLink("search", () => browser.search, ([text = ""]) => { browser.search = text.toLowerCase(); });
  inLink("question", () => (browser.at ? browser.id : null), ([id = null]) => { browser.wanted = id; });
  inLink("at", () => written.section, ([name = null]) => { written.section = name; });
}

async function start() {
  paintTheme(firstTheme());
  const source = make("script");
  source.textContent = await unpackText("pack-plotly");
  document.head.append(source);
  byId("facts").textContent = DATA.facts;
  byId("set").replaceChildren(...DATA.sets.map((scored, number) => make("option", { value: number }, `${[...new Set([scored.name, scored.split])].join(", ")} (SQuAD ${scored.protocol})`)));
  byId("set").addEventListener("change", (event) => chooseSet(Number(event.target.value)));
  byId("over").replaceChildren(...Object.keys(OVER).map((name) => make("option", {}, name)));
  byId("over").addEventListener("change", (event) => { state.over = event.target.value; drawAbstention(); viewChanged(); });
  byId("filter").addEventListener("input", drawTable);
  byId("theme").addEventListener("click", () => turnTheme(changed));
  byId("copy-link").addEventListener("click", copyLink);
  document.addEventListener("keydown", keys);
  addEventListener("hashchange", readLink);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paintTheme(firstTheme()); changed(); });
  new ResizeObserver(keepClearOfBar).observe(byId("bar"));
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  const table = byId("table");
  const place = table.parentNode.insertBefore(make("div"), table);
  place.replaceWith(framed(table, "Runs"));
  registerView();
  drawAbout();
  await readLink();
  byId("wait").remove();
  document.documentElement.dataset.ready = "yes";
}
start().catch((error) => {
  byId("wait").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later (DecompressionStream).`;
  throw error;
});
