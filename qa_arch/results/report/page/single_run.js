// One run: its record, scores, curves and settings, and how a second run differs.
const viewed = { run: null, beside: null };

/** Keeps words whole, options with their hyphens, as far as they fit. */
const command = (text) => make("code", { class: "command" }, text.split(" ").flatMap((word, i) => [i ? " " : "", make("span", {}, word)]));
/** A word of a command, in quotes if a shell needs them. */
const quoted = (word) => /^[\w@%+=:,.\/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
const RECORDED = {
  status: "Status", error: "Error", label: "System", seed: "Seed", experiment: "Experiment", created: "Created", commit: "Commit", config: "Config hash",
  device: "Device", strategy: "Strategy", precision: "Precision", batch: "Batch size", train: "Training questions", parameters: "Parameters", fit: "Training, s",
  rate: "Windows per second", predict: "Scoring, s", memory: "Peak memory, MB", margin: "Null threshold", folder: "Folder",
};
const POINTS = { calibrated: "fitted threshold", never_null: "forced answer", margin_0: "threshold 0", oracle: "best threshold (upper bound)", given: "given threshold" };
const SCORES = { exact: "EM", f1: "F1", HasAns_f1: "HasAns F1", NoAns_f1: "NoAns F1", threshold: "Threshold" };

function openRun(run) {
  viewed.run = run;
  if (viewed.beside === run) viewed.beside = null;
  drawRun();
  viewChanged();
  byId("run").scrollIntoView();
}

function drawRun() {
  if (viewed.run === null || !runsOfSet().concat(unscored()).includes(viewed.run)) Object.assign(viewed, { run: bestRuns()[0] ?? 0, beside: null });
  const shown = [viewed.run, viewed.beside].filter((run) => run !== null);
  const options = (current, none) => [...(none ? [make("option", { value: "", selected: current === null }, "none")] : []),
    ...[...runsOfSet(), ...unscored()].map((run) => make("option", { value: run, selected: run === current }, `${labelOf(run)}${DATA.runs[run].status === "ok" ? "" : `, ${DATA.runs[run].status}`}`))];
  const pick = (name, key, none) => make("label", {}, name, make("select", { "data-run": key, onchange: (event) => {
    viewed[key] = event.target.value === "" ? null : Number(event.target.value);
    drawRun();
    viewChanged();
  } }, options(viewed[key], none)));
  const heads = shown.map((run) => [make("span", { class: "pick" }, make("i", { class: "swatch", style: `background: var(--c${shown.indexOf(run)})` }), DATA.runs[run].name)]);
  const { folder, name, trainable } = DATA.runs[viewed.run];
  const repeat = `qa-arch train --config-from ${quoted(folder)} --folder ${quoted(`runs/again/${name}`)}`;
  const again = trainable ? [make("div", { class: "empty" }, "The same run again:", command(repeat))] : [];
  byId("run-view").replaceChildren(
    make("div", { class: "tools" }, pick("Run", "run", false), pick("Compared with", "beside", true)),
    make("div", { class: "figures" }, make("figure", { id: "run-record" }, make("h3", {}, "Record"), framed(recordTable(shown, heads), "Record")),
      make("div", {}, make("figure", { id: "run-scores" }, make("h3", {}, "Scores"), framed(scoreTable(shown), "Scores")), make("div", { id: "run-figures" }))),
    ...settingTables(shown, heads),
    ...again);
  const trained = shown.filter((run) => DATA.runs[run].epochs.length);
  if (!trained.length) return absent(byId("run-figures"), "run-loss", "Loss by epoch", "No epoch was finished.");
  const colours = (runs, points, more = {}) => runs.flatMap((run) => seedTraces(DATA.runs[run].group, [run], points, { ...more, colour: css(`--c${shown.indexOf(run)}`), name: labelOf(run) }));
  learningFigures(byId("run-figures"), trained, colours, { prefix: "run-", height: 210, mark: (runs) => ({ size: 8, color: runs.map((run) => css(`--c${shown.indexOf(run)}`)) }) });
}

/** The best run of each system, best first. */
function bestRuns() {
  const ranked = [...runsOfSet()].sort((a, b) => (point(b).f1 ?? -1) - (point(a).f1 ?? -1));
  return ranked.filter((run, place) => ranked.findIndex((other) => DATA.runs[other].group === DATA.runs[run].group) === place);
}

function recordTable(shown, heads) {
  const value = (run, key) => {
    const known = key === "label" ? DATA.groups[DATA.runs[run].group].label : DATA.runs[run][key];
    if (known === null || known === undefined || known === "") return "–";
    if (typeof known !== "number") return breakable(key === "created" ? known.replace("T", " ") : known);
    return key === "seed" ? String(known) : fixed(known, ["margin", "fit", "predict", "rate"].includes(key) ? 2 : 0);
  };
  const keys = Object.keys(RECORDED).filter((key) => shown.some((run) => value(run, key) !== "–"));
  const rows = keys.map((key) => [RECORDED[key], ...shown.map((run) => value(run, key))]);
  return wrapped(plainTable(["Field", ...heads], rows, { left: [0, 1, 2] }));
}
function wrapped(table) {
  table.classList.add("wrapped");
  return table;
}

function scoreTable(shown) {
  const scored = new Map(shown.flatMap((run) => Object.entries(DATA.runs[run].scores).flatMap(([split, points]) => Object.keys(points).map((name) => [`${split}, ${POINTS[name] ?? name}`, [split, name]]))));
  const rows = [...scored].flatMap(([label, [split, name]]) => shown.map((run) => {
    const figures = DATA.runs[run].scores[split]?.[name] ?? {};
    return [make("span", { class: "pick" }, make("i", { class: "swatch", style: `background: var(--c${shown.indexOf(run)})` }), label), ...Object.keys(SCORES).map((key) => fixed(figures[key] ?? null, key === "threshold" ? 2 : 1))];
  }));
  return rows.length ? plainTable(["Split and threshold", ...Object.values(SCORES)], rows) : plainTable(["Scores"], [["none"]]);
}

function settingTables(shown, heads) {
  const of = (run, key) => DATA.settings.own[run][key] ?? DATA.settings.all[key] ?? "–";
  const keys = [...new Set(shown.flatMap((run) => [...Object.keys(DATA.settings.all), ...Object.keys(DATA.settings.own[run])]))].sort();
  const unlike = keys.filter((key) => shown.some((run) => of(run, key) !== of(shown[0], key)));
  const table = (some) => wrapped(plainTable(["Setting", ...heads.map((head) => head.map((node) => node.cloneNode(true)))], some.map((key) => [breakable(key), ...shown.map((run) => breakable(of(run, key)))]), { left: [0, 1, 2] }));
  const whole = make("details", { id: "run-settings" }, make("summary", {}, `All ${keys.length} settings, hashes of data and versions of packages`), framed(table(keys), "Settings"));
  if (shown.length < 2) return [whole];
  const same = make("p", { class: "empty", id: "run-unlike" }, "These two runs differ in no setting.");
  return [make("h3", { class: "apart" }, "Settings that differ"), unlike.length ? make("div", { id: "run-unlike" }, framed(table(unlike), "Settings that differ")) : same, whole];
}
