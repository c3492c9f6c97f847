// Wires everything up; the figures wait for Plotly, which is unpacked first.
function drawBar() {
  const chips = [...state.slots.keys()].map((group) => make("li", {}, make("button", { type: "button", title: "Do not draw", onclick: () => { select(group, false); changed(); } },
    keyOf(group), make("span", {}, DATA.groups[group].label))));
  byId("chips").replaceChildren(...chips);
  choice(byId("measure"), Object.fromEntries(measures().map((key) => [key, MEASURES[key]])), state.measure, (key) => { state.measure = key; changed(); });
  choice(byId("rows"), { systems: "Systems", runs: "Runs" }, state.rows, (key) => { state.rows = key; drawBar(); drawTable(); });
}

function drawAll() {
  drawBar(); drawTable(); drawTableNotes();
  drawLearning(); drawCost(); drawAbstention(); drawCalibration(); drawErrors(); drawBreakdowns(); drawAttention(); drawPretraining();
  if (byId("question-detail") && browser.found.length) showQuestion();
}

function drawAbout() {
  const facts = [["Written", `${DATA.created} by qa_arch ${DATA.version}`], ["Runs", `${DATA.runs.length}, of ${DATA.groups.length} system${DATA.groups.length === 1 ? "" : "s"}; a system is all seeds of one configuration`],
    ["Drawn by", `plotly.js ${Plotly.version}, MIT licence, part of this file`], ["Network", "nothing is loaded and nothing is sent"]];
  for (const one of DATA.sets) facts.push([`Set: ${one.name}`, `${one.split}, SQuAD ${one.protocol}, hash ${one.fingerprint}, ${one.runs.length} runs; texts ${one.texts ? "included" : "not included"}`]);
  if (DATA.leftOut.length) facts.push(["Left out", folded(`single questions of ${DATA.leftOut.length} runs, to stay below ${+(DATA.limit / 1e6).toFixed(2)} MB; qa-arch report … --questions RUN keeps those of the runs named`, DATA.leftOut)]);
  if (DATA.problems.length) facts.push(["Not usable", folded(`${DATA.problems.length} runs or files`, DATA.problems)]);
  byId("about-text").replaceChildren(make("dl", { class: "about", id: "about-list" }, facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
}

/** A line that opens into a list; a short list is open. */
function folded(summary, lines) {
  return make("details", { open: lines.length <= 5 }, make("summary", {}, summary), make("ul", { class: "notes" }, lines.map((line) => make("li", {}, line))));
}

function chooseSet(number) {
  state.set = number;
  if (!measures().includes(state.measure)) state.measure = "f1";
  selectBest();
  buildBrowser(); // before anything is drawn: what it held is of the other set
  changed();
}

function keys(event) {
  if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const search = byId("question-search");
  if (search) { event.preventDefault(); search.focus(); }
}

async function start() {
  paintTheme(firstTheme());
  const source = make("script");
  source.textContent = await unpackText("pack-plotly");
  document.head.append(source);
  byId("facts").textContent = DATA.facts;
  byId("set").replaceChildren(...DATA.sets.map((one, number) => make("option", { value: number }, `${[...new Set([one.name, one.split])].join(", ")} (SQuAD ${one.protocol})`)));
  byId("set").addEventListener("change", (event) => chooseSet(Number(event.target.value)));
  byId("over").replaceChildren(...["F1", "EM", "HasAns F1", "NoAns F1"].map((name) => make("option", {}, name)));
  byId("over").addEventListener("change", (event) => { state.over = event.target.value; drawAbstention(); });
  byId("filter").addEventListener("input", drawTable);
  byId("theme").addEventListener("click", turnTheme);
  document.addEventListener("keydown", keys);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paintTheme(firstTheme()); changed(); });
  onChange(drawAll);
  dropEmptySections();
  chooseSet(0);
  drawAbout();
  byId("wait").remove();
  document.documentElement.dataset.ready = "yes";
}
start().catch((error) => {
  byId("wait").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later (DecompressionStream).`;
  throw error;
});
