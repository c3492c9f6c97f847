// State of the page, and lookups of runs and systems.
const COLOURS = 8;
/** `slots`: colour of each drawn system; `offered`: systems in the legend, drawn or not. */
const state = { set: 0, measure: DATA.measure, slots: new Map(), offered: new Set(), over: "F1", rows: "systems", picked: false };

const set = () => DATA.sets[state.set];
const runsOfSet = () => (set() ? set().runs : []);
const pointsOf = (run) => (set() && DATA.runs[run].scores[set().split]) || {};
const point = (run) => pointsOf(run)[set()?.point] || (DATA.runs[run].adopted && pointsOf(run).given) || {};
/** F1 on the answerable questions if "no answer" is never allowed: from the rows, else from the record. */
const spansOf = (run) => set()?.spans[run] ?? DATA.runs[run].scores[set()?.split]?.never_null?.HasAns_f1 ?? null;
const scoreOf = (run, measure) => (measure === "spans" ? spansOf(run) : point(run)[measure] ?? null);
const groupsOfSet = () => [...new Set(runsOfSet().map((run) => DATA.runs[run].group))];
const runsOf = (group) => runsOfSet().filter((run) => DATA.runs[run].group === group);
const isAdopted = (run) => DATA.runs[run].adopted;
/** Selected runs, grouped by system in the order of the chips. */
const selectedRuns = () => [...state.slots.keys()].flatMap(runsOf);
const colourOf = (group) => (state.slots.has(group) ? css(`--c${state.slots.get(group)}`) : css("--line"));
/** The mark of a system: colour and shape as in the figures. */
const keyOf = (group) =>
  make("span", state.slots.has(group) ? { class: `key s${state.slots.get(group)}`, style: `--k: var(--c${state.slots.get(group)})` } : { class: "key" });
/** A name that may wrap after `_`, `=` and `/`. */
const breakable = (name) => name.split(/(?<=[_=/])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part]));
const labelOf = (run) => {
  const { group, seed } = DATA.runs[run];
  return runsOf(group).length > 1 ? `${DATA.groups[group].label}, seed ${seed}` : DATA.groups[group].label;
};

/** Adds or removes `group` from the drawn systems, at most as many as there are colours. */
function select(group, wanted) {
  if (wanted) state.offered.add(group);
  if (!wanted) state.slots.delete(group);
  else if (!state.slots.has(group)) {
    const taken = new Set(state.slots.values());
    const free = [...Array(COLOURS).keys()].find((slot) => !taken.has(slot));
    if (free !== undefined) state.slots.set(group, free);
  }
}

function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined && Number.isFinite(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
function deviation(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return null;
  const centre = mean(known);
  return Math.sqrt(known.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (known.length - 1));
}

/** Selects the systems with the highest F1, best first. */
function selectBest(limit = 6) {
  state.slots.clear();
  state.offered.clear();
  state.picked = false;
  const ranked = groupsOfSet().map((group) => [group, mean(runsOf(group).map((run) => point(run).f1 ?? null))]);
  ranked.sort((a, b) => (b[1] ?? -1) - (a[1] ?? -1));
  ranked.slice(0, limit).forEach(([group]) => select(group, true));
}

/** Rounds half to even like Python, so that the page shows the same figures as the tables. */
const rounded = (value, digits) => {
  const scaled = value * 10 ** digits;
  const between = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(scaled % 1) === 0.5;
  return between ? (2 * Math.round(scaled / 2)) / 10 ** digits : Number(value.toFixed(digits));
};
const fixed = (value, digits = 1) =>
  value === null || value === undefined ? "–" : rounded(value, digits).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
const whole = (value) => fixed(value, 0);
/** Measures that the page can show, by their short names; `nameOf` has the full ones. */
const MEASURES = { exact: "EM", f1: "F1", spans: "F1, forced answer" };
const nameOf = (measure) => (measure === "spans" ? DATA.spans : MEASURES[measure]);
const measures = () => set()?.measures ?? ["exact", "f1"];
