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

/** The columns of one run on one set, as written by `pack_run`. */
const rowsOf = once(async (key) => JSON.parse(await unpackText(`pack-${key}`)));

const rowsKey = (set, run) => `${set}-run${run}`;
const hasRows = (set, run) => has(`pack-${rowsKey(set, run)}`);

const spanAt = (rows, q) => (rows.abstained[q] || rows.start[q] < 0 ? null : [rows.start[q], rows.end[q]]);
