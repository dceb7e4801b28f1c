"""The page itself: one document without anything from elsewhere, kept up to date by ``/events``."""

from __future__ import annotations

import json

from .snapshots import Snapshot

__all__ = ["document"]

FIRST = "@first@"

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #667085; --line: #e3e6ea;
  --good: #1a8f55; --warn: #b7791f; --bad: #c8323c; --calm: #2f6fde; --idle: #98a2b3; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --ink: #e6e9ee; --soft: #98a2b3;
  --line: #272d36; --good: #3fbf7f; --warn: #e0a53d; --bad: #f0626b; --calm: #6ea1ff; --idle: #667085; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
main, header { max-width: 1500px; margin: 0 auto; padding: 0 20px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 12px; padding-top: 18px; }
h1 { font-size: 20px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 12px; text-transform: uppercase; letter-spacing: .06em; color: var(--soft); margin: 0 0 8px; }
.pill { border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600; color: #fff;
  background: var(--idle); }
.pill.running { background: var(--good); } .pill.gathering, .pill.resuming { background: var(--calm); }
.pill.stopping, .pill.ending { background: var(--warn); }
@media (prefers-color-scheme: dark) { .pill { color: #0f1216; } }
#link { margin-left: auto; font-size: 12px; color: var(--soft); }
#link.lost { color: var(--bad); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)); gap: 10px; margin: 14px 0; }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 10px 14px; } .tile b { display: block; font-size: 22px; line-height: 1.2; font-weight: 650; }
.tile span { color: var(--soft); font-size: 12px; }
.columns { display: grid; grid-template-columns: minmax(0, 1fr) minmax(300px, 400px); gap: 12px; align-items: start; }
.columns > section { position: sticky; top: 12px; }
@media (max-width: 900px) { .columns { display: block; } .columns > section { position: static; } }
.card { padding: 14px; margin-bottom: 12px; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-size: 12px; font-weight: 600; color: var(--soft); padding: 0 12px 6px 0; }
td { border-top: 1px solid var(--line); padding: 5px 12px 5px 0; vertical-align: top; white-space: nowrap; }
td.wide { white-space: normal; width: 100%; min-width: 130px; } td.devices { white-space: normal; min-width: 110px; }
td small, td.devices, .soft { color: var(--soft); font-size: 12px; }
.dot { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 6px; background: var(--idle); }
.dot.active { background: var(--good); } .dot.waiting { background: var(--calm); }
.dot.draining { background: var(--warn); }
.chip { display: inline-block; white-space: nowrap; min-width: 24px; padding: 0 5px; margin: 0 3px 3px 0;
  border-radius: 5px; text-align: center; font-size: 12px; border: 1px solid var(--idle); color: var(--soft); }
.chip.running { border-color: var(--good); color: var(--good); }
.chip.succeeded { border-color: var(--calm); color: var(--calm); }
.chip.stopping { border-color: var(--warn); color: var(--warn); border-style: dashed; }
.chip.idle { border-style: dotted; }
.chip i { color: var(--warn); font-style: normal; font-weight: 600; }
.legend { color: var(--soft); font-size: 12px; margin-top: 10px; }
#events { list-style: none; margin: 0; padding: 0; max-height: 70vh; overflow-y: auto; }
#events li { position: relative; padding: 0 0 10px 18px; border-left: 2px solid var(--line); margin-left: 5px;
  overflow-wrap: anywhere; }
#events li::before { content: ""; position: absolute; left: -6px; top: 6px; width: 10px; height: 10px;
  border-radius: 50%; background: var(--idle); border: 2px solid var(--card); }
#events li.bad::before { background: var(--bad); } #events li.warn::before { background: var(--warn); }
#events li.good::before { background: var(--good); } #events li.calm::before { background: var(--calm); }
#events time { display: block; color: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.none { color: var(--soft); }
#worlds { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 6px 16px; }
#worlds b, #worlds small { display: block; overflow-wrap: anywhere; } #worlds b { font-weight: 500; }
#worlds small { color: var(--soft); font-size: 12px; }
"""

SCRIPT = """
"use strict";
const tones = {"worker failed": "bad", "agent lost": "bad", "giving up": "bad", "killed": "bad", "restart": "warn",
  "waiting": "warn", "draining": "warn", "interrupted": "warn", "generation": "good", "agent joined": "calm",
  "takeover": "warn",  "drained": "calm", "scaled": "calm"};
const kept = 200, events = [];
let seen = 0, job = null;
const at = id => document.getElementById(id);
function make(tag, settings, ...children) {
  const made = Object.assign(document.createElement(tag), settings);
  made.append(...children);
  return made;
}
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
const first = JSON.parse(at("first").textContent);
if (first) { showStatus(first.status); showEvents(first.events); }
const source = new EventSource("events" + location.search);
source.addEventListener("status", message => showStatus(JSON.parse(message.data)));
source.addEventListener("events", message => showEvents(JSON.parse(message.data)));
source.onopen = () => { at("link").className = ""; at("link").textContent = "live"; };
source.onerror = () => {
  at("link").className = "lost";
  at("link").textContent = "not connected: the job has ended, or another agent coordinates it now";
};
"""

DOCUMENT = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>multiworld</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<header>
<h1 id="job">multiworld</h1><span id="phase" class="pill"></span><span id="policy" class="soft"></span>
<span id="link">connecting</span>
</header>
<main>
<div id="tiles" class="tiles"></div>
<div class="columns">
<div>
<section class="card">
<h2>Agents and workers</h2>
<div class="scroll"><table>
<thead><tr><th>Agent</th><th>State</th><th>Ranks</th><th>Worlds</th><th>Restarts</th><th>Devices</th></tr></thead>
<tbody id="agents"></tbody>
</table></div>
<div class="legend"><span class="chip running">0</span>running <span class="chip stopping">0</span>stopping
<span class="chip idle">0</span>not started <span class="chip succeeded">0</span>ended well
<span class="chip running">0<i> ↻2</i></span>started again twice</div>
</section>
<section class="card">
<h2>Worlds</h2>
<div id="worlds"></div>
</section>
</div>
<section class="card"><h2>Events</h2><ol id="events"></ol></section>
</div>
</main>
<script type="application/json" id="first">{FIRST}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def document(snapshot: Snapshot | None) -> str:
    """Return the page as it is now."""
    first = None
    if snapshot is not None:
        first = {"status": snapshot.status, "events": snapshot.events}
    data = json.dumps(first, separators=(",", ":")).replace("<", "\\u003c")  # no name of a world ends the element
    return DOCUMENT.replace(FIRST, data)
