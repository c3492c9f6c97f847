// Shared layout of all figures, drawn by Plotly.
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon", "x"];
const PLAIN = { responsive: false, displaylogo: false, displayModeBar: false };
const symbolOf = (group) => SYMBOLS[state.slots.get(group) ?? 0];

function layout(changes = {}) {
  const axis = {
    gridcolor: css("--line"), linecolor: css("--faint"), zeroline: false, ticks: "outside", ticklen: 4,
    tickcolor: css("--faint"), automargin: true, title: { font: { size: 12, color: css("--soft") }, standoff: 8 },
  };
  const { xaxis = {}, yaxis = {}, ...rest } = changes;
  const titled = ({ title, ...own }) => ({ ...axis, ...escaped(own, ["ticktext"]), title: { ...axis.title, text: escapeHtml(title ?? "") } });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, height: 300,
    margin: { l: 48, r: 12, t: 10, b: 40 }, font: { family: css("--sans"), size: 11.5, color: css("--soft") },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans"), size: 12 } },
    xaxis: titled(xaxis), yaxis: titled(yaxis), ...rest,
  };
}

/** Plots follow the width of their container, which changes with the window and as figures are added. */
const fitting = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (matchMedia("print").matches) return; // print scales them
    const drawn = target._fullLayout?.width;
    if (drawn && contentRect.width && Math.abs(drawn - contentRect.width) > 1) Plotly.Plots.resize(target).then(scalable);
  }
});

/** Replaces the element with the same id, or appends a new one. */
function put(parent, fresh) {
  const old = byId(fresh.id);
  if (old) old.replaceWith(fresh);
  else parent.append(fresh);
  return fresh;
}

/** Draws a figure in `parent`, in place if one of the same name exists. */
function figure(parent, name, title, caption, traces, changes) {
  const id = `figure-${name}`;
  let holder = byId(id);
  if (!holder?.querySelector(".plot")) {
    holder = put(parent, make("figure", { id }, make("h3"), make("div", { class: "plot", role: "img" }), make("figcaption")));
    fitting.observe(holder.children[1]);
  }
  const [heading, plot, below] = holder.children;
  heading.textContent = title;
  below.textContent = caption;
  plot.setAttribute("aria-label", `${title}. ${caption}`);
  draw(plot, traces, layout(changes));
}

/** Draws a plot that scales when printed. */
function draw(plot, traces, changes) {
  Plotly.react(plot, traces.map((trace) => escaped(trace, ["x", "y", "text", "name", "customdata"])), changes, PLAIN).then(scalable);
}

function scalable(plot) {
  const { width, height } = plot._fullLayout;
  plot.querySelectorAll("svg.main-svg").forEach((svg) => svg.setAttribute("viewBox", `0 0 ${width} ${height}`));
}

/** Shows the reason instead of a figure that cannot be drawn. */
function absent(parent, name, title, reason) {
  put(parent, make("figure", { id: `figure-${name}` }, make("h3", {}, title), make("p", { class: "empty" }, reason)));
}

function dots(runs, x, y, more = {}) {
  const groups = runs.map((run) => DATA.runs[run].group);
  return {
    x, y, mode: "markers", text: runs.map(labelOf),
    marker: { color: groups.map(colourOf), symbol: groups.map(symbolOf), size: 9, line: { color: css("--paper"), width: 1 } },
    hovertemplate: "%{text}<br>%{x}, %{y:.2f}<extra></extra>", ...more,
  };
}
/** Plotly reads text as HTML: titles of articles, names of runs. Templates are ours, and escape what they include. */
const escaped = (value, keys) => ({ ...value, ...Object.fromEntries(keys.filter((key) => key in value).map((key) => [key, escapedText(value[key])])) });
const escapedText = (value) => typeof value === "string" ? escapeHtml(value) : Array.isArray(value) ? value.map(escapedText) : value;
const escapeHtml = (text) => text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
