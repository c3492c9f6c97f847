// What match-LSTM or encoder looked at: question pieces by passage pieces.
const looked = { run: null, at: 0, map: 0 };

/** Words stay whole, options with their hyphens, as far as they fit. */
const command = (text) => make("code", { class: "command" }, text.split(" ").flatMap((word, i) => [i ? " " : "", make("span", {}, word)]));

/** Which attention it is, where a run has that of both. */
const sourceOf = (map, maps) => (maps.every(({ encoder }) => encoder === map.encoder) ? "" : map.encoder ? " (encoder)" : " (match-LSTM)");

function drawAttention() {
  const parent = byId("attention-view");
  const runs = runsOfSet().filter((run) => DATA.attention[run]);
  byId("attention").hidden = document.querySelector('nav a[href="#attention"]').hidden = !runs.length;
  if (!runs.length) return null;
  if (!runs.includes(looked.run)) Object.assign(looked, { run: runs[0], at: 0, map: 0 });
  const maps = DATA.attention[looked.run];
  const { labels, encoder } = maps[looked.at];
  const pick = (list, current, set_) => make("select", { onchange: (event) => { set_(Number(event.target.value)); drawAttention(); } },
    list.map(([value, name]) => make("option", { value, selected: value === current }, name)));
  const questions = pick(maps.map((map, i) => [i, map.id + sourceOf(map, maps)]), looked.at, (value) => Object.assign(looked, { at: value, map: Math.min(looked.map, maps[value].labels.length - 1) }));
  questions.id = "attention-question";
  const heat = make("div", { class: "heat", tabindex: "0", "aria-label": "Heat map, scrolls sideways" }, make("div", { id: "figure-attention", class: "plot", role: "img" }));
  parent.replaceChildren(
    make("div", { class: "tools" }, make("label", {}, "Run ", pick(runs.map((run) => [run, labelOf(run)]), looked.run, (value) => Object.assign(looked, { run: value, at: 0, map: 0 }))),
      make("label", {}, "Question ", questions), make("label", {}, "Attention ", pick(labels.map((name, i) => [i, name]), looked.map, (value) => { looked.map = value; }))),
    heat, make("p", { class: "told", style: "font-size: .8rem" }, `Each column sums to 1: how a piece of the passage spreads its attention over the question; “∅” is ${encoder ? "all else: special tokens and the passage" : "the word “nothing”"}. Where attention goes is not by itself why an answer is given.`));
  return paintAttention(maps[looked.at], questions);
}

async function paintAttention(map, questions) {
  const [bytes, ids, texts] = await Promise.all([unpack(`pack-attention-${looked.run}-${looked.at}`), idsOf(state.set), textsOf(state.set)]);
  const q = ids.indexOf(map.id);
  const known = texts && q >= 0;
  const letters = known ? [Array.from(texts.questions[q][0]), Array.from(texts.contexts[texts.questions[q][1]])] : null;
  const piece = (side, [from, to], i) => (letters ? letters[side].slice(from, to).join("") : `${side ? "p" : "q"}${i + 1}`);
  const across = map.context.map((span, i) => piece(1, span, i));
  const down = [...map.question.map((span, i) => piece(0, span, i)), "∅"];
  const [C, Q] = [across.length, down.length];
  const from = looked.map * C * Q;
  const z = down.map((_, row) => across.map((__, column) => bytes[from + column * Q + row] / 255));
  if (known) questions.selectedOptions[0].textContent = texts.questions[q][0] + sourceOf(map, DATA.attention[looked.run]);
  const most = map.encoder ? Math.max(...z.slice(0, -1).flat()) : 1; // an encoder looks elsewhere for the most part
  const plot = byId("figure-attention");
  if (!plot) return;
  plot.style.width = `max(100%, ${120 + 17 * C}px)`;
  plot.setAttribute("aria-label", `Attention of ${labelOf(looked.run)} over question ${map.id}`);
  const text = z.map((row, i) => row.map((value, j) => `${escapeHtml(across[j])} → ${escapeHtml(down[i])}<br>${value.toFixed(2)}`));
  draw(plot, [{ type: "heatmap", z, text, hovertemplate: "%{text}<extra></extra>", zmin: 0, zmax: most, colorscale: [[0, css("--panel")], [1, css("--heat")]], xgap: 1, ygap: 1, showscale: true, colorbar: { thickness: 10, len: 0.9, outlinewidth: 0 } }],
    layout({ height: 130 + 24 * Q, margin: { l: 20, r: 10, t: 10, b: 20 },
      xaxis: { tickvals: across.map((_, i) => i), ticktext: across.map(escapeHtml), tickangle: -60, showgrid: false, ticks: "" },
      yaxis: { tickvals: down.map((_, i) => i), ticktext: down.map(escapeHtml), autorange: "reversed", showgrid: false, ticks: "" } }));
}
