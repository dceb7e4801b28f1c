"""The page itself: one document without anything from elsewhere, which runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .script import SCRIPT
from .stories import CATEGORIES
from .style import STYLE

__all__ = ["POLICY", "document"]


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy: neither inline handlers nor styles, and nothing from elsewhere."""

FIRST = "@first@"
STAGES = ("Stage", "#Open", "#Bounds", "#Rate", "#Busy", "#Service", "#Queue", "#Version", "")
REPLICAS = (
    *("Replica", "State", "#Pid", "Host", "#Version", "#Queue", "#In hand", "#Window", "#Rate", "#Service"),
    *("#Busy", "#Done", "#Failed", "#Held", "#CPU", "#Memory", "#Age"),
)
HOSTS = ("Host", "Address", "State", "#Members", "#Capacity")
GATEWAYS = (
    *("Gateway", "State", "#Pid", "Host", "#Open", "#Waiting", "#Rate", "#p50", "#p95", "#p99"),
    *("#CPU", "#Memory"),
)


def _tile(curve: str, number: str, says: str, label: str = "") -> str:
    label_id = f' id="{label}"' if label else ""
    return (
        f'<div class="tile"><b id="{number}">–</b><span{label_id}>{says}</span>'
        f'<svg id="{curve}" viewBox="0 0 300 40" preserveAspectRatio="none" role="img"></svg></div>'
    )


def _table(body: str, columns: tuple[str, ...], label: str) -> str:
    heads = "".join(f'<th class="n">{each[1:]}</th>' if each[:1] == "#" else f"<th>{each}</th>" for each in columns)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{heads}</tr></thead>'
        f'<tbody id="{body}"></tbody></table></div>'
    )


def _legend(state: str, says: str) -> str:
    line = f'<svg viewBox="0 0 30 8" aria-hidden="true"><path d="M0 4H30" class="world {state}"/></svg>'
    return f"<span>{line}{says}</span>"


FILTERS = "".join(f'<label><input type="checkbox" value="{each}">{each}</label>' for each in CATEGORIES)

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
<h1 id="name">multiworld</h1><span id="phase" class="pill"></span><span id="epoch" class="soft"></span>
<span id="link" role="status">connecting</span>
</header>
<main>
<div id="banner" role="status" aria-live="polite"></div>
<div class="tiles">
{_tile("c-rate", "n-rate", "answers", "n-answered")}
{_tile("c-p50", "n-p50", "p50 of the last answers")}
{_tile("c-p95", "n-p95", "p95")}
{_tile("c-p99", "n-p99", "p99")}
{_tile("c-open", "n-open", "open", "n-waiting")}
{_tile("c-bad", "n-bad", "failed, refused", "n-failed")}
</div>
<section class="card">
<h2>Graph</h2>
<div class="scroll" id="graph"></div>
<div class="legend">{_legend("open", "world open: requests take it")}{_legend("connected", "formed, not in use")}
{_legend("forming", "forming")}{_legend("broken", "broken")}<span>● serves</span><span>◔ comes up</span>
<span>◑ goes, or is awaited</span><span>✕ gone</span></div>
</section>
<section class="card">
<h2>The last five minutes</h2>
<svg id="strip" role="img" aria-label="faults, replicas, scalings and updates of the last five minutes"></svg>
</section>
<div class="columns">
<div>
<section class="card"><h2>Stages</h2>{_table("stages", STAGES, "stages")}</section>
<section class="card"><h2>Replicas</h2>{_table("replicas", REPLICAS, "replicas")}</section>
<section class="card"><h2>Gateways</h2>{_table("gateways", GATEWAYS, "gateways")}</section>
<section class="card"><h2>Hosts</h2>{_table("hosts", HOSTS, "hosts")}</section>
</div>
<section class="card">
<h2>What happened</h2>
<div id="filters" role="group" aria-label="kinds of events">{FILTERS}</div>
<ol id="events" tabindex="0" aria-label="events, the newest first"></ol>
</section>
</div>
</main>
<script type="application/json" id="first">{FIRST}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def document(data: Mapping[str, Any]) -> str:
    """Return the page as it is now; ``data``: what ``Recorder.data`` returns."""
    first = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no name or traceback ends the element
    return DOCUMENT.replace(FIRST, first)
