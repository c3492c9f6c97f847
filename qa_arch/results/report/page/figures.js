// Figures of the selected systems.
function drawLearning() {
  const parent = byId("learning-figures");
  const runs = selectedRuns().filter((run) => DATA.runs[run].epochs.length);
  if (!runs.length) {
    absent(parent, "loss", "Loss by epoch", "No selected run has finished an epoch.");
    return byId("figure-learned")?.remove();
  }
  learningFigures(parent, runs, systemTraces);
}
/** Losses and the calibration score of `runs` by epoch; `traces` draws them, `prefix` names the figures. */
function learningFigures(parent, runs, traces, { prefix = "", height = 300, mark = null } = {}) {
  const column = (run, key) => DATA.runs[run].epochs.map((epoch) => epoch[key] ?? null);
  const points = (key) => (run) => column(run, key).map((value, epoch) => [epoch + 1, value]);
  const chosen = (key) => {
    const known = runs.filter((run) => DATA.runs[run].best !== null && DATA.runs[run].best !== undefined);
    return dots(known, known.map((run) => DATA.runs[run].best + 1), known.map((run) => column(run, key)[DATA.runs[run].best] ?? null), mark ? { marker: mark(known) } : {});
  };
  const most = Math.max(...runs.map((run) => DATA.runs[run].epochs.length));
  if (most < 2) { // one point is no curve
    byId(`figure-${prefix}learned`)?.remove();
    return absent(parent, `${prefix}loss`, "Loss by epoch", `Only one epoch: nothing to plot. Training loss: ${few(runs, (run) => fixed(column(run, "train_loss")[0], 3))}.`);
  }
  const room = Math.max(0.1, 0.05 * (most - 1));
  const axis = { title: "epoch", dtick: Math.max(1, Math.ceil(most / 10)), range: [1 - room, most + room] };
  figure(parent, `${prefix}loss`, "Loss by epoch", `Dotted: training. Solid: calibration. A mark is the epoch that a run selected.${bandNote(runs)}`, [
    ...traces(runs, points("train_loss"), { band: false, line: { dash: "dot", width: 1.4 } }),
    ...traces(runs, points("calibration_loss")),
    chosen("calibration_loss"),
  ], { height, xaxis: axis, yaxis: { title: "loss" } });
  const key = state.measure === "spans" ? "calibration_spans_f1" : `calibration_${state.measure}`;
  const title = `Calibration ${nameOf(state.measure)} by epoch`;
  if (!runs.some((run) => column(run, key).some((value) => value !== null))) return absent(parent, `${prefix}learned`, title, "Not recorded.");
  figure(parent, `${prefix}learned`, title, "On the held-out calibration split, which selects the epoch.",
    [...traces(runs, points(key)), chosen(key)], { height, xaxis: axis, yaxis: { title: `${nameOf(state.measure)}, %` } });
}
/** Values of the first few runs as text. */
const few = (runs, value) => runs.slice(0, 6).map((run) => `${labelOf(run)} ${value(run)}`).join("; ") + (runs.length > 6 ? `; and ${runs.length - 6} more` : "");

const COSTS = {
  batch: ["batch size", "windows in one optimizer step"], strategy: ["strategy", ""], train: ["training questions", ""],
  fit: ["training time", "seconds, without validation"], memory: ["peak memory", "MB"], parameters: ["parameters", ""],
};
function drawCost() {
  const parent = byId("cost-figures");
  const name = nameOf(state.measure);
  const scored = runsOfSet().filter((run) => scoreOf(run, state.measure) !== null);
  const left = { same: [], unknown: [] };
  for (const [key, [title, unit]] of Object.entries(COSTS)) {
    const value = (run) => DATA.runs[run][key];
    const known = scored.filter((run) => value(run) !== null && value(run) !== undefined);
    const heading = `${name} and ${title}`;
    if (new Set(known.map(value)).size < 2) { // a single value explains no score
      byId(`figure-cost-${key}`)?.remove();
      if (known.length) left.same.push(`${title} ${typeof value(known[0]) === "number" ? whole(value(known[0])) : value(known[0])}`);
      else left.unknown.push(title);
      continue;
    }
    const score = (run) => scoreOf(run, state.measure);
    const drawn = known.filter((run) => state.slots.has(DATA.runs[run].group));
    const others = known.filter((run) => !state.slots.has(DATA.runs[run].group));
    const numbers = known.map(value).filter((v) => typeof v === "number" && v > 0);
    const wide = key !== "strategy" && Math.max(...numbers) > 20 * Math.min(...numbers);
    const axis = key === "strategy" ? { type: "category", title: "" } : { type: wide ? "log" : "linear", title: unit || title, exponentformat: "SI", nticks: 6, ...(wide ? {} : { rangemode: "tozero" }) };
    figure(parent, `cost-${key}`, heading, "", [
      dots(others, others.map(value), others.map(score), { marker: { color: css("--line"), size: 6 } }),
      dots(drawn, drawn.map(value), drawn.map(score)),
    ], { height: 230, xaxis: axis, yaxis: { title: `${name}, %` }, margin: { l: 44, r: 10, t: 8, b: 38 } });
  }
  const notes = [left.same.length && scored.length ? `Not drawn, as all runs have the same: ${left.same.join("; ")}.` : "", left.unknown.length ? `Not recorded: ${left.unknown.join("; ")}.` : ""];
  byId("cost-note").textContent = notes.filter(Boolean).join(" ");
}

const curvesOf = (run) => set()?.curves[run];
const curveRuns = () => selectedRuns().filter(curvesOf);
function noRows(parent, names) {
  const reason = selectedRuns().length && selectedRuns().every(isAdopted) ? "Needs null odds, which the selected adopted systems lack: qa-arch adopt … --na-prob."
    : "Needs question rows (questions.parquet next to run.json). None of the selected runs has them for this set: qa-arch evaluate --run RUN writes them.";
  names.forEach(([name, title]) => absent(parent, name, title, reason));
}

function drawAbstention() {
  const parent = byId("abstention-figures");
  const titles = [["thresholds", "Score over the null threshold"], ["risk", "Risk and coverage"], ["abstain", "Precision and recall of abstention"]];
  const runs = curveRuns();
  if (!runs.length) return noRows(parent, titles);
  const of = (run, key) => curvesOf(run).thresholds[key];
  const points = (x, y) => (run) => of(run, x).map((value, i) => [value, of(run, y)[i]]);
  const cut = (set().partial ? " Curves end where the scores of abstained answers would be needed; --data FILE supplies them." : "") + bandNote(runs);
  const at = runs.map((run) => placeOf(of(run, "margin"), DATA.runs[run].margin));
  const marks = (x, y) => dots(runs, runs.map((run, i) => (at[i] === null ? null : of(run, x)[at[i]])), runs.map((run, i) => (at[i] === null ? null : of(run, y)[at[i]])));
  const margins = runs.flatMap((run) => of(run, "margin").filter(Number.isFinite));
  figure(parent, "thresholds", `${state.over} over the null threshold`, `“No answer” is given where the null odds exceed the threshold; a mark is a run's own.${cut}`,
    [...systemTraces(runs, points("margin", OVER[state.over]), { steps: true }), marks("margin", OVER[state.over])],
    { xaxis: { title: "null threshold", range: spread(margins) }, yaxis: { title: `${state.over}, %` } });
  figure(parent, "risk", "Risk and coverage", `Risk: 100 − mean F1 of the answered questions, as the threshold rises and more are answered.${cut}`,
    [...systemTraces(runs, points("coverage", "risk")), marks("coverage", "risk")],
    { xaxis: { title: "coverage: answered, %", range: [0, 101] }, yaxis: { title: "risk, %", rangemode: "tozero" } });
  if (!set().unanswerable) return absent(parent, "abstain", titles[2][1], "Every question of this set has an answer.");
  figure(parent, "abstain", titles[2][1], "Precision: abstentions that are right. Recall: unanswerable questions abstained from.",
    [...systemTraces(runs, points("recall", "precision")), marks("recall", "precision")],
    { xaxis: { title: "recall, %", range: [0, 101] }, yaxis: { title: "precision, %", range: [0, 102] } });
}
/** Place of a null threshold on the curves: the last point that is not above it. Infinite points are null. */
function placeOf(thresholds, own) {
  if (own === null || own === undefined) return null;
  const last = thresholds.findLastIndex((threshold) => threshold !== null && threshold <= own);
  return last < 0 ? Math.max(0, thresholds.findIndex((threshold) => threshold !== null) - 1) : last;
}
/** The range without the outermost percent on each side. */
function spread(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const [low, high] = [sorted[Math.floor(sorted.length * 0.01)], sorted[Math.ceil(sorted.length * 0.99) - 1]];
  return [low - (high - low) * 0.03, high + (high - low) * 0.03];
}

function drawCalibration() {
  const parent = byId("calibration-figures");
  const runs = curveRuns();
  const kinds = [["answerability", "Is it answerable?", "Softmax of the best span against “no answer”, and how many of those questions have an answer."],
    ["answers", "Is the answer right?", "Softmax of the answer over all candidates, and how many of the answers given match exactly."],
    ["fitted", "Is it right? (fitted confidence)", "The confidence that is served, by the temperature fitted on calibration, and how many answers are right, “no answer” included."]];
  const missing = { answerability: set().unanswerable ? "Not for adopted systems, whose null odds have their own scale." : "Every question of this set has an answer.",
    answers: runs.every(isAdopted) ? "Adopted systems have no probabilities of answers."
      : "Records made before version 0.2 lack probabilities of answers. qa-arch evaluate --run RUN writes them.",
    fitted: runs.every(isAdopted) ? "Adopted systems have confidences if adopted with qa-arch adopt … --calibration."
      : "Records made before version 0.2 lack confidences. qa-arch evaluate --run RUN writes them." };
  if (!runs.length) {
    byId("figure-ece")?.remove();
    return noRows(parent, kinds.map(([key, title]) => [`reliability-${key}`, title]));
  }
  const even = { x: [0, 1], y: [0, 1], mode: "lines", hoverinfo: "skip", line: { color: css("--faint"), width: 1, dash: "dot" } };
  for (const [key, title, caption] of kinds) {
    const known = runs.filter((run) => curvesOf(run)[key]);
    const name = `reliability-${key}`;
    if (!known.length) {
      absent(parent, name, title, missing[key]);
      continue;
    }
    const pooled = known.some((run) => runsOf(DATA.runs[run].group).length > 1) ? " Seeds of a system are pooled." : "";
    figure(parent, name, title, `${caption} Dotted line: perfect calibration. Larger marks: more questions.${pooled}`, [even, ...bySystem(known).map(([group, members]) => {
      const bins = pooledBins(members.map((run) => curvesOf(run)[key]));
      const most = Math.max(...bins.map(({ count }) => count));
      return {
        x: bins.map(({ confidence }) => confidence), y: bins.map(({ observed }) => observed), customdata: bins.map(({ count }) => count), mode: "lines+markers",
        line: { color: colourOf(group), width: 1.8 }, marker: { size: bins.map(({ count }) => 4 + 9 * Math.sqrt(count / most)), color: colourOf(group), symbol: symbolOf(group) },
        hovertemplate: `${escapeHtml(DATA.groups[group].label)}<br>confidence %{x:.2f}, observed %{y:.2f}<br>%{customdata} questions<extra></extra>`,
      };
    })], { xaxis: { title: "confidence", range: [-0.02, 1.02] }, yaxis: { title: "observed", range: [-0.02, 1.02] } });
  }
  const rows = bySystem(runs).map(([group, members]) => [systemName(group, members.length),
    ...[["answerability", "ece"], ["answers", "ece"], ["fitted", "ece"]].map(([kind, key]) => overSeeds(members, (run) => curvesOf(run)[kind]?.[key], 3)),
    overSeeds(members, (run) => curvesOf(run).area, 2)]);
  put(parent, make("figure", { id: "figure-ece" }, make("h3", {}, "Calibration error"),
    framed(plainTable(["System", "ECE, answerable", "ECE, right", "ECE, fitted", "AURC"], rows), "Calibration error"),
    make("figcaption", {}, "ECE: mean gap between confidence and accuracy over ten bins, 0 to 1. AURC: area under the risk-coverage curve, the mean risk over all coverages, in percent. ± is one standard deviation over seeds.")));
}
/** Pools the bins of several seeds: confidence and frequency weighted by the number of questions. */
function pooledBins(curves) {
  const bins = new Map();
  for (const { confidence, observed, count } of curves) {
    count.forEach((n, i) => {
      const bin = bins.get(Math.min(9, Math.floor(10 * confidence[i]))) ?? { sure: 0, right: 0, count: 0 };
      bins.set(Math.min(9, Math.floor(10 * confidence[i])), { sure: bin.sure + n * confidence[i], right: bin.right + n * observed[i], count: bin.count + n });
    });
  }
  return [...bins.entries()].sort((a, b) => a[0] - b[0]).map(([, { sure, right, count }]) => ({ confidence: sure / count, observed: right / count, count }));
}
/** Table cell of a system: its mark, its name and its number of seeds. */
const systemName = (group, seeds) => make("span", { class: "pick", title: DATA.groups[group].label }, keyOf(group), make("span", { class: "clipped" }, breakable(DATA.groups[group].label), seeds > 1 ? make("span", { class: "told" }, ` · ${seeds} seeds`) : null));
/** Mean ± standard deviation over the seeds of a system. */
function overSeeds(runs, value, digits) {
  const values = runs.map(value).map((x) => x ?? null);
  const spreadOf = deviation(values);
  return fixed(mean(values), digits) + (spreadOf === null ? "" : ` ± ${fixed(spreadOf, digits)}`);
}

function drawBreakdowns() {
  const parent = byId("breakdown-figures");
  const facets = set()?.facets ?? [];
  const groups = groupsOfSet().filter((group) => state.slots.has(group));
  parent.replaceChildren();
  if (!facets.length) return noRows(parent, [["breakdown", "By kind of question"]]);
  for (const facet of facets) {
    const at = Object.keys(MEASURES).indexOf(state.measure);
    // Levels without answerable questions have no span scores.
    const reached = (level) => mean(groups.map((group) => mean(runsOf(group).filter((run) => facet.runs[run]).map((run) => facet.runs[run][at][level]))));
    const levels = facet.names.map((_, level) => level).filter((level) => state.measure !== "spans" || Object.values(facet.runs).some((of) => of[at][level] !== null));
    if (!levels.length || facet.names.length < 2) continue; // nothing to compare
    if (facet.key === "article") levels.sort((a, b) => reached(a) - reached(b)); // the hardest first
    const names = levels.map((level) => `${facet.names[level]}  (${whole(facet.count[level])})`);
    const step = Math.min(0.13, 0.7 / groups.length);
    const traces = groups.map((group, place) => {
      const runs = runsOf(group).filter((run) => facet.runs[run]);
      const label = DATA.groups[group].label;
      return {
        x: levels.map((level) => mean(runs.map((run) => facet.runs[run][at][level]))),
        y: levels.map((_, row) => row + (place - (groups.length - 1) / 2) * step), text: names, mode: "markers", type: "scatter", name: label,
        marker: { color: colourOf(group), symbol: symbolOf(group), size: 9, line: { color: css("--paper"), width: 1 } },
        hovertemplate: `${escapeHtml(label)}<br>%{text}: %{x:.1f}<extra></extra>`,
      };
    });
    figure(parent, `by-${facet.key}`, facet.title, "", traces, {
      height: 64 + 34 * names.length, margin: { l: 10, r: 14, t: 6, b: 36 },
      xaxis: { title: `${nameOf(state.measure)}, %`, range: [-3, 103] }, yaxis: { range: [names.length - 0.5, -0.5], ticks: "", tickvals: names.map((_, row) => row), ticktext: names },
    });
  }
  if (!set().texts) {
    parent.append(make("p", { class: "empty" }, "By question word, answer type and lengths: these need the texts. ", make("code", {}, "qa-arch report … --data FILE")));
  }
}
