// The report: figures drawn when they come near the screen, systems on and off, sets, sorted and filtered tables.
const off = new Set(DATA.off);
const drawn = new Set();
const setNow = () => Number(byId("set").value || 0);

/** A figure's JSON with the colours of the style sheet. */
function themed(value, key = "") {
  if (Array.isArray(value)) return value.map((item) => themed(item, key));
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, themed(item, name)]));
  return typeof value === "string" && /color$/.test(key) && value.startsWith("--") ? css(value) : value;
}

function axis({ title, ...own } = {}) {
  const colours = { gridcolor: css("--line"), linecolor: css("--faint"), tickcolor: css("--faint") };
  return { ...colours, zeroline: false, ticks: "outside", ticklen: 4, automargin: true, title: { text: title, font: { size: 12, color: css("--soft") }, standoff: 8 }, ...own };
}

function draw(plot) {
  const { data, layout: { xaxis, yaxis, ...rest } } = JSON.parse(plot.parentNode.querySelector("script").textContent);
  const traces = themed(data).map((trace) => ({ ...trace, visible: !off.has(trace.legendgroup) }));
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
    margin: { l: 48, r: 12, t: 10, b: 40 }, font: { family: css("--sans"), size: 11.5, color: css("--soft") },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans"), size: 12 } },
    ...rest, xaxis: axis(xaxis), yaxis: axis(yaxis),
  };
  drawn.add(plot);
  Plotly.react(plot, traces, layout, { displaylogo: false, displayModeBar: false }).then(() => scalable(plot));
}
const redraw = () => drawn.forEach(draw);

/** Lets print scale a plot. */
function scalable(plot) {
  const { width, height } = plot._fullLayout;
  plot.querySelectorAll("svg.main-svg").forEach((svg) => svg.setAttribute("viewBox", `0 0 ${width} ${height}`));
}

const nearing = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  if (isIntersecting && !drawn.has(target)) draw(target);
}), { rootMargin: "600px" });
const fitting = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
  const width = target._fullLayout?.width;
  if (width && contentRect.width && Math.abs(width - contentRect.width) > 1 && !matchMedia("print").matches) Plotly.Plots.resize(target).then(() => scalable(target));
}));

/** Switches a system in all figures and in the question browser. */
function switchSystem({ currentTarget: button }) {
  const { system } = button.dataset;
  const on = off.delete(system) || !off.add(system);
  button.setAttribute("aria-pressed", String(on));
  redraw();
  browse();
}

function showSet() {
  document.querySelectorAll("[data-set]").forEach((part) => { part.hidden = Number(part.dataset.set) !== setNow(); });
  openSet(setNow());
}

const valueOf = (row, place) => {
  const text = row.cells[place].textContent.trim().replace(/−/g, "-");
  const number = parseFloat(text.replace(/,/g, ""));
  return text === "–" ? null : Number.isNaN(number) ? text : number;
};

/** Sorts a table by the column of a heading: numbers from the highest, texts from A, and again the other way. */
function sortBy(button) {
  const heading = button.closest("th");
  const body = heading.closest("table").tBodies[0];
  const text = heading.classList.contains("text");
  const down = heading.hasAttribute("aria-sort") ? heading.getAttribute("aria-sort") === "ascending" : !text;
  heading.parentNode.querySelector("[aria-sort]")?.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].map((row) => ({ row, value: valueOf(row, heading.cellIndex), last: row.classList.contains("reference") }));
  const compare = (x, y) => (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  rows.sort((a, b) => a.last - b.last || (a.value === null) - (b.value === null) || (down ? -1 : 1) * compare(a.value, b.value));
  body.append(...rows.map(({ row }) => row));
}

function filterRows({ target }) {
  const words = target.value.toLowerCase().split(/\s+/).filter(Boolean);
  document.querySelectorAll("#runs table.sortable tbody tr").forEach((row) => {
    const text = `${row.textContent} ${[...row.querySelectorAll("[title]")].map((cell) => cell.title).join(" ")}`.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  });
  if (words.length) document.querySelectorAll("#runs details").forEach((part) => { part.open = true; });
}

/** Opens what an address or a link points into. */
function openTarget() {
  const target = byId(location.hash.slice(1));
  for (let part = target?.closest("details"); part; part = part.parentNode.closest("details")) part.open = true;
  target?.scrollIntoView();
}

/** Prints all figures, in the light theme. */
function printing(begins) {
  paintTheme(begins ? "light" : firstTheme());
  document.querySelectorAll(".plot").forEach((plot) => { if (begins && plot.checkVisibility()) drawn.add(plot); });
  redraw();
}

async function start() {
  paintTheme(firstTheme());
  const source = make("script");
  source.textContent = await unpackText("pack-plotly");
  document.head.append(source);
  document.querySelectorAll(".plot").forEach((plot) => { nearing.observe(plot); fitting.observe(plot); });
  document.querySelectorAll("[data-system]").forEach((button) => button.addEventListener("click", switchSystem));
  document.querySelectorAll(".sortable thead button").forEach((button) => button.addEventListener("click", () => sortBy(button)));
  byId("set").addEventListener("change", showSet);
  byId("filter").addEventListener("input", filterRows);
  byId("theme").addEventListener("click", () => turnTheme(redraw));
  document.addEventListener("keydown", keys);
  addEventListener("hashchange", openTarget);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paintTheme(firstTheme()); redraw(); });
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  const bar = byId("bar"); // keeps link targets below it
  new ResizeObserver(() => { document.documentElement.style.scrollPaddingTop = `${getComputedStyle(bar).position === "sticky" ? bar.offsetHeight + 8 : 0}px`; }).observe(bar);
  await openSet(setNow());
  byId("wait").remove();
  openTarget();
  document.documentElement.dataset.ready = "yes";
}
start().catch((error) => {
  byId("wait").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later (DecompressionStream).`;
  throw error;
});
