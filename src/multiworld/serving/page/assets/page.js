const svgSpace = "http://www.w3.org/2000/svg", span = 300, kept = 500;
const glyphs = {good: "●", calm: "◔", warn: "◑", bad: "✕"}, marks = {warn: "◆", bad: "▲"};
const order = ["fault", "replica", "scaling", "update"];
const labels = {fault: "faults", replica: "starts and replacements", scaling: "scaling", update: "updates",
  other: "other", world: "worlds"};
const hidden = new Set(["world"]), path = location.pathname.replace(/[/]$/, "");
const narrow = matchMedia("(max-width: 700px)");
let run = null, graph = null, snapshot = null, points = [], events = [], picked = null;
function draw(tag, attributes, ...children) {
  const made = document.createElementNS(svgSpace, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function short(text, most) { return text.length > most ? text.slice(0, most - 1) + "…" : text; }
function limit(window) { return window === null || window === undefined || window >= 65536 ? "" : count(window); }
function rate(value) {
  if (value === null || value === undefined) return "–";
  return (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1)) + "/s";
}
function time(seconds) {
  if (seconds === null || seconds === undefined || seconds === 0) return "–";
  if (seconds >= 1) return seconds.toFixed(2) + " s";
  return (seconds * 1000).toFixed(seconds >= 0.1 ? 0 : seconds >= 0.01 ? 1 : 2) + " ms";
}
function bounds([fewest, most]) { return most === fewest ? String(most) : most === null ? `${fewest} or more` : `${fewest}–${most}`; }
function batch(size) { return size === null || size === undefined ? "–" : size.toFixed(1); }
function share(value) { return value === null || value === undefined ? "–" : Math.round(value * 100) + " %"; }
function size(bytes) { return bytes >= 1e6 ? (bytes / 1e6).toFixed(1) + " MB" : Math.round(bytes / 1e3) + " kB"; }
function memory(mb) { return mb === null || mb === undefined ? "–" : count(mb) + " MB"; }

// ---- the graph: its structure when that changes, its numbers every second

let parts = new Map();
function showGraph() {
  const pane = at("graph");
  if (!graph) return;
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  const kind = narrow.matches ? "upright" : "wide", drawing = graph.drawings[kind];
  const root = draw("svg", {viewBox: `0 0 ${drawing.width} ${drawing.height}`, role: "group",
    "aria-label": "the stages, their replicas, and the worlds between them"});
  parts = new Map();
  const texts = draw("g", {class: "over"});
  for (const [id, box] of Object.entries(drawing.nodes)) {
    const [under, ...over] = id.includes(":") ? end(id, box) : stage(id, box);
    root.append(under);
    texts.append(...over);
  }
  for (const edge of graph.edges) {
    const path = draw("path", {d: edge[kind], class: "world " + edge.state});
    const ends = `${edge.from} → ${edge.to}` + (edge.count > 1 ? `, ${edge.count} worlds` : "");
    Object.assign(path.dataset, {from: edge.from, to: edge.to});
    path.append(draw("title", {}, `${ends}: ${edge.state}` + (edge.error ? `, ${edge.error}` : "")));
    root.append(path);
  }
  root.append(texts, ...drawing.empty.map(vacancy));
  for (const [id, box] of Object.entries(drawing.members)) root.append(member(id, box));
  const room = pane.clientWidth, scale = Math.min(1, Math.max(room / drawing.width, 0.72));
  root.setAttribute("width", Math.floor(drawing.width * scale));
  root.setAttribute("height", Math.floor(drawing.height * scale));
  pane.replaceChildren(root);
  showNumbers();
  if (picked) pick(picked);
  if (focused && parts.has(focused)) parts.get(focused).group.focus({preventScroll: true});
}
function end(id, [x, y, width, height]) {
  const text = (dy, look) => draw("text", {x: x + width / 2, y: y + dy, class: "middle " + look});
  const lines = [text(20, "name"), text(37, "faint"), text(52, "faint")];
  parts.set(id, {lines});
  return [draw("rect", {x, y, width, height, rx: 8, class: "end"}), ...lines];
}
function stage(id, [x, y, width, height]) {
  const left = draw("text", {x: x + 9, y: y + 18, class: "name"}, short(id, 15));
  const right = draw("text", {x: x + width - 9, y: y + 18, class: "right"});
  const below = draw("text", {x: x + 9, y: y + 34, class: "faint"});
  const box = draw("rect", {x, y, width, height, rx: 10, class: "stage"}, draw("title", {}, id));
  parts.set("stage " + id, {box, right, below});
  return [box, left, right, below];
}
function vacancy([x, y, width, height, who, missed]) {
  const small = height < 40;
  const says = small ? (missed ? "✕" : "◔") : !who ? "not started yet" : missed ? `✕ ${short(who, 16)} is gone` : `${short(who, 16)} has left`;
  return draw("g", {class: "member " + (!who ? "calm" : missed ? "bad" : "idle")},
    draw("title", {}, who ? `${who} ${missed ? "is gone" : "has left"}` : "not started yet"),
    draw("rect", {x, y, width, height, rx: small ? 5 : 7, class: "box"}),
    draw("text", {x: x + width / 2, y: y + height / 2 + 4, class: "middle state"}, says));
}
function member(id, [x, y, width, height]) {
  if (height < 40) return chip(id, [x, y, width, height]);
  const text = (dy, look) => draw("text", {x: x + 8, y: y + dy, class: look});
  const lines = [text(17, "name"), text(33, "state"), text(47, "faint"), text(61, "")];
  const version = draw("text", {x: x + width - 8, y: y + 17, class: "right faint"});
  const load = draw("rect", {x: x + 8, y: y + height - 8, width: 0, height: 3, class: "load", rx: 1.5});
  const hint = draw("title", {});
  const group = draw("g", {class: "member"}, hint,
    draw("rect", {x, y, width, height, rx: 7, class: "box"}), ...lines, version,
    draw("rect", {x: x + 8, y: y + height - 8, width: width - 16, height: 3, class: "track", rx: 1.5}), load);
  parts.set(id, {group, lines, version, load, hint, room: width - 16});
  return chosenBy(group, id);
}
function chip(id, [x, y, width, height]) {
  const label = draw("text", {x: x + width / 2, y: y + height / 2 + 4, class: "middle state"}), hint = draw("title", {});
  const group = draw("g", {class: "member chip"}, hint, draw("rect", {x, y, width, height, rx: 5, class: "box"}), label);
  parts.set(id, {group, label, hint});
  return chosenBy(group, id);
}
function chosenBy(group, id) {
  for (const [key, value] of [["tabindex", 0], ["role", "button"], ["data-id", id]]) group.setAttribute(key, value);
  for (const when of ["focus", "mouseenter"]) group.addEventListener(when, () => pick(id));
  for (const when of ["blur", "mouseleave"]) group.addEventListener(when, () => pick(null));
  group.addEventListener("click", () => choose(id));
  group.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(id); }
  });
  return group;
}
function pick(id) {
  picked = id;
  const stage = id && snapshot ? (snapshot.replicas.find(each => each.id === id) || {}).stage : null;
  for (const path of document.querySelectorAll("#graph .world")) {
    const ends = [path.dataset.from, path.dataset.to], near = ends.includes(id) || ends.includes(stage);
    path.classList.toggle("near", near);
    path.classList.toggle("far", id !== null && !near);
  }
}
function showNumbers() {
  if (!snapshot) return;
  const totals = snapshot.totals, gateways = snapshot.gateways.length;
  fill(parts.get("gateway:in"), ["requests", gateways > 1 ? `${gateways} gateways` : "gateway", `${totals.open} open`]);
  fill(parts.get("gateway:out"), ["answers", rate(totals.rate), `p50 ${time(totals.p50_s)}`]);
  for (const each of snapshot.stages) {
    const part = parts.get("stage " + each.name);
    if (!part) continue;
    put(part.right, `${each.open} of ${each.desired}`);
    const version = each.updating_to ? ` · v${each.version} → v${each.updating_to}` : "";
    name(part.box, "stage " + (each.trouble ? each.trouble.tone : ""));
    name(part.below, each.trouble ? each.trouble.tone : "faint");
    put(part.below, each.trouble ? `${marks[each.trouble.tone]} ${each.trouble.percent} failed${version}` :
      each.rate === null ? "no numbers yet" : `${rate(each.rate)} · ${share(each.utilisation)} busy${version}`);
  }
  for (const each of snapshot.replicas) {
    const part = parts.get(each.id);
    if (!part) continue;
    const look = each.tone, state = each.says;
    const trouble = each.trouble ? ` failing-${each.trouble.tone}` : "";
    name(part.group, `member ${part.label ? "chip " : ""}${look}${trouble}${each.id === chosen ? " picked" : ""}`);
    const queue = limit(each.window) ? `${each.queue}/${limit(each.window)}` : each.queue;
    const sign = each.trouble && look === "good" ? marks[each.trouble.tone] : glyphs[look];
    const all = `${each.id}: ${state}, process ${each.pid} on ${each.host}, ${rate(each.rate)}, ` +
      `${time(each.service_s)} each, ${each.queue} queued, ${share(each.utilisation)} busy` +
      (each.trouble ? `, ${each.trouble.text}` : "");
    put(part.hint, all);
    part.group.setAttribute("aria-label", all);
    if (part.label) { put(part.label, `${sign} ${each.id.slice(each.id.lastIndexOf("-") + 1)}`); continue; }
    fill(part, [`${sign} ${short(each.id, 17)}`, short(state, 25),
      short(`pid ${each.pid ?? "–"} · ${each.host}`, 26), `${rate(each.rate)} · ${time(each.service_s)} · q ${queue}`]);
    put(part.version, each.version > 1 ? "v" + each.version : "");
    part.load.setAttribute("width", part.room * (each.utilisation || 0));
    name(part.load, each.utilisation > 0.85 ? "load high" : "load");
  }
}
function fill(part, texts) { if (part) texts.forEach((text, index) => put(part.lines[index], text)); }

// ---- tables: rows stay, cells change. Each column: heading, what a row says there, class, tone

const stateColumn = ["State", each => `${glyphs[each.tone]} ${each.says}`, "", each => each.tone];
const pidColumn = ["Pid", each => String(each.pid ?? "–"), "n"], hostColumn = ["Host", each => each.host];
const cpuColumn = ["CPU", each => share(each.cpu), "n"], memoryColumn = ["Memory", each => memory(each.memory_mb), "n"];
const tables = {
  stages: [["Stage", each => each.name],
    ["Open", each => `${each.open} of ${each.desired}`, "n",
      each => each.open < each.desired ? "warn" : ""],
    ["Bounds", each => bounds(each.bounds), "n"], ["Rate", each => rate(each.rate), "n"],
    ["Busy", each => share(each.utilisation), "n"], ["Service", each => time(each.service_s), "n"],
    ["Batch", each => batch(each.batch), "n"], ["Queue", each => count(each.queue), "n"],
    ["Version", each => each.updating_to ? `${each.version} → ${each.updating_to}` : String(each.version), "n"],
    ["", each => each.note || (each.trouble ? `${marks[each.trouble.tone]} ${each.trouble.percent} failed` : ""), "note"]],
  gateways: [["Gateway", each => each.id], stateColumn, pidColumn, hostColumn,
    ["Open", each => count(each.open_requests), "n"], ["Waiting", each => count(each.waiting), "n"],
    ["Rate", each => rate(each.rate), "n"], ["p50", each => time(each.p50_s), "n"], ["p95", each => time(each.p95_s), "n"],
    ["p99", each => time(each.p99_s), "n"], cpuColumn, memoryColumn],
  hosts: [["Host", each => each.name], ["Address", each => each.address],
    ["State", each => each.live ? "● connected" : "✕ lost", "", each => each.live ? "good" : "bad"],
    ["Members", each => count(members().filter(one => one.host === each.name).length), "n"],
    ["Capacity", each => each.capacity ? count(each.capacity) : "–", "n"]],
  replicas: [["Replica", each => each.id], stateColumn, pidColumn, hostColumn, ["Version", each => String(each.version), "n"],
    ["Queue", each => count(each.queue), "n"], ["In hand", each => count(each.in_flight), "n"],
    ["Window", each => limit(each.window) || "–", "n"], ["Rate", each => rate(each.rate), "n"],
    ["Service", each => time(each.service_s), "n"], ["Batch", each => batch(each.batch), "n"],
    ["Busy", each => share(each.utilisation), "n"], ["Done", each => count(each.done), "n"],
    ["Failed", each => count(each.failed), "n", each => each.trouble ? each.trouble.tone : ""],
    ["Held", each => size(each.held_bytes), "n"], cpuColumn, memoryColumn, ["Age", each => age(each.age_s), "n"]],
};
for (const [id, columns] of Object.entries(tables)) {
  const heads = columns.map(([heading, , look]) => make("th", {scope: "col", className: look || ""}, heading));
  const scroll = make("div", {className: "scroll", tabIndex: 0},
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {id})));
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", id);
  at("tables").append(make("section", {className: "card"}, make("h2", {}, id), scroll));
}
function members() { return [...snapshot.replicas, ...snapshot.gateways]; }
function table(id) {
  const body = at(id), known = new Map([...body.rows].map(row => [row.dataset.id, row]));
  snapshot[id].forEach((each, index) => {
    const key = each.id || each.name, row = known.get(key) || newRow(key, tables[id].length, Boolean(each.id));
    known.delete(key);
    tables[id].forEach(([, says, look, tone], column) => {
      const cell = row.cells[column];
      put(cell.firstElementChild || cell, says(each));
      name(cell, `${look || ""} ${tone ? tone(each) : ""}`.trim());
    });
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] || null);
  });
  for (const row of known.values()) row.remove();
}
function newRow(key, width, isMember) {
  const row = make("tr", {}, ...Array.from({length: width}, () => make("td", {})));
  row.dataset.id = key;
  if (isMember) row.cells[0].append(make("button", {type: "button", className: "who", title: `show ${key}`}));
  if (isMember) row.addEventListener("click", () => { if (!String(getSelection())) choose(key); });
  return row;
}
function showTables() { for (const id of Object.keys(tables)) table(id); }

// ---- one member

panel = {
  show() {
    if (!snapshot) return;
    const found = members().find(each => each.id === chosen);
    put(at("who"), found ? chosen : `${chosen} is gone`);
    const stage = found && snapshot.stages.find(each => each.name === found.stage);
    showFacts(!found ? [] : [["State", found.says], ["Pid", found.pid], ["Host", found.host], ["Age", age(found.age_s)],
      ["Rate", rate(found.rate)], ["Memory", memory(found.memory_mb)],
      ...(stage ? [["Stage", stage.name], ["Version", found.version], ["Queue", count(found.queue)],
        ["Batch", batch(found.batch)], ["Done", count(found.done)], ["Failed", count(found.failed)]] : [])]);
    const failure = [stage, snapshot, found].map(each => each?.failure).find(each => each?.member === chosen);
    showTrouble(failure && `Last error (${times(failure.count)}): ${failure.error.split("\n")[0]}`,
      failure && (failure.traceback || failure.error.split("\n").slice(1).join("\n")));
  },
  marks() {
    showNumbers();
    for (const row of document.querySelectorAll("#replicas tr, #gateways tr")) {
      row.classList.toggle("picked", row.dataset.id === chosen);
    }
  },
  linesOf(member) {
    const query = new URLSearchParams(location.search);
    query.set("member", member);
    return `${path}/lines?${query}`;
  },
  openerOf: member => parts.get(member)?.group,
  copied: member => member,
};
// ---- totals and curves

function showStatus() {
  if (!snapshot) {
    banner(isLive ? "warn" : "lost", isLive ? "Nothing is known of the deployment yet: its controller has not answered." :
      "Not connected: the gateway has ended, or cannot be reached.");
    return;
  }
  put(at("name"), snapshot.name);
  const {tone, text} = snapshot.condition, isKnown = isLive && !snapshot.silent;
  document.title = `${isKnown ? marks[tone] || "" : "…"} ${snapshot.name} · multiworld`.trim();
  put(at("phase"), snapshot.stopping ? "stopping" : snapshot.resuming ? "resuming" : snapshot.ready ? "ready" : "not ready");
  name(at("phase"), isKnown ? "pill " + tone : "pill");
  put(at("about"), `routing epoch ${snapshot.epoch}`);
  if (!isLive) {
    banner("lost", `Not connected: the gateway has ended, or cannot be reached. What is shown is of ${clock(lostAt)}.`);
  } else if (snapshot.silent) {
    banner("lost", `The controller does not answer: ${snapshot.silent.why}. Requests go on without it; what is shown ` +
      `is of ${clock(snapshot.silent.since)}.`);
  } else {
    const since = snapshot.unready_s ? `, for ${age(snapshot.unready_s)}` : "";
    banner(marks[tone] ? tone : "", `${marks[tone] || ""} ${text[0].toUpperCase()}${text.slice(1)}${since}.`.trim());
  }
  showFailure(snapshot.failure);
  const totals = snapshot.totals;
  put(at("n-rate"), rate(totals.rate));
  for (const each of ["p50", "p95", "p99"]) put(at("n-" + each), time(totals[each + "_s"]));
  put(at("n-open"), `${count(totals.open)}`);
  put(at("n-waiting"), `open, ${count(totals.waiting)} wait for a replica`);
  put(at("n-answered"), `answers, ${count(totals.answered)} so far`);
  put(at("n-bad"), count(totals.failed + totals.refused));
  put(at("n-failed"), `${count(totals.failed)} failed, ${count(totals.refused)} refused`);
}
function showFailure(failure) {
  const box = at("failure");
  box.hidden = !failure;
  if (!failure) return;
  put(box.querySelector("summary"), `The last, at ${clock(failure.at)} in ${failure.member} (${times(failure.count)}): ` +
    failure.error.split("\n")[0]);
  put(box.querySelector("pre"), failure.traceback || failure.error);
}
function showCurves() {
  const now = points.length ? points[points.length - 1].at : 0;
  const falls = events.filter(each => each.kind === "ReplicaLost" && each.at > now - span);
  for (const [id, field, text] of [["rate", "rate", rate], ["p50", "p50_s", time], ["p95", "p95_s", time],
    ["p99", "p99_s", time], ["open", "open", count], ["bad", "bad_rate", rate]]) curve(id, field, text, now, falls);
  strip(now);
}
function curve(id, field, text, now, falls) {
  const root = at("c-" + id), top = Math.max(...points.map(each => each[field] || 0), 1e-9);
  const x = when => span - (now - when), y = value => 38 - 36 * value / top;
  let path = "", area = "", first = null, last = null;
  for (const each of points) {
    if (each[field] === null) { if (last !== null) area += `L${last} 39Z`; first = last = null; continue; }
    const here = x(each.at).toFixed(1);
    path += `${last === null ? "M" : "L"}${here} ${y(each[field]).toFixed(1)}`;
    area += `${last === null ? `M${here} 39L` : "L"}${here} ${y(each[field]).toFixed(1)}`;
    first ??= here;
    last = here;
  }
  if (last !== null) area += `L${last} 39Z`;
  const peak = points.some(each => each[field] !== null) ? text(top < 1e-8 ? 0 : top) : "–";
  root.setAttribute("aria-label", `the last five minutes, at most ${peak}`);
  root.replaceChildren(draw("title", {}, `the last five minutes; at most ${peak}`),
    draw("line", {x1: 0, x2: span, y1: 39, y2: 39, class: "base"}), draw("path", {d: area, class: "area"}),
    draw("path", {d: path, class: "curve"}),
    ...falls.map(each => draw("line", {x1: x(each.at), x2: x(each.at), y1: 0, y2: 39, class: "fall"})));
}
function strip(now) {
  const root = at("strip"), width = Math.max(280, root.clientWidth), lead = 52, room = width - lead - 10;
  const x = when => lead + room * (span - (now - when)) / span;
  root.setAttribute("viewBox", `0 0 ${width} 92`);
  const rows = order.flatMap((each, index) => [draw("text", {x: 0, y: 16 + 18 * index}, each),
    draw("line", {x1: lead, x2: width - 10, y1: 12 + 18 * index, y2: 12 + 18 * index})]);
  const ticks = [5, 4, 3, 2, 1, 0].map(minutes => draw("text", {x: x(now - 60 * minutes), y: 88, "text-anchor":
    minutes ? "middle" : "end"}, minutes ? `−${minutes} min` : "now"));
  const marks = events.filter(each => order.includes(each.category) && each.at > now - span).map(each => {
    const mark = shape(each.tone, x(Math.min(each.at, now)), 12 + 18 * order.indexOf(each.category));
    mark.append(draw("title", {}, `${clock(each.at)} ${each.text}`));
    return mark;
  });
  root.replaceChildren(...rows, ...ticks, ...marks);
}
function shape(tone, x, y) {
  if (tone === "bad") return draw("path", {d: `M${x} ${y - 6}l6 11h-12z`, class: tone});
  if (tone === "warn") return draw("path", {d: `M${x} ${y - 6}l5 6l-5 6l-5 -6z`, class: tone});
  if (tone === "good") return draw("circle", {cx: x, cy: y, r: 4.5, class: tone});
  return draw("rect", {x: x - 4, y: y - 4, width: 8, height: 8, class: "calm"});
}

// ---- what happened

function item(event) {
  const told = event.member ? make("button", {type: "button", className: "who", title: `show ${event.member}`},
    event.text) : event.text;
  const made = entry(event, event.tone, `${clock(event.at)} · ${labels[event.category]}`, told);
  if (event.member) told.addEventListener("click", () => choose(event.member));
  if (event.detail) made.append(make("details", {}, make("summary", {}, "more"), make("pre", {}, event.detail)));
  return made;
}
function showEvents(news) { showNews(news.filter(each => !hidden.has(each.category)).map(item), kept); }
function showAllEvents() {
  at("events").replaceChildren();
  showEvents(events);
}
for (const box of document.querySelectorAll("#filters input")) {
  box.checked = !hidden.has(box.value);
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(box.value); else hidden.add(box.value);
    showAllEvents();
  });
}

// ---- from the server

function isRun(other) {
  if (run === other) return;
  if (run !== null) { points = []; events = []; graph = snapshot = null; showAllEvents(); }
  run = other;
}
function takeSnapshot(value) {
  snapshot = value;
  showStatus();
  if (value) { showNumbers(); showTables(); if (chosen !== null) panel.show(); }
}
function takeGraph(value) { graph = value; showGraph(); }
function takePoints({points: more}) {
  const last = points.length ? points[points.length - 1].at : 0;
  points = [...points, ...more.filter(each => each.at > last)].slice(-span);
  showCurves();
}
function takeEvents(more) {
  const last = events.length ? events[events.length - 1].number : 0;
  const news = more.filter(each => each.number > last);
  events = [...events, ...news].slice(-kept);
  showEvents(news);
}
narrow.addEventListener("change", showGraph);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; showGraph(); showCurves(); } });
const known = first();
isRun(known.run);
takeEvents(known.events);
takeSnapshot(known.snapshot);
takeGraph(known.graph);
takePoints(known.series);
follow(path + "/events", {hello: ({run}) => isRun(run), graph: takeGraph, snapshot: takeSnapshot, series: takePoints,
  events: takeEvents}, showStatus);
