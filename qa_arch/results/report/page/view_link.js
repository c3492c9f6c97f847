// The view in the address: differences from the default view go after the #, so that a link restores them.
const VIEW = [];
/** `get` returns the values of `key` (none for the default), `restore` sets them from a link. */
const inLink = (key, get, restore) => VIEW.push({ key, get, restore });
const written = { wait: null, ready: false, section: null };

function linkText() {
  const words = new URLSearchParams();
  for (const { key, get } of VIEW) {
    for (const value of [get()].flat()) if (value !== null && value !== undefined && value !== "") words.append(key, value);
  }
  return words.toString();
}
function writeLink() {
  clearTimeout(written.wait);
  if (written.ready) history.replaceState(null, "", `#${linkText()}`);
}
/** Writes the address after a delay: browsers limit how often it may change. */
function viewChanged() {
  clearTimeout(written.wait);
  written.wait = setTimeout(writeLink, 200);
}

/** Restores the view in the address; an address without a view only names a section to scroll to. */
async function readLink() {
  const text = location.hash.slice(1);
  const hasView = text.includes("=");
  if (hasView || !written.ready) {
    const words = new URLSearchParams(hasView ? text : "");
    for (const { key, restore } of VIEW) restore(words.getAll(key));
    await Promise.all([buildBrowser(), changed()]); // section positions are final only then
  }
  written.ready = true;
  if (!hasView) written.section = byId(text) ? text : null;
  byId(written.section ?? "")?.scrollIntoView();
  viewChanged();
}

/** Copies the address; for a page on this disk only its file name, as no other machine has the path. */
async function copyLink() {
  const button = byId("copy-link");
  writeLink();
  const name = location.protocol === "file:" ? location.pathname.split("/").pop() + location.hash : location.href;
  try {
    await navigator.clipboard.writeText(name);
    button.textContent = "Copied";
  } catch { // browsers may deny the clipboard to pages opened from disk
    button.textContent = "In the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1500);
}

const runNames = DATA.runs.map(({ name }) => name);
/** A run in an address: its name, or its folder if several share the name. */
const runWord = (run) => (run === null ? null : runNames.indexOf(runNames[run]) === runNames.lastIndexOf(runNames[run]) ? runNames[run] : DATA.runs[run].folder);
const runOfWord = (word) => DATA.runs.map((_, run) => run).find((run) => runWord(run) === word) ?? null;
const groupOfWord = (word) => DATA.groups.findIndex(({ label }) => label === word);
