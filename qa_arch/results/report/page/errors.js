// Errors: shares of outcomes, and positions of wrong spans relative to the gold.
/** Shades of one hue that no system uses. */
const OUTCOME_COLOURS = { right: "--line", wrong_span: "--e0", wrong_abstention: "--e1", missed_answer: "--e2", unanswered: "--e2", undue_answer: "--e3" };

const nameOfError = (rows, q) => {
  const named = DATA.outcomes.find(([key]) => key === rows.outcome[q])[1];
  const place = DATA.boundaries.find(([key]) => key === rows.boundary[q]);
  return place ? `${named}: ${place[1]}` : rows.plausible[q] ? `${named}: a plausible one` : named;
};
const errorChoices = () => [["any", "any"], ...DATA.outcomes.filter(([key]) => key !== "right"), ["boundary", "boundary error"], ["near", "near miss"],
  ...(set().texts ? [...DATA.boundaries.map(([key, name]) => [key, `wrong span: ${name}`]), ["plausible", "false: a plausible answer"]] : [])];
const errs = (rows, q, wanted) => wanted === "any" || rows.outcome[q] === wanted || rows.boundary[q] === wanted
  || (wanted === "boundary" && rows.overlaps[q]) || (wanted === "near" && rows.near[q]) || (wanted === "plausible" && rows.plausible[q]);

function drawErrors() {
  const parent = byId("error-figures");
  const runs = selectedRuns().filter((run) => set()?.errors[run]);
  if (!runs.length) return noRows(parent, [["errors", "Outcomes"], ["wrong-spans", "Wrong spans"]]);
  const shown = DATA.outcomes.filter(([key]) => runs.some((run) => set().errors[run].outcomes[key] !== undefined));
  const systems = bySystem(runs);
  const names = systems.map(([group]) => DATA.groups[group].label);
  const part = (run, key) => 100 * (set().errors[run].outcomes[key] ?? 0) / set().errors[run].questions;
  const share = ([, members], key) => mean(members.map((run) => part(run, key)));
  const seeds = systems.some(([, members]) => members.length > 1) ? " Of a system with several seeds, their mean." : "";
  figure(parent, "errors", "Outcomes", `Of all questions, percent.${seeds} Wrong abstention: no answer given though the best span was right. Missed answer: no answer given, and the best span was wrong too. False answer: answered an unanswerable question.`,
    shown.map(([key, name]) => ({
      type: "bar", orientation: "h", name, y: names, x: systems.map((system) => share(system, key)), marker: { color: css(OUTCOME_COLOURS[key]), line: { color: css("--paper"), width: 1.5 } },
      text: systems.map((system) => (share(system, key) >= 4 ? fixed(share(system, key), 0) : "")), textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont: { color: readableOn(css(OUTCOME_COLOURS[key])) },
      customdata: systems.map(([, members]) => mean(members.map((run) => set().errors[run].outcomes[key] ?? 0))), hovertemplate: `%{y}<br>${name}: %{x:.1f}% (%{customdata:.1f} questions)<extra></extra>`,
    })),
    { barmode: "stack", bargap: 0.35, uniformtext: { mode: "hide", minsize: 9 }, height: 56 + 30 * systems.length, margin: { l: 10, r: 14, t: 6, b: 36 }, xaxis: { title: "questions, %", range: [0, 100] }, yaxis: { autorange: "reversed", ticks: "" } });
  byId("figure-errors").lastChild.prepend(make("span", { class: "legend" }, shown.map(([key, name]) =>
    make("span", {}, make("i", { style: `background: var(${OUTCOME_COLOURS[key]})` }), name))));
  drawWrongSpans(parent, runs);
}

function drawWrongSpans(parent, runs) {
  const of = (run) => set().errors[run];
  const places = DATA.boundaries.filter(([key]) => runs.some((run) => of(run).boundaries?.[key]));
  const plausible = runs.some((run) => of(run).with_plausible);
  const heads = ["System", "Wrong spans", "Boundary errors", "Near misses", ...places.map(([, name]) => name), ...(plausible ? ["Plausible"] : [])];
  const count = (members, value) => { const over = mean(members.map((run) => value(run) ?? null)); return fixed(over, members.length > 1 ? 1 : 0); };
  const rows = bySystem(runs).map(([group, members]) => [systemName(group, members.length),
    ...[(run) => of(run).outcomes.wrong_span, (run) => of(run).overlapping, (run) => of(run).near_misses, ...places.map(([key]) => (run) => of(run).boundaries?.[key])].map((value) => count(members, value)),
    ...(plausible ? [members.some((run) => of(run).with_plausible) ? `${count(members, (run) => of(run).plausible)} of ${count(members, (run) => of(run).with_plausible)}` : "–"] : [])]);
  const caption = `Questions; of several seeds their mean. A boundary error shares words with a gold answer; a near miss is one with F1 of 50 or more.${plausible ? " Plausible: false answers that the data names as plausible ones, of those that could be." : ""}`;
  put(parent, make("figure", { id: "figure-wrong-spans" }, make("h3", {}, "Wrong spans"), framed(plainTable(heads, rows), "Wrong spans"),
    make("figcaption", {}, caption + (set().texts ? "" : " Positions relative to the gold answer need the texts: --data FILE."))));
}

/** Black or white, whichever is more readable on a colour (WCAG 2, relative luminance). */
function readableOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
