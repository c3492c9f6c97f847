// The API's documentation, made from the schema that the service gives of itself.

import { element } from "./text.js";

const schema = await (await fetch("openapi.json")).json();

const resolve = (part) => (part?.$ref ? schema.components.schemas[part.$ref.split("/").at(-1)] : part);

// "list of QueryBody", "integer or null": the type of a field in words.
function typeName(part) {
  if (part.$ref) return part.$ref.split("/").at(-1);
  if (part.anyOf) return part.anyOf.map(typeName).join(" or ");
  if (part.type === "array") return `list of ${part.items ? typeName(part.items) : "numbers"}`;
  return part.type ?? "any";
}

// The descriptions' `code` as code.
function prose(text = "") {
  const parts = text.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
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
      element("td", {}, ...prose(field.description).childNodes),
    ),
  );
  const heads = ["field", "type", "meaning"].map((text) => element("th", { scope: "col" }, text));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Fields of ${typeName(part)}` }, table);
}

// Every schema that ``part`` names, itself first.
function mentioned(part, seen = new Map()) {
  const own = resolve(part);
  if (part.$ref && !seen.has(typeName(part))) seen.set(typeName(part), part);
  else if (part.$ref) return seen;
  for (const inner of [...(own.oneOf ?? []), ...(own.anyOf ?? []), ...Object.values(own.properties ?? {})]) {
    mentioned(inner, seen);
    if (inner.items) mentioned(inner.items, seen);
  }
  return seen;
}

function tables(title, part) {
  return [...mentioned(part).values()].flatMap((item) => [
    element("h3", {}, title, " ", element("code", {}, typeName(item))),
    prose(resolve(item).description),
    fields(item),
  ]);
}

const EXAMPLE = { question: "Who built the bridge?", context: "The bridge was built by Ada Stone in 1871." };

function call(method, path) {
  const url = new URL(path.slice(1), location.href).href;
  const body = method === "post" ? ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(EXAMPLE)}'` : "";
  return element("pre", { tabindex: 0, role: "region", "aria-label": `Call of ${path}` }, element("code", {}, `curl ${url}${body}`));
}

function operation(path, method, about) {
  const node = element("section", { class: "operation", "aria-label": `${method} ${path}` });
  const title = element("h2", {}, element("span", { class: "method" }, method.toUpperCase()), element("code", {}, path), about.summary);
  node.append(title, prose(about.description), call(method, path));
  const request = about.requestBody?.content["application/json"].schema;
  if (request) node.append(...tables("Request", request));
  const response = about.responses["200"].content?.["application/json"]?.schema;
  if (response) node.append(...tables("Response", response));
  return node;
}

const operations = Object.entries(schema.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, about]) => operation(path, method, about)),
);
const errors = element("section", { class: "operation", "aria-label": "Errors" }, element("h2", {}, "Errors"));
errors.append(
  prose("A status of 400 and above comes with what is wrong, in which field, and what to do. `429` and `503` name in `Retry-After` the seconds to wait."),
  ...tables("Response", { $ref: "#/components/schemas/ErrorMessage" }),
);
document.getElementById("operations").append(...operations, errors);
document.getElementById("status").textContent = `${operations.length} operations, version ${schema.info.version}`;
document.documentElement.dataset.ready = "yes";
