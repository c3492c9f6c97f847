// Tables of the report: sticky first column, a cue to scroll, and export as CSV.

/** Wraps `table` in a scrolling frame; `name` names its CSV file. */
function framed(table, name) {
  const scroll = make("div", { class: "scroll", role: "region", "aria-label": `Table: ${name}` }, table);
  const edge = make("div", { class: "edge" }, scroll);
  const save = make("button", { type: "button", class: "quiet csv", "aria-label": `${name} as CSV`, onclick: () => saveTable(table, name) }, "CSV");
  const frame = make("div", { class: "frame" }, edge, make("div", { class: "under" }, save, make("span", { class: "cue" }, "more columns →")));
  scroll.addEventListener("scroll", () => showCue(scroll), { passive: true });
  scrolling.observe(scroll);
  scrolling.observe(table);
  return frame;
}
const scrolling = new ResizeObserver((entries) => entries.forEach(({ target }) => showCue(target.closest(".scroll"))));

function showCue(scroll) {
  if (!scroll) return;
  const [wide, high] = [scroll.scrollWidth > scroll.clientWidth + 1, scroll.scrollHeight > scroll.clientHeight + 1];
  scroll.closest(".frame").classList.toggle("more", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
  if (wide || high) scroll.tabIndex = 0; // scrollable by keyboard
  else scroll.removeAttribute("tabindex");
}

/** A plain table of texts; the columns in `left` are left-aligned. */
function plainTable(heads, rows, { left = [0], id = null } = {}) {
  const side = (place) => (left.includes(place) ? "text" : null);
  return make("table", { id }, make("thead", {}, make("tr", {}, heads.map((head, place) => make("th", { scope: "col", class: side(place) }, head)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, place) => make("td", { class: side(place) }, cell))))));
}

/** Text of a cell with an ASCII minus and plain digits. */
function fieldOf(cell) {
  const text = cell.textContent.trim().replace(/^−/, "-");
  if (text === "–") return "";
  return /^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text;
}
function csvField(value) {
  if (value === null || value === undefined) return "";
  // An apostrophe keeps spreadsheets from evaluating a text as a formula.
  const text = typeof value === "string" && /^[=+@-]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csvOf = (table) => [...table.rows].map((row) => [...row.cells].map(fieldOf).map(csvField).join(",")).join("\n") + "\n";

function saveTable(table, name) {
  const place = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
  make("a", { href: place, download: `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(place), 1000);
}
