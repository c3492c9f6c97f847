// Every table of the report: its first column stays, it says that it scrolls, and it can be had as CSV.

/** `table` in a frame that scrolls; `name` is that of its CSV file. */
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
  if (wide || high) scroll.tabIndex = 0; // so that keys scroll it
  else scroll.removeAttribute("tabindex");
}

/** A plain table of texts; the first column and those in `left` are aligned to the left. */
function plainTable(heads, rows, { left = [0], id = null } = {}) {
  const side = (place) => (left.includes(place) ? "text" : null);
  return make("table", { id }, make("thead", {}, make("tr", {}, heads.map((head, place) => make("th", { scope: "col", class: side(place) }, head)))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, place) => make("td", { class: side(place) }, cell))))));
}

/** The text of a cell with plain signs and digits. */
function fieldOf(cell) {
  const text = cell.textContent.trim().replace(/^−/, "-");
  if (text === "–") return "";
  return /^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text;
}
function csvField(value) {
  if (value === null || value === undefined) return "";
  // A text that a spreadsheet would take for a formula is marked as text.
  const text = typeof value === "string" && /^[=+@-]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
const csvOf = (table) => [...table.rows].map((row) => [...row.cells].map(fieldOf).map(csvField).join(",")).join("\n") + "\n";

function saveTable(table, name) {
  const place = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
  make("a", { href: place, download: `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(place), 1000);
}
