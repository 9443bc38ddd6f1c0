// Renders /openapi.json as a page. Everything is inserted as text.
"use strict";

function element(name, text, attributes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  return made;
}

// A schema in a few words: its name, its type, or its alternatives.
function kindOf(schema) {
  if (!schema) return "anything";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const many = schema.anyOf || schema.oneOf;
  if (many) return many.map(kindOf).join(" | ");
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  return schema.type || "anything";
}

function limitsOf(schema) {
  const names = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength",
    "minItems", "maxItems", "pattern", "default"];
  const options = [schema, ...(schema.anyOf || [])];
  return names
    .map((name) => [name, options.map((option) => option[name]).find((value) => value !== undefined)])
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => `${name} ${JSON.stringify(value)}`)
    .join(", ");
}

function table(head, rows) {
  const made = element("table");
  const first = made.createTHead().insertRow();
  for (const name of head) first.append(element("th", name, { scope: "col" }));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const cell of row) line.append(element("td", cell));
  }
  return made;
}

function operation(path, method, described) {
  const box = element("details");
  const summary = element("summary");
  summary.append(element("span", method.toUpperCase(), { class: "method" }));
  summary.append(element("span", path, { class: "path" }));
  summary.append(element("span", described.summary || ""));
  box.append(summary);
  if (described.description) box.append(element("p", described.description));
  const content = described.requestBody && described.requestBody.content;
  if (content) {
    for (const [type, value] of Object.entries(content)) {
      box.append(element("p", `Request body (${type}): ${kindOf(value.schema)}`));
    }
  }
  if (described.parameters) {
    box.append(table(["parameter", "in", "type"],
      described.parameters.map((each) => [each.name, each.in, `${kindOf(each.schema)} ${limitsOf(each.schema)}`])));
  }
  box.append(table(["status", "meaning", "body"], Object.entries(described.responses).map(([status, answer]) => {
    const kinds = Object.values(answer.content || {}).map((value) => kindOf(value.schema));
    return [status, answer.description, kinds.join(", ")];
  })));
  return box;
}

function shape(name, schema) {
  const box = element("details");
  box.append(element("summary", name));
  if (schema.description) box.append(element("p", schema.description));
  const needed = new Set(schema.required || []);
  box.append(table(["field", "type", "limits", "description"], Object.entries(schema.properties || {}).map(
    ([field, value]) => [needed.has(field) ? `${field} *` : field, kindOf(value), limitsOf(value),
      value.description || ""])));
  return box;
}

async function show() {
  const answer = await fetch("/openapi.json");
  const described = await answer.json();
  document.getElementById("about").textContent = described.info.description;
  const groups = new Map();
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, value] of Object.entries(methods)) {
      const tag = (value.tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, value));
    }
  }
  const place = document.getElementById("operations");
  for (const [tag, boxes] of groups) place.append(element("h2", tag), ...boxes);
  const shapes = Object.entries((described.components && described.components.schemas) || {});
  document.getElementById("schemas").append(...shapes.map(([name, schema]) => shape(name, schema)));
}

show().catch(() => {
  document.getElementById("about").textContent = "Loading the description failed.";
});
