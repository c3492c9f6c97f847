// Curves of systems: the mean over seeds, and a band from the lowest seed to the highest.
const MOST_POINTS = 240;

/** Value at `x` of a curve through points of ascending x, interpolated linearly or in steps; null outside. */
function valueAt(points, x, steps) {
  let [low, high] = [0, points.length - 1];
  if (high < 0 || x < points[0][0] || x > points[high][0]) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [points[low], points[high]];
  if (x >= x1) return y1;
  return steps || x1 === x0 ? y0 : y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
}

/** `[x, mean, lowest, highest]` of curves (lists of points), wherever all of them have a value. */
function meanCurve(curves, steps) {
  const known = curves.map((points) => points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y)).sort((a, b) => a[0] - b[0])).filter((points) => points.length);
  if (known.length < 2) return (known[0] ?? []).map(([x, y]) => [x, y, y, y]);
  const every = [...new Set(known.flat().map(([x]) => x))].sort((a, b) => a - b);
  const grid = every.length <= MOST_POINTS ? every : Array.from({ length: MOST_POINTS }, (_, i) => every[Math.round((i * (every.length - 1)) / (MOST_POINTS - 1))]);
  return grid.flatMap((x) => {
    const values = known.map((points) => valueAt(points, x, steps));
    return values.includes(null) ? [] : [[x, mean(values), Math.min(...values), Math.max(...values)]];
  });
}

/** A mostly transparent version of a colour. */
const thin = (hex) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(", ")}, .16)`;

/** Traces of one system: its line, and a band if it has several seeds. `points` returns a run's points. */
function seedTraces(group, runs, points, { steps = false, band = true, colour = colourOf(group), name = DATA.groups[group].label, ...more } = {}) {
  const curve = meanCurve(runs.map(points), steps);
  if (!curve.length) return [];
  const column = (place) => curve.map((point) => point[place]);
  const shape = steps ? "hv" : "linear";
  const several = runs.length > 1;
  const edge = (place, fill) => ({ x: column(0), y: column(place), mode: "lines", line: { width: 0, shape }, hoverinfo: "skip", ...fill });
  const hover = several ? `<br>%{x:.3~g}, mean of ${runs.length} seeds %{y:.2f} (%{customdata[0]:.2f} to %{customdata[1]:.2f})` : "<br>%{x:.3~g}, %{y:.2f}";
  return [
    ...(several && band ? [edge(2, {}), edge(3, { fill: "tonexty", fillcolor: thin(colour) })] : []),
    { x: column(0), y: column(1), mode: "lines", name, customdata: curve.map(([, , low, high]) => [low, high]), hovertemplate: `${escapeHtml(name)}${hover}<extra></extra>`,
      ...more, line: { color: colour, width: 1.9, shape, ...(more.line ?? {}) } },
  ];
}
/** Traces of every system of `runs`. */
const systemTraces = (runs, points, more = {}) => bySystem(runs).flatMap(([group, members]) => seedTraces(group, members, points, more));
/** `runs` grouped by system, in order: [group, runs]. */
const bySystem = (runs) => [...new Set(runs.map((run) => DATA.runs[run].group))].map((group) => [group, runs.filter((run) => DATA.runs[run].group === group)]);
const bandNote = (runs) => (bySystem(runs).some(([, members]) => members.length > 1) ? " Lines: means over seeds. Bands: lowest to highest seed." : "");
