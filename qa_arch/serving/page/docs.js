// API documentation, generated from the service's OpenAPI schema.

import { element } from "./text.js";

const schema = await (await fetch("openapi.json")).json();

const resolve = (part) => (part?.$ref ? schema.components.schemas[part.$ref.split("/").at(-1)] : part);

// Type of a field in words: "list of QueryBody", "integer or null".
function typeName(part) {
  if (part.$ref) return part.$ref.split("/").at(-1);
  if (part.anyOf) return part.anyOf.map(typeName).join(" or ");
  if (part.type === "array") return `list of ${part.items ? typeName(part.items) : "numbers"}`;
  return part.type ?? "any";
}

// A paragraph with `code` as code elements.
function paragraph(text = "") {
  const parts = text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
  return element("p", {}, ...parts);
}

function fields(part) {
  const { properties = {}, required = [] } = resolve(part);
  const rows = Object.entries(properties).map(([name, field]) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, name)),
      element("td", {}, typeName(field), required.includes(name) ? "" : `, default ${JSON.stringify(field.default ?? null)}`),
      element("td", {}, ...paragraph(field.description).childNodes),
    ),
  );
  const heads = ["field", "type", "meaning"].map((text) => element("th", { scope: "col" }, text));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Fields of ${typeName(part)}` }, table);
}

// All named schemas that ``part`` refers to, itself first.
function referencedSchemas(part, seen = new Map()) {
  const definition = resolve(part);
  if (part.$ref && !seen.has(typeName(part))) seen.set(typeName(part), part);
  else if (part.$ref) return seen;
  for (const inner of [...(definition.oneOf ?? []), ...(definition.anyOf ?? []), ...Object.values(definition.properties ?? {})]) {
    referencedSchemas(inner, seen);
    if (inner.items) referencedSchemas(inner.items, seen);
  }
  return seen;
}

function tables(title, part) {
  return [...referencedSchemas(part).values()].flatMap((item) => [
    element("h3", {}, title, " ", element("code", {}, typeName(item))),
    paragraph(resolve(item).description),
    fields(item),
  ]);
}

const EXAMPLE = { question: "Which river was Kelldale reached by?", context: "Kelldale was reached by the river Kemcreek." };

function call(method, path) {
  const url = new URL(path.slice(1), location.href).href;
  const body = method === "post" ? ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(EXAMPLE)}'` : "";
  return element("pre", { tabindex: 0, role: "region", "aria-label": `Call of ${path}` }, element("code", {}, `curl ${url}${body}`));
}

function operation(path, method, spec) {
  const node = element("section", { class: "operation", "aria-label": `${method} ${path}` });
  const title = element("h2", {}, element("span", { class: "method" }, method.toUpperCase()), element("code", {}, path), spec.summary);
  node.append(title, paragraph(spec.description), call(method, path));
  const request = spec.requestBody?.content["application/json"].schema;
  if (request) node.append(...tables("Request", request));
  const response = spec.responses["200"].content?.["application/json"]?.schema;
  if (response) node.append(...tables("Response", response));
  return node;
}

const operations = Object.entries(schema.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, spec]) => operation(path, method, spec)),
);
const errors = element("section", { class: "operation", "aria-label": "Errors" }, element("h2", {}, "Errors"));
errors.append(
  paragraph("Responses with status 400 or above name the problem, the field and the remedy. For `429` and `503`, `Retry-After` gives the seconds to wait."),
  ...tables("Response", { $ref: "#/components/schemas/ErrorMessage" }),
);
document.getElementById("operations").append(...operations, errors);
document.getElementById("status").textContent = `${operations.length} operations, version ${schema.info.version}`;
document.documentElement.dataset.ready = "yes";
