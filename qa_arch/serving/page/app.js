// The page: reads the form, queries the selected models, shows their answers, keeps the question in the URL.
// The part of a URL after # is never sent to a server.

import * as api from "./api.js";
import { card } from "./results.js";
import { element, wellFormed } from "./text.js";

const byId = (id) => document.getElementById(id);
const [form, context, question, model, other, status, results] =
  ["form", "context", "question", "model", "other", "status", "results"].map(byId);
let models = [];
let running = null; // AbortController of the pending requests

// kind "quiet": announced to screen readers only.
function showStatus(text, kind = "") {
  status.className = kind;
  status.textContent = text;
}

function showLength() {
  const characters = [...context.value].length;
  byId("context-count").textContent = `${characters.toLocaleString("en")} character${characters === 1 ? "" : "s"}`;
}

function selectedModels() {
  const names = [model.value, other.value].filter((name, i, all) => name && all.indexOf(name) === i);
  return names.map((name) => models.find((item) => item.name === name));
}

async function ask() {
  const [passage, text] = [wellFormed(context.value), wellFormed(question.value)];
  const empty = !passage.trim() ? context : !text.trim() ? question : null;
  if (empty) {
    showStatus(empty === context ? "Enter a passage first." : "Enter a question first.", "bad");
    empty.focus();
    return;
  }
  if (!models.length) { // no token or no service so far: start() asks the question in the URL
    saveState();
    await start();
    return;
  }
  running?.abort();
  const controller = (running = new AbortController());
  byId("ask").setAttribute("aria-disabled", "true");
  showStatus("Reading …");
  saveState();
  try {
    const selected = selectedModels();
    const ended = await Promise.allSettled(selected.map((item) => api.answer(text, passage, item.name, controller.signal)));
    const errors = ended.filter((result) => result.reason).map((result) => result.reason);
    const stop = errors.find((error) => error.name === "AbortError") ?? (errors.length === selected.length && errors[0]);
    if (stop) throw stop;
    results.replaceChildren(...ended.flatMap(({ value }, i) => value ? [card(selected[i], value, text, passage)] : []));
    for (const mark of results.querySelectorAll("mark")) {
      const box = mark.parentElement;
      box.scrollTop = mark.offsetTop - box.offsetTop - box.clientHeight / 3;
    }
    if (results.getBoundingClientRect().top > 0.7 * innerHeight) results.scrollIntoView();
    const words = ended.map(({ value, reason }, i) => {
      const name = selected.length > 1 ? selected[i].name : "";
      return value ? summary(value, name) : `${name}: ${reason.message}`;
    });
    showStatus(words.join(" "), errors.length ? "bad" : "quiet");
  } catch (error) {
    if (error.name === "AbortError") return;
    results.replaceChildren();
    showStatus(error.message, "bad");
    byId("token-field").hidden &&= error.status !== 401;
  }
  if (running === controller) byId("ask").removeAttribute("aria-disabled");
}

function summary(answer, name) {
  const text = answer.text ? `Answer: ${answer.text}.` : "No answer in this passage.";
  return name ? `${name}: ${text}` : text;
}

// State in the URL.

function saveState() {
  const fields = { q: question.value, c: context.value, m: model.value, n: other.value };
  const state = new URLSearchParams(Object.entries(fields).filter(([, value]) => value));
  history.replaceState(null, "", `#${state}`);
}

function restoreState() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (!state.has("q") && !state.has("c")) return false;
  [question.value, context.value] = [state.get("q") ?? "", state.get("c") ?? ""];
  const names = models.map((item) => item.name);
  if (names.includes(state.get("m"))) model.value = state.get("m");
  other.value = names.includes(state.get("n")) ? state.get("n") : "";
  showLength();
  return true;
}

async function copy() {
  saveState();
  try {
    await navigator.clipboard.writeText(location.href);
    showStatus("Link copied. It contains the passage and the question.");
  } catch {
    showStatus("The link is in the address bar. It contains the passage and the question.");
  }
}

// Start.

function fillExample() {
  const { example } = models.find((item) => item.name === model.value);
  [context.value, question.value] = [example.context, example.question];
  showLength();
  ask();
}

async function loadModels() {
  models = await api.models();
  byId("example").hidden = !models.length;
  model.replaceChildren(...models.map((item) => element("option", { value: item.name }, item.name)));
  other.replaceChildren(element("option", { value: "" }, "–"), ...[...model.options].map((option) => option.cloneNode(true)));
  byId("compare").hidden = models.length < 2;
  if (restoreState() && question.value.trim() && context.value.trim()) await ask();
}

async function start() {
  try {
    showStatus("", "quiet");
    await loadModels();
    byId("token-field").hidden = true;
  } catch (error) {
    showStatus(error.message, "bad");
    byId("token-field").hidden = error.status !== 401;
  }
  document.documentElement.dataset.ready = "yes";
}

byId("example").addEventListener("click", fillExample);
document.querySelector(".skip").addEventListener("click", (event) => { // not as a link, which would replace the question in the URL
  event.preventDefault();
  question.focus();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
form.addEventListener("keydown", (event) => { // plain Enter already submits from the question field
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
form.addEventListener("input", () => {
  showLength();
  if (status.className === "bad") showStatus("", "quiet");
});
for (const list of [model, other]) list.addEventListener("change", () => results.querySelector(".card") && ask());
byId("copy").addEventListener("click", copy);
byId("token").addEventListener("change", () => {
  api.setToken(byId("token").value.trim());
  start();
});
addEventListener("hashchange", () => restoreState() && ask());
showLength();
start();
