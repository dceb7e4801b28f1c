function times(number) { return number === 1 ? "once" : count(number) + " times"; }
function linked(text) {  // addresses in texts, such as those of serving's pages, can be followed
  return text.split(/(https?:\/\/[^\s<>"'()]+)/).map((part, index) =>
    index % 2 ? make("a", {href: part, rel: "noreferrer"}, part) : part);
}
function banner(look, text) {
  name(at("banner"), look);
  put(at("banner"), text);
  name(at("main"), look === "lost" ? "lost" : "");
}
function entry(event, tone, label, ...told) {  // in the list of events
  const when = make("time", {dateTime: new Date(event.at * 1000).toISOString()}, label);
  return make("li", {className: tone}, when, ...told);
}
function showNews(entries, most) {  // above what was there before, which keeps its focus and what is selected
  at("events").prepend(...entries.reverse());
  while (at("events").children.length > most) at("events").lastChild.remove();
}

// ---- the connection to the server

let isLive = true;  // until it is known that there is none
let lostAt = null;  // what is shown is of that time
function follow(path, takers, showBanner) {
  const source = new EventSource(path + location.search);
  const linkIs = (live, text) => {
    isLive = live;
    lostAt = live ? null : lostAt ?? Date.now() / 1000;
    name(at("link"), live ? "" : "lost");
    put(at("link"), text);
    showBanner();
  };
  for (const [kind, take] of Object.entries(takers)) source.addEventListener(kind, ({data}) => take(JSON.parse(data)));
  source.onopen = () => linkIs(true, "live");
  source.onerror = () => {
    linkIs(false, "not connected");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 1000, path, takers, showBanner);  // it was refused
  };
}

// ---- one process: its facts, its last failure, its last lines

const askAgain = 2000;
let chosen = null, asking = 0, opener = null;
let panel = null;  // what each page says of it: show() and marks(), linesOf(id), openerOf(id), copied(id)
function choose(id) {
  const before = chosen;
  if (before === null) opener = document.activeElement;
  chosen = id;
  asking += 1;
  at("detail").hidden = id === null;
  panel.marks();
  if (id === null) {
    const back = opener !== document.body && opener.isConnected ? opener : panel.openerOf(before);
    if (back) back.focus({preventScroll: true});
    return;
  }
  put(at("lines"), "…");
  panel.show();
  at("detail").focus({preventScroll: true});
  at("detail").scrollIntoView({block: "nearest"});
  askLines(asking);
}
function showFacts(pairs) {
  const list = at("facts");
  at("detail").querySelector(".copy").hidden = !panel.copied(chosen);
  while (list.children.length > pairs.length) list.lastChild.remove();
  pairs.forEach(([term, value], index) => {
    if (!list.children[index]) list.append(make("div", {}, make("dt", {}), make("dd", {})));
    put(list.children[index].children[0], term);
    put(list.children[index].children[1], String(value ?? "–"));
  });
}
function showTrouble(line, evidence) {
  const box = at("trouble");
  box.hidden = !line;
  put(box.children[0], line);
  box.children[1].hidden = !evidence;
  put(box.children[1], evidence);
}
async function askLines(number) {
  if (number !== asking || chosen === null) return;
  const pane = at("lines");
  let lines = null;
  try {
    const answer = await fetch(panel.linesOf(chosen));
    lines = answer.ok ? (await answer.json()).lines : [await answer.text()];
  } catch {  // what was read before stays
    if (pane.textContent === "…") lines = ["The lines cannot be read: the page is not connected."];
  }
  if (number !== asking) return;
  const text = lines && (lines.join("\n") || "It has written nothing.");
  if (text && pane.textContent !== text) {
    const isAtEnd = pane.scrollTop + pane.clientHeight > pane.scrollHeight - 20;
    pane.replaceChildren(...linked(text));
    if (isAtEnd) pane.scrollTop = pane.scrollHeight;
  }
  setTimeout(askLines, askAgain, number);
}
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make("textarea", {value: text});  // where the page comes over plain HTTP from another host
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
at("detail").querySelector(".close").addEventListener("click", () => choose(null));
at("detail").querySelector(".copy").addEventListener("click", async ({target}) => {
  const label = target.dataset.label ??= target.textContent;
  await copy(panel.copied(chosen));
  put(target, "copied");
  setTimeout(() => put(target, label), 1500);
});
document.addEventListener("keydown", event => { if (event.key === "Escape" && chosen !== null) choose(null); });
