// The question browser: filters, a list, and one question with all answers.
const PAGE = 100;
const OUTCOMES = {
  any: "all questions", aOnly: "A right, B wrong", bOnly: "A wrong, B right", differ: "answers differ", both: "both right", neither: "both wrong",
};
const browser = { a: null, b: null, outcome: "any", error: "any", facet: {}, search: "", found: [], limit: PAGE, at: 0, id: null, wanted: null, token: 0 };

const packedRuns = () => runsOfSet().filter((run) => hasRows(state.set, run));

/** Default choices of a set: its best run as A; as B the baseline, or else the best run of another system. */
function resetBrowser() {
  const runs = packedRuns();
  const ranked = [...runs].sort((x, y) => (point(y).f1 ?? 0) - (point(x).f1 ?? 0));
  const ofBaseline = ranked.find((run) => DATA.runs[run].group === set().baseline);
  const a = ofBaseline === undefined ? ranked[0] : ranked.find((run) => DATA.runs[run].group !== set().baseline) ?? ranked[0];
  const b = ofBaseline ?? ranked.find((run) => DATA.runs[run].group !== DATA.runs[a].group) ?? ranked[1] ?? ranked[0];
  Object.assign(browser, { a, b, own: false, outcome: "any", error: "any", facet: {}, search: "", limit: PAGE, at: 0, id: null, wanted: null });
}

function buildBrowser() {
  browser.token += 1; // discards pending reads of the previous set
  browser.found = [];
  const parent = byId("browser");
  const runs = packedRuns();
  if (!runs.length) {
    return parent.replaceChildren(make("p", { class: "empty" }, "No run of this set has question rows (questions.parquet next to run.json)."));
  }
  const options = (list, current) => list.map(([value, name]) => make("option", { value, selected: String(value) === String(current) }, name));
  const chooser = (name, list, current, pick) =>
    make("label", {}, name, make("select", { "data-filter": name, onchange: (event) => { pick(event.target.value); browser.limit = PAGE; browser.at = 0; find(); } }, options(list, current)));
  const named = runs.map((run) => [run, labelOf(run)]);
  const facets = set().facets.map((facet, number) => chooser(facet.title, [["", "any"], ...facet.names.map((name, level) => [level, `${name} (${whole(facet.count[level])})`])], browser.facet[number] ?? "",
    (value) => { if (value === "") delete browser.facet[number]; else browser.facet[number] = Number(value); }));
  parent.replaceChildren(
    make("div", { class: "filters" },
      chooser("A", named, browser.a, (value) => { browser.a = Number(value); browser.own = true; }), chooser("B", named, browser.b, (value) => { browser.b = Number(value); browser.own = true; }),
      chooser("Outcome", Object.entries(OUTCOMES), browser.outcome, (value) => { browser.outcome = value; }),
      chooser("A’s error", errorChoices(), browser.error, (value) => { browser.error = value; }), ...facets,
      make("label", {}, "Text", make("input", { type: "search", id: "question-search", value: browser.search, placeholder: set().texts ? "question or passage" : "question id", oninput: (event) => { browser.search = event.target.value.toLowerCase(); browser.limit = PAGE; browser.at = 0; find(); } })),
      make("span", { class: "told", id: "question-count", role: "status" })),
    make("div", { class: "split" },
      make("div", { class: "list", tabindex: "0", id: "question-list", role: "region", "aria-label": "Questions", onkeydown: walk }, make("ol")),
      make("article", { class: "detail", id: "question-detail", "aria-live": "polite" })),
    make("p", { class: "told", style: "font-size: .8rem" }, make("kbd", {}, "/"), " search · ", make("kbd", {}, "j"), " ", make("kbd", {}, "k"), ": next and previous question, from anywhere on the page; in the list arrows too"),
  );
  return find();
}

function passes(q, a, b, levels, ids, texts) {
  const [right, other] = [a.exact[q], b.exact[q]];
  const matches = { any: true, aOnly: right && !other, bOnly: !right && other, both: right && other, neither: !right && !other,
    differ: JSON.stringify(spanAt(a, q)) !== JSON.stringify(spanAt(b, q)) }[browser.outcome];
  if (!matches || !errs(a, q, browser.error)) return false;
  for (const [facet, level] of Object.entries(browser.facet)) if (levels[facet][q] !== level) return false;
  if (!browser.search) return true;
  if (!texts) return ids[q].toLowerCase().includes(browser.search);
  const [question, context] = texts.questions[q];
  return question.toLowerCase().includes(browser.search) || ids[q].toLowerCase() === browser.search || texts.contexts[context].toLowerCase().includes(browser.search);
}

async function find() {
  const token = ++browser.token;
  const [a, b, levels, ids, texts] = await Promise.all([rowsOf(rowsKey(state.set, browser.a)), rowsOf(rowsKey(state.set, browser.b)), levelsOf(state.set), idsOf(state.set), textsOf(state.set)]);
  if (token !== browser.token) return;
  browser.found = [];
  for (let q = 0; q < ids.length; q += 1) if (passes(q, a, b, levels, ids, texts)) browser.found.push(q);
  if (browser.wanted !== null) goToWanted(ids);
  byId("question-count").textContent = `${whole(browser.found.length)} of ${whole(ids.length)} questions`;
  drawList(a, b, ids, texts, levels);
  await showQuestion();
}

/** Goes to the question that a link names, if it passes the filters. */
function goToWanted(ids) {
  browser.at = Math.max(0, browser.found.findIndex((q) => ids[q] === browser.wanted));
  browser.limit = Math.max(browser.limit, browser.at + 1);
  browser.wanted = null;
}

/** A text with the search matches marked. */
function marked(text) {
  const at = [0, ...hits(text).flat(), text.length];
  return at.slice(1).map((end, i) => (i % 2 ? make("mark", {}, text.slice(at[i], end)) : text.slice(at[i], end)));
}
/** [start, end] of every search match in `text`. */
function hits(text) {
  if (!browser.search) return [];
  const pattern = new RegExp(browser.search.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
  return [...text.matchAll(pattern)].map((hit) => [hit.index, hit.index + hit[0].length]);
}

function drawList(a, b, ids, texts, levels) {
  const mark = (rows, q) => make("span", { class: rows.exact[q] ? "right" : "wrong" }, rows.exact[q] ? "✓" : rows.abstained[q] ? "∅" : "✗");
  const kind = set().facets.findIndex((facet) => facet.key === "kind");
  const tagged = kind < 0 ? 0 : kind;
  const items = browser.found.slice(0, browser.limit).map((q, place) => make("li", {},
    make("button", { type: "button", class: "item", tabindex: "-1", "aria-current": place === browser.at ? "true" : null, "data-place": place, onclick: () => goTo(place) },
      make("span", { class: "asked", dir: "auto" }, marked(texts ? texts.questions[q][0] : ids[q])),
      make("span", { class: "marks", title: "A, B: ✓ right, ✗ wrong, ∅ wrongly abstained" }, mark(a, q), " ", mark(b, q)),
      make("span", { class: "tag" }, set().facets.length ? `${tagged === kind ? "" : "answerable: "}${set().facets[tagged].names[levels[tagged][q]]}` : ""))));
  if (browser.found.length > browser.limit) {
    items.push(make("li", {}, make("button", { type: "button", class: "item", id: "more-questions", onclick: () => { browser.limit += 5 * PAGE; drawList(a, b, ids, texts, levels); } }, `${whole(browser.found.length - browser.limit)} more …`)));
  }
  byId("question-list").firstChild.replaceChildren(...items);
}

function goTo(place) {
  if (place < 0 || place >= Math.min(browser.found.length, browser.limit)) return;
  const list = byId("question-list");
  list.querySelector("[aria-current]")?.removeAttribute("aria-current");
  browser.at = place;
  const item = list.querySelector(`[data-place="${place}"]`);
  item?.setAttribute("aria-current", "true");
  if (item) list.scrollTop = Math.min(Math.max(list.scrollTop, item.offsetTop - list.offsetTop + item.offsetHeight - list.clientHeight), item.offsetTop - list.offsetTop);
  showQuestion();
}
function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  goTo(browser.at + step);
}

async function showQuestion() {
  const q = browser.found[browser.at];
  const parent = byId("question-detail");
  if (q === undefined) return parent.replaceChildren(make("p", { class: "empty" }, "No question passes these filters."));
  const token = browser.token;
  const runs = [...new Set([browser.a, browser.b, ...packedRuns().filter((run) => state.slots.has(DATA.runs[run].group))])];
  const [ids, texts, levels, ...rows] = await Promise.all([idsOf(state.set), textsOf(state.set), levelsOf(state.set), ...runs.map((run) => rowsOf(rowsKey(state.set, run)))]);
  if (token !== browser.token || browser.found[browser.at] !== q) return;
  browser.id = ids[q];
  viewChanged();
  const answers = runs.map((run, i) => ({ run, rows: rows[i], span: spanAt(rows[i], q) }));
  const where = set().facets.filter((facet) => facet.key !== "context" && facet.key !== "article").map((facet) => `${facet.title.toLowerCase()}: ${facet.names[levels[set().facets.indexOf(facet)][q]]}`);
  const parts = [make("h3", { dir: "auto" }, marked(texts ? texts.questions[q][0] : ids[q])), make("p", { class: "where" }, [texts ? texts.questions[q][4] : null, ids[q], ...where].filter(Boolean).join(" · "))];
  if (texts) parts.push(passage(texts, q, answers));
  else parts.push(make("p", { class: "empty" }, "Texts are not part of records. They come with ", make("code", {}, "qa-arch report … --data FILE"), ", the file that these runs were scored on."));
  parent.replaceChildren(...parts, answerTable(texts, q, answers));
}

function passage(texts, q, answers) {
  const [, context, gold, plausible] = texts.questions[q];
  const letters = Array.from(texts.contexts[context]); // offsets count code points
  const codePoint = (place) => Array.from(texts.contexts[context].slice(0, place)).length;
  const spans = [...hits(texts.contexts[context]).map((span) => ({ span: span.map(codePoint), kind: "hit" })), ...gold.map((span) => ({ span, kind: "gold" })), ...plausible.map((span) => ({ span, kind: "plausible" })),
    ...answers.filter(({ span }) => span).map(({ span, run }) => ({ span, run }))];
  const cuts = [...new Set([0, letters.length, ...spans.flatMap(({ span }) => span)])].filter((cut) => cut <= letters.length).sort((x, y) => x - y);
  const pieces = cuts.slice(1).map((end, i) => {
    const over = spans.filter(({ span: [from, to] }) => from <= cuts[i] && end <= to);
    const text = letters.slice(cuts[i], end).join("");
    if (!over.length) return document.createTextNode(text);
    const answering = over.filter(({ run }) => run !== undefined);
    return make(over.some(({ kind }) => kind === "hit") ? "mark" : "span", {
      class: [...new Set(over.map(({ kind }) => kind).filter(Boolean)), answering.length ? "said" : ""].join(" ").trim(),
      style: answering.length ? `box-shadow: ${underlines(answering)}` : "",
      title: [...new Set(over.filter(({ kind }) => kind !== "hit").map(({ kind, run }) => kind ?? labelOf(run)))].join(", "),
    }, text);
  });
  return make("p", { class: "passage", dir: "auto" }, pieces);
}
/** One underline per answering system, the first nearest to the text. */
function underlines(answering) {
  const colours = [...new Set(answering.map(({ run }) => colourFor(run)))];
  return colours.flatMap((colour, place) => [`0 ${2 + 4 * place}px 0 ${colour}`, `0 ${4 + 4 * place}px 0 var(--paper)`]).join(", ");
}
const colourFor = (run) => (state.slots.has(DATA.runs[run].group) ? `var(--c${state.slots.get(DATA.runs[run].group)})` : "var(--faint)");

function answerTable(texts, q, answers) {
  const letters = texts ? Array.from(texts.contexts[texts.questions[q][1]]) : null;
  const quote = (span) => (span === null ? "no answer" : letters ? letters.slice(...span).join("") : `characters ${span[0]} to ${span[1]}`);
  const gold = texts ? [...new Set(texts.questions[q][2].map(quote))].join(" | ") || "no answer" : null;
  const head = ["System", "Answer", "EM", "F1", "Null odds", "Threshold"].map((name, i) => make("th", { class: i < 2 ? "text" : null, style: "padding: .45rem .7rem" }, name));
  const rows = answers.map(({ run, rows: columns, span }) => {
    const tag = run === browser.a ? " (A)" : run === browser.b ? " (B)" : "";
    const odds = columns.odds[q];
    return make("tr", {},
      make("td", { class: "text" }, make("span", { class: "pick" }, keyOf(DATA.runs[run].group), labelOf(run) + tag)),
      make("td", { class: "text", dir: "auto" }, span || columns.abstained[q] ? quote(span) : "(not in the passage)"),
      make("td", { class: columns.exact[q] ? "right" : "wrong", title: nameOfError(columns, q) }, columns.exact[q] ? "✓" : "✗"),
      make("td", {}, fixed(columns.f1[q], 2)),
      make("td", {}, odds === null ? "–" : Math.abs(odds) < 1e9 ? fixed(odds, 2) : odds > 0 ? "∞" : "−∞"),
      make("td", {}, DATA.runs[run].margin === null ? (DATA.runs[run].adopted ? "–" : "forced answer") : fixed(DATA.runs[run].margin, 2)));
  });
  const golden = gold === null ? [] : [make("tr", {}, make("td", { class: "text" }, "gold"), make("td", { class: "text", dir: "auto" }, make("span", { class: gold === "no answer" ? null : "gold" }, gold)), ...Array.from({ length: 4 }, () => make("td")))];
  return framed(make("table", { class: "answers" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, golden, rows)), "Answers");
}
