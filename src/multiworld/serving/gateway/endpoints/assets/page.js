const api = first();

function soft(text) { return make("p", {className: "soft", textContent: text}); }
function code(text) { return make("code", {textContent: text}); }
function folded(summary, ...parts) { return make("details", {}, make("summary", {}, ...summary), make("div", {}, ...parts)); }
function examples(body) { return Object.entries(body.content["application/json"].examples || {}); }
function table(rows) {
  return make("table", {}, ...rows.map(([term, text]) =>
    make("tr", {}, make("td", {}, code(term)), make("td", {textContent: text}))));
}

function operation(path, method, told) {
  const parts = [];
  if (told.description) parts.push(make("p", {textContent: told.description}));
  if (told.parameters) {
    parts.push(soft("Headers"), table(told.parameters.map(each => [each.name, each.description])));
  }
  if (told.requestBody) {
    const kinds = Object.keys(told.requestBody.content).flatMap((kind, index) => [index ? ", " : "", code(kind)]);
    parts.push(make("p", {className: "soft"}, "Body: ", ...kinds));
    for (const [title, example] of examples(told.requestBody)) {
      parts.push(make("p", {textContent: title}), make("pre", {textContent: JSON.stringify(example.value)}));
    }
  }
  parts.push(soft("Answers"), table(Object.entries(told.responses).map(([status, each]) => [status, each.description])));
  const shown = make("span", {className: `method ${method}`, textContent: method.toUpperCase()});
  const what = make("span", {className: "soft", textContent: told.summary});
  return folded([shown, " ", code(path), " ", what], ...parts);
}

put(at("name"), api.info.title);
put(at("about"), `${api.info.summary}, version ${api.info.version}. ${api.info.description}`);
at("body").value = JSON.stringify(examples(api.paths["/infer"].post.requestBody)[0][1].value);
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, told] of Object.entries(methods)) {
    if (method !== "parameters") at("operations").append(operation(path, method, told));
  }
}
for (const [title, schema] of Object.entries(api.components.schemas)) {
  at("schemas").append(folded([code(title)], make("pre", {textContent: JSON.stringify(schema, null, 1)})));
}

at("try").addEventListener("submit", async event => {
  event.preventDefault();
  const shown = at("answer"), body = at("body").value;
  put(shown, "…");
  try {
    const began = performance.now();
    const answer = await fetch("infer", {method: "POST", body, headers: {"Content-Type": "application/json"}});
    const text = await answer.text();
    put(shown, `${answer.status} after ${(performance.now() - began).toFixed(1)} ms\n${text}`);
  } catch (error) { put(shown, String(error)); }
});
