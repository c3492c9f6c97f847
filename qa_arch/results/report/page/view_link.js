// The view in the address: what differs from the page as it opens stands behind the #, so that a link shows it again.
const VIEW = [];
/** `tell` gives the values of `key` (none: as the page opens), `take` sets what a link says of it. */
const inLink = (key, tell, take) => VIEW.push({ key, tell, take });
const written = { wait: null, ready: false, section: null };

function linkText() {
  const words = new URLSearchParams();
  for (const { key, tell } of VIEW) {
    for (const value of [tell()].flat()) if (value !== null && value !== undefined && value !== "") words.append(key, value);
  }
  return words.toString();
}
function writeLink() {
  clearTimeout(written.wait);
  if (written.ready) history.replaceState(null, "", `#${linkText()}`);
}
/** Writes the address soon: browsers allow few changes of it in a row. */
function viewChanged() {
  clearTimeout(written.wait);
  written.wait = setTimeout(writeLink, 200);
}

/** Shows what the address says; an address without a view only names a section to go to. */
async function readLink() {
  const text = location.hash.slice(1);
  const tells = text.includes("=");
  if (tells || !written.ready) {
    const words = new URLSearchParams(tells ? text : "");
    for (const { key, take } of VIEW) take(words.getAll(key));
    await Promise.all([buildBrowser(), changed()]); // only then is the way to a section as long as it stays
  }
  written.ready = true;
  if (!tells) written.section = byId(text) ? text : null;
  byId(written.section ?? "")?.scrollIntoView();
  viewChanged();
}

/** Copies the address; of a page on this disk only its name, as no other machine has the path. */
async function copyLink() {
  const button = byId("copy-link");
  writeLink();
  const name = location.protocol === "file:" ? location.pathname.split("/").pop() + location.hash : location.href;
  try {
    await navigator.clipboard.writeText(name);
    button.textContent = "Copied";
  } catch { // a browser may keep the clipboard from pages of the disk
    button.textContent = "In the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
}

const runNames = DATA.runs.map(({ name }) => name);
/** A run in an address: its name, of runs that share it the folder. */
const runWord = (run) => (run === null ? null : runNames.indexOf(runNames[run]) === runNames.lastIndexOf(runNames[run]) ? runNames[run] : DATA.runs[run].folder);
const runOfWord = (word) => DATA.runs.map((_, run) => run).find((run) => runWord(run) === word) ?? null;
const groupOfWord = (word) => DATA.groups.findIndex(({ label }) => label === word);
