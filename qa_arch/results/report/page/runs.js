// The table: one row per system (mean ± s.d. over seeds) or one row per run.
const SIGNIFICANT = 0.05;
const order = { key: DATA.measure, down: true };
const COLUMNS = [
  { key: "label", head: "System", text: true },
  { key: "seed", head: "Seed", head2: "Seeds" },
  { key: "exact", head: "EM", score: true },
  { key: "f1", head: "F1", score: true },
  { key: "spans", head: MEASURES.spans, score: true, spans: true },
  { key: "interval", head: () => `${MEASURES[state.measure]}, 95%`, systems: true },
  { key: "delta", head: () => `Δ${MEASURES[state.measure]}`, systems: true, test: true },
  { key: "holm", head: "p, Holm", systems: true, test: true },
  { key: "HasAns_f1", head: "HasAns F1", score: true, two: true },
  { key: "NoAns_f1", head: "NoAns F1", score: true, two: true },
  { key: "answerable_recall", head: "Answering recall", score: true, two: true },
  { key: "margin0", head: "F1, threshold 0", score: true, two: true },
  { key: "threshold", head: "Threshold", digits: 2, two: true },
  { key: "batch", head: "Batch", digits: 0 },
  { key: "strategy", head: "Strategy", text: true },
  { key: "train", head: "Train q.", digits: 0 },
  { key: "parameters", head: "Parameters", digits: 0 },
  { key: "fit", head: "Train s", digits: 1 },
  { key: "rate", head: "Windows/s", digits: 1 },
  { key: "memory", head: "Memory MB", digits: 0 },
  { key: "status", head: "Status", text: true },
  { key: "created", head: "Created", text: true, runs: true },
  { key: "name", head: "Run", text: true, runs: true },
];

function valueOf(run, key) {
  const record = DATA.runs[run];
  if (key === "label") return DATA.groups[record.group].label;
  if (key === "margin0") return (record.scores[set()?.split] || {}).margin_0?.f1 ?? null;
  if (key === "spans") return spansOf(run);
  if (key === "created") return (record.created || "").slice(0, 16).replace("T", " ");
  return key in record ? record[key] : point(run)[key] ?? null;
}

function tableRows() {
  if (state.rows === "runs") {
    const members = [...runsOfSet(), ...unscored()];
    return members.map((run) => ({ group: DATA.runs[run].group, runs: [run], cell: (key) => valueOf(run, key) }));
  }
  const groups = [...new Set([...groupsOfSet(), ...unscored().map((run) => DATA.runs[run].group)])];
  return groups.map((group) => {
    const runs = [...runsOf(group), ...unscored().filter((run) => DATA.runs[run].group === group)];
    return { group, runs, cell: (key) => systemValue(group, runs, key) };
  });
}
/** Intervals and tests of the chosen measure. */
const testsNow = () => set()?.tests[state.measure];

function systemValue(group, runs, key) {
  const tests = testsNow();
  if (key === "interval") return tests?.intervals[group]?.[0] ?? null;
  if (key === "delta") return tests?.effects[group]?.delta ?? null;
  if (key === "holm") return tests?.effects[group]?.holm ?? null;
  if (key === "seed") return runs.length;
  const values = runs.map((run) => valueOf(run, key));
  if (key === "status") return values.find((status) => status !== "ok") ?? "ok";
  return COLUMNS.find((column) => column.key === key).text ? values[0] : mean(values);
}

/** Runs without any score: failed, killed or still running. */
const unscored = () => DATA.runs.map((_, run) => run).filter((run) => !Object.keys(DATA.runs[run].scores).length);

function cellText(row, column) {
  const value = row.cell(column.key);
  const tests = testsNow();
  if (column.key === "interval") return tests?.intervals[row.group] ? tests.intervals[row.group].map((end) => fixed(end)).join(" .. ") : "–";
  if (column.key === "delta" && tests?.effects[row.group]) {
    const { delta, interval } = tests.effects[row.group];
    return `${signed(delta)}  [${interval.map(signed).join(", ")}]`;
  }
  if (column.key === "holm") return value === null ? "–" : value < 0.001 ? "< 0.001" : value.toFixed(3);
  if (column.score && state.rows === "systems") {
    const spread = deviation(row.runs.map((run) => valueOf(run, column.key)));
    return spread === null ? fixed(value) : `${fixed(value)} ± ${fixed(spread)}`;
  }
  if (column.score) return fixed(value);
  if (typeof value === "number") return column.key === "seed" ? String(value) : fixed(value, column.digits ?? 1);
  return value ?? "–";
}
function signed(value) {
  const text = fixed(Math.abs(value));
  return (value >= 0 || text === "0.0" ? "+" : "−") + text;
}

/** The columns that apply to this set, measure and kind of rows, and are not empty. */
function shownColumns(rows) {
  const two = set()?.protocol !== "1.1";
  const tested = set() !== undefined && set().baseline !== null;
  return COLUMNS.filter((column) =>
    !(column.two && !two) && !(column.spans && !measures().includes("spans")) && !(column.systems && state.rows === "runs") && !(column.runs && state.rows === "systems")
    && !(column.test && !tested) && (column.key === "label" || rows.some((row) => cellText(row, column) !== "–")));
}
const headOf = (column) => {
  const head = state.rows === "systems" ? column.head2 ?? column.head : column.head;
  return typeof head === "function" ? head() : head;
};
function compareRows(a, b) {
  const [x, y] = [a.cell(order.key), b.cell(order.key)];
  if (x === null || y === null || x === undefined || y === undefined) return (x ?? null) === null ? 1 : -1;
  const found = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
  return order.down ? -found : found;
}

function drawTable() {
  const wanted = byId("filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const about = (row) => row.runs.map((run) => {
    const { name, seed, status, strategy, experiment, error } = DATA.runs[run];
    return [DATA.groups[row.group].label, name, `seed ${seed}`, status, strategy, experiment, error ?? ""].join(" ");
  }).join(" ").toLowerCase();
  const all = tableRows();
  const columns = shownColumns(all);
  const rows = all.filter((row) => wanted.every((word) => about(row).includes(word))).sort(compareRows);
  byId("table").tHead.replaceChildren(make("tr", {}, columns.map(headCell)));
  const references = (set()?.references ?? []).map((reference) => referenceRow(reference, columns));
  const none = rows.length ? [] : [make("tr", {}, make("td", { class: "text", colspan: columns.length }, wanted.length ? `No ${state.rows === "runs" ? "run" : "system"} matches “${byId("filter").value.trim()}”.` : "No runs."))];
  byId("table").tBodies[0].replaceChildren(...rows.map((row) => bodyRow(row, columns)), ...none, ...(wanted.length ? [] : references));
  byId("shown").textContent = `${rows.length} of ${all.length}; plotting the checked systems (at most ${COLOURS})`;
  viewChanged();
}
function headCell(column) {
  const sorted = order.key === column.key;
  const name = headOf(column);
  const sort = () => {
    order.down = sorted ? !order.down : !column.text;
    order.key = column.key;
    drawTable();
    byId("table").querySelector(`[data-key="${column.key}"]`)?.focus();
  };
  return make("th", { scope: "col", class: column.text ? "text" : "", "aria-sort": sorted ? (order.down ? "descending" : "ascending") : null },
    make("button", { type: "button", "data-key": column.key, title: column.spans ? DATA.spans : null, onclick: sort }, name));
}
/** Whether a system is significantly better than the baseline in a column's measure. */
function isBetter(row, column) {
  const effect = state.rows === "systems" ? set()?.tests[column.key]?.effects[row.group] : undefined;
  return effect !== undefined && effect.delta > 0 && effect.holm < SIGNIFICANT;
}
function bodyRow(row, columns) {
  const drawn = state.slots.has(row.group);
  const cells = columns.map((column) => {
    const text = cellText(row, column);
    if (column.key === "label") {
      const box = make("input", { type: "checkbox", onchange: (event) => { select(row.group, event.target.checked); state.picked = true; changed(); } });
      box.checked = drawn;
      box.disabled = !drawn && state.slots.size >= COLOURS;
      return make("td", { class: "text name", title: text }, make("label", { class: "pick" }, box, keyOf(row.group), make("span", { class: "clipped" }, breakable(text))));
    }
    const status = column.key === "status" && text !== "ok";
    const kinds = [column.text ? "text" : "", isBetter(row, column) ? "better" : "", status ? "status" : ""].join(" ").trim();
    const opens = column.key === "seed" || column.key === "name";
    return make("td", { class: kinds || null, title: status ? row.runs.map((run) => DATA.runs[run].error).filter(Boolean)[0] : null },
      opens ? make("button", { type: "button", class: "open", title: "Record, scores, curves and settings", "aria-label": `Show ${labelOf(row.runs[0])}`, onclick: () => openRun(row.runs[0]) }, text) : text);
  });
  return make("tr", { "data-group": row.group }, cells);
}
function referenceRow(reference, columns) {
  return make("tr", { class: "reference" }, columns.map((column) =>
    make("td", { class: column.key === "label" ? "text name" : column.text ? "text" : null },
      column.key === "label" ? `${reference.name} (untrained heuristic)` : column.score && reference[column.key] !== undefined ? fixed(reference[column.key]) : "")));
}

function drawTableNotes() {
  const now = set();
  const notes = [];
  if (now) {
    notes.push(`${now.name}: ${whole(now.questions)} questions, ${whole(now.unanswerable)} of them unanswerable; official SQuAD ${now.protocol} scores${now.rules}, metric ${now.metric}.`);
    if (now.protocol === "2.0") notes.push("Scores at the null threshold that each run fitted on its calibration split, except “F1, threshold 0”.");
    if (now.note) notes.push(`${now.split[0].toUpperCase()}${now.split.slice(1)}: ${now.note}.`);
    if (measures().includes("spans")) notes.push(...spanNotes(now));
    notes.push(testNote(now));
  }
  notes.push(...DATA.notes);
  byId("table-notes").replaceChildren(...notes.map((note) => make("li", {}, note)));
}
function testNote(now) {
  if (now.baseline === null) return now.untested ? `Not tested: ${now.untested}.` : "Tests against one of the systems: qa-arch report … --baseline NAME.";
  const effects = Object.keys(testsNow().effects).length;
  const [name, against] = [MEASURES[state.measure], DATA.groups[now.baseline].label];
  if (!effects) return `No tests of ${name} against ${against}.`;
  const corrected = effects === 1 ? "no correction (1 comparison)" : `Holm's correction for ${effects} comparisons`;
  return `Δ${name} against ${against}: intervals and p over ${now.unit} and seeds; ${corrected}. Bold: better than ${against}, corrected p < ${SIGNIFICANT}.`;
}
function spanNotes(now) {
  const notes = [`${MEASURES.spans}: ${DATA.spans}, the mean F1 of the best spans over the ${whole(now.questions - now.unanswerable)} answerable questions; independent of the null threshold.`];
  const untested = Object.keys(now.tests.f1.intervals).filter((group) => !now.tests.spans.intervals[group]);
  if (untested.length) {
    const few = untested.slice(0, 6).map((group) => DATA.groups[group].label).join("; ") + (untested.length > 6 ? `; and ${untested.length - 6} more` : "");
    const members = untested.flatMap((group) => runsOf(Number(group)));
    const remedies = [members.every(isAdopted) ? "" : "qa-arch evaluate --run RUN writes them", members.some(isAdopted) ? "an adopted system needs a file that answers every question" : ""];
    notes.push(`${MEASURES.spans} of ${few} is not tested: their rows lack the best spans; ${remedies.filter(Boolean).join("; ")}.`);
  }
  return notes;
}
