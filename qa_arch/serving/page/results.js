// Answer card: answer, confidence, passage with the answer marked, alternatives, attention.

import * as api from "./api.js";
import { element, percent, unitsOf } from "./text.js";

export function card(model, answer, question, context) {
  const node = element("article", { class: "card", "aria-label": `Answer of ${model.name}` });
  node.append(element("h2", {}, model.name), ...verdict(answer), passage(answer, context));
  if (answer.question_cut) {
    node.append(element("p", { class: "confidence" }, `The last ${answer.question_cut} tokens of the question were not read.`));
  }
  // Compare texts too: a sequence model's offsets may all be -1.
  const isOther = (span) => ["text", "start", "end"].some((name) => span[name] !== answer[name]);
  const others = answer.spans.filter(isOther).slice(0, 3);
  if (others.length) node.append(alternatives(others, answer.text));
  if (model.attention && question.trim() && context.trim()) node.append(attention(model, question, context));
  return node;
}

// Confidence of an answer, or the probability of "no answer".
function verdict(answer) {
  const none = percent(answer.no_answer_probability);
  const meter = (share) => element("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" });
  if (!answer.text) {
    return [
      element("p", { class: "answer none" }, "No answer in this passage"),
      element("p", { class: "confidence" }, meter(answer.no_answer_probability), `probability of no answer ${none}`),
    ];
  }
  return [
    element("p", { class: "answer", dir: "auto" }, answer.text),
    element("p", { class: "confidence" }, meter(answer.confidence), `confidence ${percent(answer.confidence)}, no answer ${none}`),
  ];
}

function passage(answer, context) {
  const node = element("p", { class: "passage", dir: "auto", tabindex: 0, role: "group", "aria-label": "The answer in its passage" });
  if (!answer.text || answer.start < 0) {
    node.append(context);
    return node;
  }
  const units = unitsOf(context);
  const [start, end] = [units(answer.start), units(answer.end)];
  node.append(context.slice(0, start), element("mark", {}, context.slice(start, end)), context.slice(end));
  return node;
}

function alternatives(spans, text) {
  const title = text ? "Other candidates" : "Closest candidates";
  const items = spans.map((span) =>
    element(
      "li",
      {},
      element("span", { class: "text", dir: "auto" }, span.text),
      element("span", { class: "share" }, percent(span.confidence)),
    ),
  );
  return element("div", {}, element("h3", {}, title), element("ol", { class: "alternatives" }, ...items));
}

// Loaded when first opened.
function attention(model, question, context) {
  const node = element("details", { class: "attention" }, element("summary", {}, "Model attention"));
  const load = async () => {
    const hint = element("p", { class: "hint", role: "status" }, "Reading …");
    node.append(hint);
    try {
      draw(node, await api.attention(question, context, model.name), question, context);
      hint.textContent = "Choose a question word to see where in the passage the model attends to it.";
      hint.removeAttribute("role");
    } catch (error) {
      hint.textContent = error.message;
    }
  };
  node.addEventListener("toggle", load, { once: true });
  return node;
}

function draw(node, map, question, context) {
  const units = unitsOf(context);
  const questionUnits = unitsOf(question);
  const text = element("p", { class: "passage heat", dir: "auto", tabindex: 0, role: "group", "aria-label": "Attention over the passage" });
  const spans = map.context.map(([start, end]) => element("span", {}, context.slice(units(start), units(end))));
  let last = map.context.length ? units(map.context[0][0]) : 0;
  if (last) text.append("… ");
  map.context.forEach(([start, end], i) => {
    text.append(context.slice(last, units(start)), spans[i]);
    last = units(end);
  });
  if (last < context.length) text.append(" …");
  const words = map.question.map(([start, end]) => question.slice(questionUnits(start), questionUnits(end)));
  const buttons = [...words, "(nothing)"].map((word) => element("button", { type: "button", "aria-pressed": "false" }, word));
  const choose = (column) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === column));
    spans.forEach((span, row) => {
      const weight = map.weights[row][column];
      span.style.backgroundColor = `rgba(var(--heat), ${(0.5 * weight).toFixed(3)})`;
      span.dataset.weight = weight;
    });
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => choose(i)));
  node.append(element("div", { class: "words", role: "group", "aria-label": "Question words" }, ...buttons), text);
  choose(mostSelective(map));
}

// Index of the question word whose weight varies most over the passage.
function mostSelective({ question, weights }) {
  const spread = question.map((_, i) => Math.max(...weights.map((row) => row[i])) - Math.min(...weights.map((row) => row[i])));
  return spread.indexOf(Math.max(...spread));
}
