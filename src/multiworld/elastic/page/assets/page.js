const tones = {"worker failed": "bad", "agent lost": "bad", "giving up": "bad", "killed": "bad", "restart": "warn",
  "waiting": "warn", "draining": "warn", "interrupted": "warn", "generation": "good", "agent joined": "calm",
  "takeover": "warn",  "drained": "calm", "scaled": "calm"};
const kept = 200, events = [];
let seen = 0, job = null;

function ranges(numbers) {
  const parts = [];
  for (const number of numbers.filter(each => each !== null).sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && number === last[1] + 1) last[1] = number; else parts.push([number, number]);
  }
  return parts.map(([from, to]) => from === to ? from : from + "–" + to).join(", ") || "–";
}
function tile(value, label) { return make("div", {className: "tile"}, make("b", {}, value), make("span", {}, label)); }
function chip(worker) {
  const worlds = worker.worlds.length ? "in " + worker.worlds.join(", ") : "in no world";
  const rank = worker.rank === null ? "–" : String(worker.rank);
  const restarts = worker.restarts === 1 ? "once" : worker.restarts + " times";
  const title = `rank ${rank} on ${worker.host}: ${worker.state}, ${worlds}; started again ${restarts}`;
  const made = make("span", {className: "chip " + worker.state, title}, rank);
  if (worker.restarts) made.append(make("i", {}, " ↻" + worker.restarts));
  return made;
}
function agentRow(agent, workers) {
  const name = make("td", {}, make("b", {}, `${agent.index} `), agent.hostname, make("br", {}),
    make("small", {}, `${agent.host}:${agent.port}`));
  const state = make("td", {}, make("span", {className: "dot " + agent.state}), agent.state);
  if (agent.coordinates) state.append(make("br", {}), make("small", {}, "coordinates the job"));
  const chips = workers.length ? workers.map(chip) : [make("span", {className: "none"}, "no ranks")];
  return make("tr", {}, name, state, make("td", {className: "wide"}, ...chips),
    make("td", {}, String(agent.worlds.length)), make("td", {}, String(agent.restarts)),
    make("td", {className: "devices"}, agent.devices));
}
function showStatus(status) {
  if (job !== null && status.job !== job) { seen = 0; events.length = 0; }  // it is at this address now
  job = status.job;
  document.title = `${status.job} · multiworld`;
  at("job").textContent = status.job;
  at("phase").textContent = status.phase;
  at("phase").className = "pill " + status.phase;
  at("policy").textContent = `restart policy ${status.policy}`;
  const nodes = status.nodes, running = status.workers.filter(each => each.state === "running").length;
  const scaled = nodes.wanted === nodes.max ? "" : `, scaled to ${nodes.wanted}`;
  const bounds = `${nodes.min}:${nodes.max}${scaled}`;
  at("tiles").replaceChildren(tile(status.generation, "generation"), tile(nodes.active, `hosts with ranks (${bounds})`),
    tile(`${running} of ${status.workers.length}`, "workers running"), tile(status.worlds.length, "worlds"),
    tile(status.restarts, "restarts"));
  const byAgent = new Map(status.agents.map(agent => [agent.id, []]));
  for (const worker of status.workers) if (byAgent.has(worker.agent)) byAgent.get(worker.agent).push(worker);
  at("agents").replaceChildren(...status.agents.map(agent => agentRow(agent, byAgent.get(agent.id))));
  at("worlds").replaceChildren(...status.worlds.map(world =>
    make("div", {}, make("b", {}, world.name), make("small", {}, "ranks " + ranges(world.ranks)))));
  if (!status.worlds.length) at("worlds").append(make("span", {className: "none"}, "No world has members now."));
}
function showEvents(more) {
  const news = more.filter(event => event.number > seen);
  if (!news.length) return;
  events.push(...news);
  seen = news[news.length - 1].number;
  events.splice(0, events.length - kept);
  at("events").replaceChildren(...events.slice().reverse().map(event => {
    const time = new Date(event.at * 1000);
    const about = `${event.kind}, generation ${event.generation}, term ${event.term}`;
    const clock = time.toLocaleTimeString([], {hour12: false}) + "." + String(time.getMilliseconds()).padStart(3, "0");
    return make("li", {className: tones[event.kind] || "", title: about},
      make("time", {dateTime: time.toISOString()}, clock), event.text);
  }));
}
const known = first();
if (known) { showStatus(known.status); showEvents(known.events); }
const source = new EventSource("events" + location.search);
source.addEventListener("status", message => showStatus(JSON.parse(message.data)));
source.addEventListener("events", message => showEvents(JSON.parse(message.data)));
source.onopen = () => { at("link").className = ""; at("link").textContent = "live"; };
source.onerror = () => {
  at("link").className = "lost";
  at("link").textContent = "not connected: the job has ended, or another agent coordinates it now";
};
