const tones = {"worker failed": "bad", "agent lost": "bad", "giving up": "bad", "killed": "bad", "restart": "warn",
  "waiting": "warn", "draining": "warn", "interrupted": "warn", "generation": "good", "agent joined": "calm",
  "takeover": "warn", "drained": "calm", "scaled": "calm", "training changed": "warn", "training recovered": "good"};
const columns = ["Agent", "State", "Ranks", "Worlds", "Restarts", "Devices"];
const kept = 200, recent = 60;
let seen = 0, job = null, now = null, failures = [];

function ranges(numbers) {
  const parts = [];
  for (const number of numbers.filter(each => each !== null).sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && number === last[1] + 1) last[1] = number; else parts.push([number, number]);
  }
  return parts.map(([from, to]) => from === to ? from : from + "–" + to).join(", ") || "–";
}
function since(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return `${new Date(seconds * 1000).toLocaleString([], {hour12: false})} (${age(Math.max(0, Date.now() / 1000 - seconds))})`;
}
function tile(value, label) { return make("div", {className: "tile"}, make("b", {}, value), make("span", {}, label)); }

// ---- hosts and ranks

function chip(worker) {
  const worlds = worker.worlds.length ? "in " + worker.worlds.join(", ") : "in no world";
  const rank = worker.rank === null ? "–" : String(worker.rank);
  const process = worker.pid === null ? "" : `, process ${worker.pid}`;
  const title = `rank ${rank} on ${worker.host}: ${worker.state}${process}, ${worlds}; started again ` +
    `${times(worker.restarts)}, ${worker.restarts_left} restarts left`;
  const made = make("button", {type: "button", className: "chip " + worker.state, title}, rank);
  made.setAttribute("aria-label", title);
  made.setAttribute("aria-expanded", String(worker.rank !== null && worker.rank === chosen));
  made.dataset.rank = rank;
  if (worker.restarts) made.append(make("i", {}, " ↻" + worker.restarts));
  if (worker.rank !== null) made.addEventListener("click", () => choose(worker.rank === chosen ? null : worker.rank));
  return made;
}
function agentRow(agent, workers) {
  const host = make("td", {}, make("b", {}, `${agent.index} `), agent.hostname, make("br", {}),
    make("small", {}, ` ${agent.host}:${agent.port}, pid ${agent.pid}`));
  const state = make("td", {}, make("span", {className: "dot " + agent.state}), agent.state);
  if (agent.coordinates) state.append(make("br", {}), make("small", {}, " coordinates the job"));
  const chips = workers.length ? workers.map(chip) : [make("span", {className: "none"}, "no ranks")];
  const row = make("tr", {}, host, state, make("td", {className: "ranks"}, ...chips),
    make("td", {}, String(agent.worlds.length)), make("td", {}, String(agent.restarts)),
    make("td", {className: "devices"}, agent.devices || "–"));
  columns.forEach((label, index) => { row.cells[index].dataset.label = label; });
  return row;
}
function showAgents() {
  const focused = document.activeElement && document.activeElement.dataset.rank;
  const byAgent = new Map(now.agents.map(agent => [agent.id, []]));
  for (const worker of now.workers) if (byAgent.has(worker.agent)) byAgent.get(worker.agent).push(worker);
  at("agents").replaceChildren(...now.agents.map(agent => agentRow(agent, byAgent.get(agent.id))));
  if (focused) chipOf(focused)?.focus({preventScroll: true});
}
function chipOf(rank) { return document.querySelector(`#agents [data-rank="${rank}"]`); }

// ---- one rank

panel = {
  show() {
    const worker = workerOf(chosen), failure = failures.filter(each => each.rank === chosen).pop();
    put(at("who"), worker ? `Rank ${chosen}` : `Rank ${chosen} is gone`);
    showFacts(!worker ? [] : [["State", worker.state], ["Host", worker.host], ["Pid", worker.pid],
      ["Since", since(worker.since)], ["Restarts", worker.restarts], ["Restarts left", worker.restarts_left],
      ["Worlds", worker.worlds.join(", ") || "–"]]);
    showTrouble(failure && `Last failure, at ${clock(failure.at)}: ${failure.text}`, failure && evidence(failure));
  },
  marks: showAgents,
  linesOf(rank) {
    const query = new URLSearchParams(location.search);
    query.set("rank", rank);
    return "logs?" + query;
  },
  openerOf: chipOf,
  copied: rank => String(workerOf(rank)?.pid ?? ""),
};
put(at("detail").querySelector(".copy"), "copy pid");
function workerOf(rank) { return now.workers.find(each => each.rank === rank); }

// ---- failures

function evidence(failure) { return failure.traceback || failure.last_lines.join("\n"); }
function showFailures(all) {
  failures = all;
  const open = new Set([...document.querySelectorAll("#failures details[open]")].map(each => each.dataset.id));
  at("failed").hidden = !all.length;
  at("failures").replaceChildren(...all.slice().reverse().map(failure => {
    const wrote = evidence(failure), id = `${failure.at} ${failure.rank}`;
    const made = make("details", {open: open.has(id)}, make("summary", {}, `${clock(failure.at)} rank ${failure.rank} ` +
      `on ${failure.hostname} (pid ${failure.pid}): `, make("b", {}, failure.text)),
      wrote ? make("pre", {tabIndex: 0}, wrote) : make("span", {className: "none"}, "It wrote nothing."));
    made.dataset.id = id;
    return made;
  }));
  if (chosen !== null) panel.show();
  showBanner();
}

// ---- trainings

const phases = ["detect", "agree", "plan", "form", "move", "transfer", "redo"], shownFaults = 8, shownPipelines = 32;
const svgSpace = make("div", {innerHTML: "<svg></svg>"}).firstChild.namespaceURI;
let trainings = [];
function draw(tag, attributes, ...children) {
  const made = document.createElementNS(svgSpace, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size && size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
function took(seconds) { return seconds < 1 ? Math.round(seconds * 1000) + " ms" : Number(seconds.toPrecision(3)) + " s"; }
function ticks(low, high) {
  if (!(high > low)) [low, high] = [low - Math.max(Math.abs(low) / 2, 0.5), high + Math.max(Math.abs(high) / 2, 0.5)];
  const rough = (high - low) / 3, power = 10 ** Math.floor(Math.log10(rough));
  const pace = [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= rough * 0.999);
  const made = [];
  for (let at = Math.floor(low / pace + 1e-9); at <= Math.ceil(high / pace - 1e-9); at += 1) made.push(at * pace);
  return made;
}
function mark(fault, pipelines, x, top, bottom) {
  const sign = {failure: `M${x - 5} ${top - 10}h10l-5 9z`, join: `M${x - 5} ${top - 1}h10l-5 -9z`}[fault.kind] ||
    `M${x} ${top - 10}l5 5l-5 5l-5 -5z`;
  return draw("g", {class: "mark " + fault.kind}, draw("title", {}, told(fault, pipelines)),
    draw("line", {x1: x, x2: x, y1: top, y2: bottom}), draw("path", {d: sign}));
}
function plural(number, noun) { return number === 1 ? noun : noun + (/(s|ch)$/.test(noun) ? "es" : "s"); }
function members(replicas, pipelines) { return plural(replicas, pipelines ? "process" : "replica"); }
function told(fault, pipelines) {
  const after = fault.took_s === null ? "no step was committed since" : `committed again after ${took(fault.took_s)}`;
  return `step ${fault.step}: ${fault.text}; ${fault.replicas} ${members(fault.replicas, pipelines)}, ${after}`;
}
function curve(training, width) {
  const left = 48, right = width - 10, top = 16, bottom = 150, points = training.curve;
  const label = `${training.value_name || "loss"} of ${training.name} over its steps, with ${training.faults.length} ` +
    "changes of its members";
  const root = draw("svg", {viewBox: `0 0 ${width} 176`, width, height: 176, role: "img", "aria-label": label});
  const first = points[0][0], last = Math.max(points[points.length - 1][0], training.step, first + 1);
  const values = points.map(point => point[1]), scale = ticks(Math.min(...values), Math.max(...values));
  const low = scale[0], high = scale[scale.length - 1];
  const xOf = step => left + (right - left) * Math.min(1, Math.max(0, (step - first) / (last - first)));
  const yOf = value => bottom - (bottom - top) * (value - low) / (high - low);
  for (const tick of scale) {
    root.append(draw("line", {class: "grid", x1: left, x2: right, y1: yOf(tick), y2: yOf(tick)}),
      draw("text", {x: left - 6, y: yOf(tick) + 4, "text-anchor": "end"}, short(tick)));
  }
  root.append(...training.faults.filter(fault => fault.step >= first).map(fault =>
    mark(fault, training.pipelines, xOf(fault.step), top, bottom)));
  root.append(draw("polyline", {class: "curve",
    points: points.map(([step, value]) => `${xOf(step).toFixed(1)},${yOf(value).toFixed(1)}`).join(" ")}));
  root.append(draw("text", {x: left, y: 168}, `step ${count(first)}`),
    draw("text", {x: right, y: 168, "text-anchor": "end"}, count(last)));
  return root;
}
function bar(fault) {  // how long each phase of a recovery took
  const known = Object.entries(fault.phases).filter(([phase]) => phase !== "plan"), all = known.reduce((sum, [, seconds]) => sum + seconds, 0);
  const root = draw("svg", {class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true"});
  let x = 0;
  for (const [phase, seconds] of known) {
    const width = all ? 100 * seconds / all : 0;
    root.append(draw("rect", {class: phases.includes(phase) ? phase : "other", x, y: 0, width, height: 8}));
    x += width;
  }
  return root;
}
function faultRow(fault, pipelines) {
  const row = make("li", {className: fault.kind}, make("time", {dateTime: new Date(fault.at * 1000).toISOString()},
    clock(fault.at)), ` step ${count(fault.step)}: ${fault.text}`, make("br", {}));
  const parts = Object.entries(fault.phases).map(([phase, seconds]) => `${phase} ${took(seconds)}`).join(", ");
  row.append(make("small", {}, fault.took_s === null ? "no step was committed since" :
    `committed again after ${took(fault.took_s)}${parts ? ": " + parts : ""}; ` +
    `${fault.replicas} ${members(fault.replicas, pipelines)}`));
  if (parts) row.append(bar(fault));
  return row;
}
function pipelineRank(pipeline, stage) {  // below 0: it was lost, and the same stage of other pipelines does its work
  const rank = pipeline.ranks[stage], computed = pipeline.computed[stage] ?? pipeline.num_micro_batches;
  if (rank < 0) return "others (lost)";
  return computed === pipeline.num_micro_batches ? `rank ${rank}` : `rank ${rank}, ${count(computed)} micro-batches`;
}
function stageBox(pipeline, stage, numLayers, xOf, y, height, hue) {
  const first = pipeline.starts[stage], end = pipeline.starts[stage + 1] ?? numLayers, who = pipelineRank(pipeline, stage);
  const layers = end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`, busy = pipeline.busy[stage];
  const idle = busy === undefined || pipeline.ranks[stage] < 0 ? "" : `${Math.round(100 * (1 - busy))} % bubbles`;
  const x = xOf(first), width = Math.max(1, xOf(end) - x - 3), tall = height - (busy === undefined ? 0 : 6);
  const box = draw("g", {class: "stage hue" + hue}, draw("title", {}, `${who}: ${layers}${idle && ", " + idle}`),
    draw("rect", {class: "holds", x, y, width, height, rx: 4}));
  if (idle) {
    box.append(draw("rect", {class: "idle", x: x + 4, y: y + tall - 3, width: Math.max(0, width - 8), height: 5, rx: 2}),
      draw("rect", {class: "busy", x: x + 4, y: y + tall - 3, width: Math.max(0, (width - 8) * busy), height: 5, rx: 2}));
  }
  [[who, "who"], [layers, ""], [idle, ""]].forEach(([says, kind], line) => {
    if (says && 6.4 * says.length < width - 6) box.append(draw("text", {class: kind, x: x + 6, y: y + 14 + 14 * line}, says));
  });
  return box;
}
function pipelinesBlock(formed, width) {  // who has which layers: a row for each pipeline
  const left = 104, right = width - 8, gap = 6, shown = formed.pipelines.slice(0, shownPipelines);
  const height = 58, xOf = layer => left + (right - left) * layer / formed.num_layers;
  const about = formed.pipelines.map((each, at) => `pipeline ${at}: ranks ${each.ranks.map(rank => rank < 0 ? "(lost)" : rank).join(", ")}`).join("; ");
  const root = draw("svg", {class: "pipelines", viewBox: `0 0 ${width} ${shown.length * (height + gap)}`, width,
    height: shown.length * (height + gap), role: "img", "aria-label": `who has which layers: ${about}`});
  shown.forEach((pipeline, at) => {
    const y = at * (height + gap), batches = pipeline.num_micro_batches;
    root.append(draw("text", {class: "who", x: 0, y: y + 20}, `pipeline ${at}`),
      draw("text", {x: 0, y: y + 36}, `${count(batches)} ${plural(batches, "micro-batch")}`),
      ...pipeline.ranks.map((_, stage) => stageBox(pipeline, stage, formed.num_layers, xOf, y, height, at % 6)));
  });
  const parts = [`since step ${count(formed.step)}`, `${count(formed.num_layers)} layers`];
  if (formed.policy) parts.push(formed.policy);
  if (formed.iteration_s) parts.push(`${took(formed.iteration_s)} a step predicted`);
  if (formed.pipelines.length > shown.length) parts.push(`${formed.pipelines.length - shown.length} more pipelines`);
  return make("div", {}, root, make("div", {className: "soft"}, parts.join(" · ")));
}
function trainingBlock(training, width) {
  const of = training.total === null ? "" : ` of ${count(training.total)}`;
  const state = training.ended ? `ended${training.reason ? ": " + training.reason : ""}` :
    training.left_s === null ? "" : `${age(training.left_s)} left`;
  const value = training.is_finite ? short(training.value) : "not finite";
  const failures = training.num_faults.failure || 0;
  const made = make("div", {className: "training"}, make("h3", {}, training.name, make("span", {className: "soft"},
    ` step ${count(training.step + 1)}${of}, generation ${training.generation}${state ? ", " + state : ""}`)),
  make("div", {className: "tiles"}, tile(value, training.value_name || "no value is recorded"),
    tile(short(training.samples_per_s), "samples/s"), tile(training.replicas, members(training.replicas, training.pipelines)),
    ...(training.pipelines ? [tile(training.pipelines.pipelines.length, plural(training.pipelines.pipelines.length,
      "pipeline"))] : []), tile((100 * training.goodput).toFixed(1) + " %", "goodput"), tile(failures, plural(failures, "failure"))));
  if (training.pipelines) made.append(pipelinesBlock(training.pipelines, width));
  if (training.curve.length) made.append(curve(training, width));
  const rows = make("ol", {className: "faults"}, ...training.faults.slice(-shownFaults).reverse().map(fault => faultRow(fault, training.pipelines)));
  rows.setAttribute("aria-label", `what happened to the members of ${training.name}, the newest first`);
  made.append(training.faults.length ? rows : make("span", {className: "none"}, "No member was lost, came or left."));
  return made;
}
function showTrainings(all) {
  trainings = all;
  at("training").hidden = !all.length;
  const width = Math.max(260, at("trainings").clientWidth || 600);
  at("trainings").replaceChildren(...all.map(training => trainingBlock(training, width)));
}
addEventListener("resize", () => showTrainings(trainings));

// ---- remote tensors

const nodeColumns = ["Node", "State", "Commands", "Sent", "Fetched", "Live tensors", "Memory"];
const lineColumns = ["Line", "Waits for", "Times", "Waited", "Longest", "Received"], stale = 5;
let remote = null;
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const unit = ["B", "kB", "MB", "GB", "TB"], power = Math.min(4, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${unit[power]}`;
}
function rowOf(columns, cells) {
  const row = make("tr", {}, ...cells.map(each => each instanceof Node ? each : make("td", {className: "n"}, each)));
  columns.forEach((label, index) => { row.cells[index].dataset.label = label; });
  return row;
}
function nodeRow(node) {
  const came = node.generation >= 0, dot = !came ? "" : node.lost ? "lost" : "active";
  const process = came ? `${node.host}, pid ${node.pid}, generation ${node.generation}` : "";
  const state = make("td", {className: "wide"}, make("span", {className: "dot " + dot}),
    !came ? "awaited" : node.lost ? "lost" : remote.ended ? "ended" : "alive");
  const says = [node.lost, node.num_failures && `${count(node.num_failures)} failed ${plural(node.num_failures, "operation")}`,
    node.num_waits && `the master was too far ahead ${times(node.num_waits)}`].filter(each => each);
  if (says.length) state.append(make("br", {}), make("small", {}, " " + says.join("; ")));
  const commands = make("td", {className: "n"}, count(node.num_commands));
  if (node.num_unconfirmed) commands.append(make("br", {}), make("small", {}, ` ${count(node.num_unconfirmed)} to be confirmed`));
  return rowOf(nodeColumns, [make("td", {className: "wide"}, make("b", {}, String(node.number)), make("br", {}), make("small", {}, " " + process)),
    state, commands, size(node.sent_bytes), size(node.fetched_bytes), count(node.num_tensors), size(node.memory_bytes)]);
}
function showRemote(told) {
  remote = told;
  at("remote").hidden = !told;
  if (!told) return;
  at("remote-nodes").replaceChildren(...told.nodes.map(nodeRow));
  at("remote-waits").hidden = !told.lines.length;
  at("remote-lines").replaceChildren(...told.lines.map(each => rowOf(lineColumns, [
    make("td", {className: "wide"}, each.line), make("td", {}, each.operations), count(each.num_waits),
    took(each.waited_s), took(each.longest_s), size(each.received_bytes)])));
  showRemoteAge();
}
function showRemoteAge() {
  if (!remote) return;
  const old = Date.now() / 1000 - remote.at, more = remote.left_out ? ` ${remote.left_out} nodes more.` : "";
  const heard = remote.ended ? `, which has ended at ${clock(remote.at)}` :
    old > stale ? `, which was heard last ${age(old)} ago` : "";
  put(at("remote-about"), `The master is rank ${remote.rank}${heard}. It waited ${times(remote.syncs)} for a value.${more}`);
}

// ---- the job

function showBanner() {
  if (!isLive) {
    banner("lost", "Not connected: the job has ended, or another agent coordinates it now. What is shown is of " +
      `${clock(lostAt)}.`);
    return;
  }
  if (!now) { banner("warn", "This agent does not coordinate the job."); return; }
  const nodes = now.nodes, running = now.workers.filter(each => each.state === "running").length;
  const last = failures[failures.length - 1], spent = now.workers.filter(each => each.restarts && !each.restarts_left);
  if (now.phase === "gathering") {
    banner("warn", `Waiting for hosts: ${now.agents.length} are there, and ${nodes.min} are needed.`);
  } else if (now.phase === "resuming") {
    banner("warn", "Another coordinator took over; it waits for the agents that it knows of.");
  } else if (now.phase === "stopping") {
    banner("warn", "All workers are being stopped, to be started again together.");
  } else if (now.phase === "ending") { banner("bad", "✕ The job is ending."); } else if (last &&
    Date.now() / 1000 - last.at < recent) {
    banner("bad", `✕ Rank ${last.rank} on ${last.hostname} failed at ${clock(last.at)}: ${last.text}`);
  } else if (spent.length) {
    banner("warn", `One more failure ends the job: no restarts are left for ranks ${ranges(spent.map(each => each.rank))}.`);
  } else if (now.workers.length && running + now.workers.filter(each => each.state === "succeeded").length <
    now.workers.length) {
    banner("warn", `${running} of ${now.workers.length} workers run.`);
  } else { banner("", "All workers run, or have ended well."); }
}
function showStatus(status) {
  if (job !== null && status.job !== job) { seen = 0; at("events").replaceChildren(); }  // it is at this address now
  now = status;
  job = status.job;
  document.title = `${status.job} · multiworld`;
  put(at("name"), status.job);
  put(at("phase"), status.phase);
  name(at("phase"), "pill " + status.phase);
  showSince();
  const nodes = status.nodes, running = status.workers.filter(each => each.state === "running").length;
  const scaled = nodes.wanted === nodes.max ? "" : `, scaled to ${nodes.wanted}`;
  const bounds = `${nodes.min === nodes.max ? nodes.min : `${nodes.min} to ${nodes.max}`}${scaled}`;
  at("tiles").replaceChildren(tile(status.generation, "generation"), tile(nodes.active, `hosts with ranks (${bounds})`),
    tile(`${running} of ${status.workers.length}`, "workers running"), tile(status.worlds.length, "worlds"),
    tile(status.restarts, "restarts"));
  showAgents();
  at("worlds").replaceChildren(...status.worlds.map(world =>
    make("div", {}, make("b", {}, world.name), make("small", {}, "ranks " + ranges(world.ranks)))));
  if (!status.worlds.length) at("worlds").append(make("span", {className: "none"}, "No world has members now."));
  if (chosen !== null) panel.show();
  showBanner();
}
function showSince() {
  if (now) put(at("about"), `${now.began_at ? `since ${since(now.began_at)} · ` : ""}restart policy ${now.policy}`);
}
function showEvents(more) {
  const news = more.filter(event => event.number > seen);
  if (!news.length) return;
  seen = news[news.length - 1].number;
  showNews(news.map(event => {
    const made = entry(event, tones[event.kind] || "", clock(event.at), ...linked(event.text));
    made.title = `${event.kind}, generation ${event.generation}, term ${event.term}`;
    return made;
  }), kept);
}

// ---- from the server

document.addEventListener("keydown", event => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], chips = [...document.querySelectorAll("#agents .chip")];
  const next = step && chips[chips.indexOf(document.activeElement) + step];
  if (next && chips.includes(document.activeElement)) next.focus();
});
at("links").append(...[["status", "status as JSON"], ["metrics", "metrics for Prometheus"]].map(([path, says]) =>
  make("a", {href: path + location.search}, says)));
const known = first();
if (known) { showStatus(known.status); showFailures(known.failures); showEvents(known.events);
  showTrainings(known.trainings); showRemote(known.remote); }
showBanner();
setInterval(() => { showSince(); showBanner(); showRemoteAge(); }, 5000);
follow("events", {status: showStatus, failures: showFailures, events: showEvents, trainings: showTrainings,
  remote: showRemote}, showBanner);
