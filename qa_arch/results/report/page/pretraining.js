// Pre-training runs: their tables as they were made, and their epochs; they share no set with the others.
function drawPretraining() {
  const { tables, curves } = DATA.pretraining;
  if (!tables.length) return;
  byId("pretraining-tables").replaceChildren(...tables.flatMap(pretrainingTable));
  const parent = byId("pretraining-figures");
  const drawn = (key, more) => curves.map(({ label, epochs }, place) => ({
    x: epochs.map((_, epoch) => epoch + 1), y: epochs.map((epoch) => epoch[key]), name: label, mode: "lines+markers",
    line: { color: css(`--c${place % COLOURS}`), width: 1.8, ...more }, marker: { size: 4 },
    hovertemplate: `${escapeHtml(label)}<br>%{x}, %{y:.3f}<extra></extra>`,
  }));
  if (!curves.length) return absent(parent, "pretraining-loss", "Loss by epoch", "No run has finished an epoch.");
  const axis = { title: "epoch", rangemode: "tozero" };
  figure(parent, "pretraining-loss", "Loss by epoch", "In nats. Dotted: training, of a block. Solid: calibration, of a predicted token.",
    [...drawn("train_loss", { dash: "dot" }), ...drawn("calibration_loss", {})], { xaxis: axis, yaxis: { title: "loss" }, showlegend: true });
  figure(parent, "pretraining-perplexity", "Calibration perplexity by epoch", "Of predicted tokens; of different objectives it does not compare.",
    drawn("calibration_perplexity", {}), { xaxis: axis, yaxis: { title: "perplexity", type: "log" }, showlegend: true });
}

function pretrainingTable({ title, heads, rows, notes }) {
  const left = heads.flatMap((head, place) => (head.left ? [place] : []));
  const table = plainTable(heads.map(({ text }) => text), rows, { left });
  return [make("h3", { class: "apart" }, title), framed(table, title), make("ul", { class: "notes" }, notes.map((note) => make("li", {}, note)))];
}

/** Leaves the sections that have runs: those of questions, of pre-training, or both. */
function dropEmptySections() {
  const names = ["runs", "run", "learning", "cost", "abstention", "calibration", "errors", "breakdowns", "questions", "attention"];
  const empty = [...(DATA.runs.length ? [] : names), ...(DATA.pretraining.tables.length ? [] : ["pretraining"])];
  for (const name of empty) {
    byId(name).hidden = true;
    document.querySelector(`nav a[href="#${name}"]`).hidden = true;
  }
  byId("bar").hidden = !DATA.runs.length;
}
