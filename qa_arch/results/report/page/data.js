// Question columns and texts of the report, unpacked on demand.
const has = (id) => document.getElementById(id) !== null;
const idsOf = once(async (set) => (has(`pack-${set}-ids`) ? JSON.parse(await unpackText(`pack-${set}-ids`)) : []));
const textsOf = once(async (set) => (has(`pack-${set}-texts`) ? JSON.parse(await unpackText(`pack-${set}-texts`)) : null));

/** Level of every question in every facet of a set, one array per facet. */
const levelsOf = once(async (set) => {
  const count = DATA.sets[set].facets.length;
  const bytes = await unpack(`pack-${set}-facets`);
  const size = count ? bytes.length / count : 0;
  return Array.from({ length: count }, (_, facet) => bytes.subarray(facet * size, (facet + 1) * size));
});

/** The columns of one run on one set, as written by `pack_run`: byte planes, lowest first. */
const rowsOf = once(async (key) => {
  const bytes = await unpack(`pack-${key}`);
  const width = DATA.columns.reduce((sum, [, size]) => sum + size, 0);
  const length = bytes.length / width;
  const columns = { size: length };
  let plane = 0;
  for (const [name, size] of DATA.columns) {
    const values = new Int32Array(length);
    for (let byte = 0; byte < size; byte += 1, plane += 1) {
      const from = plane * length;
      for (let q = 0; q < length; q += 1) values[q] += bytes[from + q] * 2 ** (8 * byte);
    }
    columns[name] = values;
  }
  return columns;
});

const rowsKey = (set, run) => `${set}-run${run}`;
const hasRows = (set, run) => has(`pack-${rowsKey(set, run)}`);

/** Null odds of question q; infinite at the ends of their range, NaN if unknown. */
function oddsAt(rows, q) {
  const signed = (rows.odds[q] << 16) >> 16;
  if (signed === -32768) return NaN;
  return Math.abs(signed) === 32767 ? Math.sign(signed) * Infinity : signed * DATA.oddsUnit;
}
const isRight = (rows, q) => (rows.flags[q] & 1) !== 0;
const isSilent = (rows, q) => (rows.flags[q] & 2) !== 0;
const spanAt = (rows, q) =>
  (rows.flags[q] & 6) !== 0 ? null : [rows.start[q], rows.start[q] + rows.length[q]];

/** Outcome of question q, a key of DATA.outcomes; boundary of a wrong span, a key of DATA.boundaries. */
const outcomeAt = (rows, q) => DATA.outcomes[rows.mistake[q] & 7][0];
const boundaryAt = (rows, q) => DATA.boundaries[((rows.mistake[q] >> 3) & 7) - 1]?.[0];
const isNear = (rows, q) => (rows.mistake[q] & 64) !== 0;
const isPlausible = (rows, q) => (rows.mistake[q] & 128) !== 0;
/** Whether a wrong span shares words with a gold answer. */
const overlaps = (rows, q) => outcomeAt(rows, q) === "wrong_span" && rows.f1[q] > 0;
