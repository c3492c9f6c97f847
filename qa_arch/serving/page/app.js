// The page: reads the form, asks each chosen model, shows the answers, keeps the question in the address.
// The part of an address behind # is never sent to a server.

import * as api from "./api.js";
import { card } from "./results.js";
import { element, wellFormed } from "./text.js";

const by = (id) => document.getElementById(id);
const [form, context, question, model, other, status, results] =
  ["form", "context", "question", "model", "other", "status", "results"].map(by);
let models = [];
let running = null; // aborts what is being asked

// What the page shows anyway is said "quiet"ly: to screen readers alone.
function say(text, kind = "") {
  status.className = kind;
  status.textContent = text;
}

function count() {
  const characters = [...context.value].length;
  by("context-count").textContent = `${characters.toLocaleString("en")} character${characters === 1 ? "" : "s"}`;
}

function chosen() {
  const names = [model.value, other.value].filter((name, at, all) => name && all.indexOf(name) === at);
  return names.map((name) => models.find((item) => item.name === name));
}

async function ask() {
  const [passage, text] = [wellFormed(context.value), wellFormed(question.value)];
  const empty = !passage.trim() ? context : !text.trim() ? question : null;
  if (empty) {
    say(empty === context ? "Enter a passage first." : "Enter a question first.", "bad");
    empty.focus();
    return;
  }
  if (!models.length) { // a token is missing, or the service was: the start asks what is in the address
    keep();
    await start();
    return;
  }
  running?.abort();
  const own = (running = new AbortController());
  by("ask").setAttribute("aria-disabled", "true");
  say("Reading …");
  keep();
  try {
    const asked = chosen();
    const answers = await Promise.all(asked.map((item) => api.answer(text, passage, item.name, own.signal)));
    results.replaceChildren(...answers.map((answer, at) => card(asked[at], answer, text, passage)));
    if (results.getBoundingClientRect().top > 0.7 * innerHeight) results.scrollIntoView();
    say(answers.map((answer, at) => summary(answer, asked.length > 1 ? asked[at].name : "")).join(" "), "quiet");
  } catch (error) {
    if (error.name === "AbortError") return;
    results.replaceChildren();
    say(error.message, "bad");
    by("token-field").hidden &&= error.status !== 401;
  }
  if (running === own) by("ask").removeAttribute("aria-disabled");
}

function summary(answer, name) {
  const text = answer.text ? `Answer: ${answer.text}.` : "No answer in this passage.";
  return name ? `${name}: ${text}` : text;
}

// State in the address.

function keep() {
  const fields = { q: question.value, c: context.value, m: model.value, n: other.value };
  const state = new URLSearchParams(Object.entries(fields).filter(([, value]) => value));
  history.replaceState(null, "", `#${state}`);
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (!state.has("q") && !state.has("c")) return false;
  [question.value, context.value] = [state.get("q") ?? "", state.get("c") ?? ""];
  const names = models.map((item) => item.name);
  if (names.includes(state.get("m"))) model.value = state.get("m");
  other.value = names.includes(state.get("n")) ? state.get("n") : "";
  count();
  return true;
}

async function copy() {
  keep();
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied. It holds the passage and the question.");
  } catch {
    say("The link is in the address bar. It holds the passage and the question.");
  }
}

// Start.

function fill() {
  const { example } = models.find((item) => item.name === model.value);
  [context.value, question.value] = [example.context, example.question];
  count();
  ask();
}

async function loadModels() {
  models = await api.models();
  by("example").hidden = !models.length;
  model.replaceChildren(...models.map((item) => element("option", { value: item.name }, item.name)));
  other.replaceChildren(element("option", { value: "" }, "–"), ...[...model.options].map((option) => option.cloneNode(true)));
  by("compare").hidden = models.length < 2;
  if (restore() && question.value.trim() && context.value.trim()) await ask();
}

async function start() {
  try {
    say("", "quiet");
    await loadModels();
    by("token-field").hidden = true;
  } catch (error) {
    say(error.message, "bad");
    by("token-field").hidden = error.status !== 401;
  }
  document.documentElement.dataset.ready = "yes";
}

by("example").addEventListener("click", fill);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
form.addEventListener("keydown", (event) => { // Enter alone asks from the question, as in any form of one line
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
form.addEventListener("input", () => {
  count();
  if (status.className === "bad") say("", "quiet");
});
for (const list of [model, other]) list.addEventListener("change", () => results.querySelector(".card") && ask());
by("copy").addEventListener("click", copy);
by("token").addEventListener("change", () => {
  api.setToken(by("token").value.trim());
  start();
});
addEventListener("hashchange", () => restore() && ask());
count();
start();
