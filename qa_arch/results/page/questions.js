// The question browser: a list by set, system, outcome, kind and text, and one question with gold, answers and null odds.
const PAGE = 100;
const read = once(async (name) => (byId(`pack-${name}`) ? JSON.parse(await unpackText(`pack-${name}`)) : null));
const levelsOf = once(async (set) => {
  const bytes = await unpack(`pack-${set}-facets`);
  const size = bytes.length / DATA.sets[set].facets.length;
  return DATA.sets[set].facets.map((_, facet) => bytes.subarray(facet * size, (facet + 1) * size));
});
/** Choices, what is unpacked of the set, and the questions found. */
const view = { set: 0, run: null, outcome: "any", order: "given", facet: {}, search: "", found: [], limit: PAGE, at: 0, token: 0 };
const fixed = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const keyOf = ({ place }) => make("span", { class: `key s${(place + Math.floor(place / 8)) % 8}`, style: `--k: var(--c${place % 8})` });

const MORE_OUTCOMES = [["boundary", "boundary error"], ["near", "near miss"], ["alone", "right, all others wrong"], ["behind", "wrong, all others right"], ["differ", "answers differ"]];
const WITH_TEXTS = () => [...DATA.boundaries.map(([key, name]) => [key, `wrong span: ${name}`]), ["plausible", "false: a plausible answer"]];
const ORDERS = [["given", "as in the set"], ["loss", "by loss of the system"], ["mean", "by mean loss of the systems shown"], ["behind", "by loss against the others"]];
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);

/** Whether question `q` of run `own` has an outcome; `others` are the other runs shown. */
function isOutcome(wanted, own, others, q) {
  if (wanted === "any" || own.outcome[q] === wanted || own.boundary[q] === wanted) return true;
  if (wanted === "boundary") return own.overlaps[q];
  if (wanted === "near" || wanted === "plausible") return Boolean(own[wanted][q]);
  if (wanted === "alone") return own.exact[q] && others.length > 0 && others.every((rows) => !rows.exact[q]);
  if (wanted === "behind") return !own.exact[q] && others.length > 0 && others.every((rows) => rows.exact[q]);
  return wanted === "differ" && others.some((rows) => String(spanAt(rows, q)) !== String(spanAt(own, q)));
}
const spanAt = (rows, q) => (rows.abstained[q] || rows.start[q] < 0 ? null : [rows.start[q], rows.end[q]]);

async function openSet(set) {
  Object.assign(view, { set, run: DATA.sets[set]?.runs[0] ?? null, outcome: "any", order: "given", facet: {}, search: "", limit: PAGE, at: 0, found: [] });
  for (const run of DATA.sets[set]?.runs ?? []) if (DATA.runs[run].place < DATA.runs[view.run].place) view.run = run;
  if (view.run === null) return byId("browser").replaceChildren(make("p", { class: "empty" }, "No run of this set has question rows (questions.parquet next to run.json)."));
  const { runs, facets, texts } = DATA.sets[set];
  const chooser = (name, options, current, pick) => make("label", {}, name, make("select", { "data-filter": name, onchange: (event) => { pick(event.target.value); browse(); } },
    options.map(([value, label]) => make("option", { value, selected: String(value) === String(current) }, label))));
  byId("browser").replaceChildren(
    make("div", { class: "filters" },
      chooser("System", runs.map((run) => [run, DATA.runs[run].label]), view.run, (value) => { view.run = Number(value); }),
      chooser("Outcome", [["any", "any"], ...DATA.outcomes, ...MORE_OUTCOMES, ...(texts ? WITH_TEXTS() : [])], "any", (value) => { view.outcome = value; }),
      chooser("Order", ORDERS, "given", (value) => { view.order = value; }),
      facets.map((facet, number) => chooser(facet.title, [["", "any"], ...facet.names.map((name, level) => [level, `${name} (${facet.count[level].toLocaleString("en-US")})`])], "", (value) => { view.facet[number] = value; })),
      make("label", {}, "Text", make("input", { type: "search", id: "question-search", placeholder: texts ? "question or passage" : "question id", oninput: (event) => { view.search = event.target.value.toLowerCase(); browse(); } })),
      make("span", { class: "told", id: "question-count", role: "status" })),
    make("div", { class: "split" },
      make("div", { class: "list", tabindex: "0", id: "question-list", role: "region", "aria-label": "Questions", onkeydown: walk }, make("ol")),
      make("article", { class: "detail", id: "question-detail", "aria-live": "polite" })),
    make("p", { class: "told" }, make("kbd", {}, "/"), " search · ", make("kbd", {}, "j"), " ", make("kbd", {}, "k"), ": next and previous question, from anywhere on the page; in the list arrows too"));
  return browse();
}

/** Unpacks the rows of the chosen run and of the systems that are on, finds the questions and lists them. */
async function browse() {
  if (view.run === null) return;
  const token = ++view.token;
  const { set } = view;
  const beside = DATA.sets[set].runs.filter((run) => run !== view.run && !off.has(DATA.runs[run].system));
  const shown = [view.run, ...beside.sort((a, b) => DATA.runs[a].place - DATA.runs[b].place)];
  const [ids, texts, levels, ...rows] = await Promise.all([read(`${set}-ids`), read(`${set}-texts`), levelsOf(set), ...shown.map((run) => read(`${set}-run${run}`))]);
  if (token !== view.token) return;
  const [own, ...others] = rows;
  const matches = (q) => {
    if (!view.search) return true;
    const [question, context] = texts?.questions[q] ?? ["", null];
    return [ids[q], question, texts?.contexts[context] ?? ""].some((text) => text.toLowerCase().includes(view.search));
  };
  const inFacets = (q) => Object.entries(view.facet).every(([facet, level]) => level === "" || levels[facet][q] === Number(level));
  const found = ids.map((_, q) => q).filter((q) => isOutcome(view.outcome, own, others, q) && inFacets(q) && matches(q));
  const loss = { loss: (q) => 1 - own.f1[q], mean: (q) => 1 - mean(rows.map(({ f1 }) => f1[q])), behind: (q) => mean(others.map(({ f1 }) => f1[q])) - own.f1[q] }[view.order];
  if (loss) found.sort((p, q) => loss(q) - loss(p) || p - q);
  Object.assign(view, { found, limit: PAGE, at: 0, data: { ids, texts, levels, shown, rows } });
  byId("question-count").textContent = `${found.length.toLocaleString("en-US")} of ${ids.length.toLocaleString("en-US")} questions`;
  drawList();
  showQuestion();
}

/** A text with the search matches marked. */
function marked(text) {
  if (!view.search) return text;
  const pattern = new RegExp(`(${view.search.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")})`, "giu");
  return text.split(pattern).map((part, i) => (i % 2 ? make("mark", {}, part) : part));
}

function drawList() {
  const { ids, texts, levels, rows } = view.data;
  const { facets } = DATA.sets[view.set];
  const tag = Math.max(0, facets.findIndex(({ key }) => key === "kind"));
  const item = (q, place) => make("li", {}, make("button", { type: "button", class: "item", tabindex: "-1", "data-place": place, "aria-current": place === view.at ? "true" : null, onclick: () => goTo(place) },
    make("span", { class: "asked", dir: "auto" }, marked(texts ? texts.questions[q][0] : ids[q])),
    make("span", { class: "marks", title: "✓ right, ✗ wrong, ∅ wrongly abstained; how many of the runs shown are right" },
      make("span", { class: rows[0].exact[q] ? "right" : "wrong" }, rows[0].exact[q] ? "✓" : rows[0].abstained[q] ? "∅" : "✗"), ` ${rows.filter(({ exact }) => exact[q]).length}/${rows.length}`),
    make("span", { class: "tag" }, `${facets[tag].key === "kind" ? "" : "answerable: "}${facets[tag].names[levels[tag][q]]}`)));
  const more = view.found.length - view.limit;
  byId("question-list").firstChild.replaceChildren(...view.found.slice(0, view.limit).map(item),
    ...(more > 0 ? [make("li", {}, make("button", { type: "button", class: "item", id: "more-questions", onclick: () => { view.limit += 5 * PAGE; drawList(); } }, `${more.toLocaleString("en-US")} more …`))] : []));
}

function goTo(place) {
  if (place < 0 || place >= Math.min(view.found.length, view.limit)) return;
  const list = byId("question-list");
  list.querySelector("[aria-current]")?.removeAttribute("aria-current");
  view.at = place;
  const item = list.querySelector(`[data-place="${place}"]`);
  item.setAttribute("aria-current", "true");
  list.scrollTop = Math.min(Math.max(list.scrollTop, item.offsetTop - list.offsetTop + item.offsetHeight - list.clientHeight), item.offsetTop - list.offsetTop);
  showQuestion();
}
function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  goTo(view.at + step);
}
/** Page-wide keys, except in form fields: search, next and previous question. */
function keys(event) {
  const search = byId("question-search");
  if (!search || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const step = { j: 1, k: -1 }[event.key];
  if (event.key !== "/" && !step) return;
  event.preventDefault();
  if (!step) return search.focus();
  goTo(view.at + step);
  const { top, bottom } = byId("question-list").getBoundingClientRect();
  if (top > innerHeight - 80 || bottom < 80) byId("questions").scrollIntoView();
}

/** One question: passage with gold and answers underlined, and the answers side by side. */
function showQuestion() {
  const { ids, texts, levels, shown, rows } = view.data;
  const q = view.found[view.at];
  if (q === undefined) return byId("question-detail").replaceChildren(make("p", { class: "empty" }, "No question passes these filters."));
  const answers = shown.map((run, i) => ({ ...DATA.runs[run], run, rows: rows[i], span: spanAt(rows[i], q) }));
  const where = DATA.sets[view.set].facets.map(({ key, title, names }, i) => (["context", "article"].includes(key) ? null : `${title.toLowerCase()}: ${names[levels[i][q]]}`));
  byId("question-detail").replaceChildren(
    make("h3", { dir: "auto" }, marked(texts ? texts.questions[q][0] : ids[q])),
    make("p", { class: "where" }, [texts?.questions[q][4], ids[q], ...where].filter(Boolean).join(" · ")),
    texts ? passage(texts, q, answers) : make("p", { class: "empty" }, "Texts are not part of records. They come with ", make("code", {}, "qa-arch report … --data FILE"), ", the file that these runs were scored on."),
    answerTable(texts, q, answers));
}

function passage(texts, q, answers) {
  const [, context, gold, plausible] = texts.questions[q];
  const letters = Array.from(texts.contexts[context]); // offsets count code points
  const spans = [...gold.map((span) => ({ span, kind: "gold" })), ...plausible.map((span) => ({ span, kind: "plausible" })), ...answers.filter(({ span }) => span)];
  const cuts = [...new Set([0, letters.length, ...spans.flatMap(({ span }) => span)])].filter((cut) => cut <= letters.length).sort((x, y) => x - y);
  return make("p", { class: "passage", dir: "auto" }, cuts.slice(1).map((end, i) => {
    const over = spans.filter(({ span: [from, to] }) => from <= cuts[i] && end <= to);
    const colours = [...new Set(over.filter(({ run }) => run !== undefined).map(({ place }) => `var(--c${place % 8})`))];
    return make("span", {
      class: [...new Set(over.map(({ kind }) => kind).filter(Boolean))].join(" ") || null,
      style: colours.length ? `box-shadow: ${colours.flatMap((colour, n) => [`0 ${2 + 4 * n}px 0 ${colour}`, `0 ${4 + 4 * n}px 0 var(--paper)`]).join(", ")}` : null,
      title: [...new Set(over.map(({ kind, label }) => kind ?? label))].join(", ") || null,
    }, marked(letters.slice(cuts[i], end).join("")));
  }));
}

function answerTable(texts, q, answers) {
  const letters = texts ? Array.from(texts.contexts[texts.questions[q][1]]) : null;
  const quote = (span) => (letters ? letters.slice(...span).join("") : `characters ${span[0]} to ${span[1]}`);
  const outcome = (rows) => {
    const named = new Map([...DATA.outcomes, ...DATA.boundaries]);
    return [named.get(rows.outcome[q]), named.get(rows.boundary[q]), rows.plausible[q] ? "a plausible one" : null].filter(Boolean).join(": ");
  };
  const odds = (value) => (value === null ? "–" : Math.abs(value) < 1e9 ? fixed(value, 2) : value > 0 ? "∞" : "−∞");
  const row = (name, answer, ...cells) => make("tr", {}, make("td", { class: "text" }, name), make("td", { class: "text", dir: "auto" }, answer), cells);
  const golden = texts ? [...new Set(texts.questions[q][2].map(quote))].join(" | ") : null;
  const body = answers.map(({ rows, span, label, place, threshold, adopted }) => row(
    make("span", { class: "pick" }, keyOf({ place }), label), span ? quote(span) : rows.abstained[q] ? "no answer" : "(not in the passage)",
    make("td", { class: rows.exact[q] ? "right" : "wrong", title: outcome(rows) }, rows.exact[q] ? "✓" : "✗"), make("td", {}, fixed(100 * rows.f1[q], 1)),
    make("td", {}, odds(rows.odds[q])), make("td", {}, threshold === null ? (adopted ? "–" : "forced answer") : fixed(threshold, 2))));
  if (golden !== null) body.unshift(row("gold", golden ? make("span", { class: "gold" }, golden) : "no answer", ...Array.from({ length: 4 }, () => make("td"))));
  const heads = ["System", "Answer", "EM", "F1", "Null odds", "Threshold"].map((name, i) => make("th", { scope: "col", class: i < 2 ? "text" : null }, name));
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Table: Answers" }, make("table", { class: "answers" }, make("thead", {}, make("tr", {}, heads)), make("tbody", {}, body)));
}
