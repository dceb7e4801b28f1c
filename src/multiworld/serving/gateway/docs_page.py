"""The page at /docs: what the OpenAPI document says, for people, with nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

__all__ = ["page"]

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #667085; --line: #e3e6ea;
  --get: #2f6fde; --post: #1a8f55; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --ink: #e6e9ee; --soft: #98a2b3;
  --line: #272d36; --get: #6ea1ff; --post: #3fbf7f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 900px; padding: 20px; background: var(--back); color: var(--ink);
  font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; } p { margin: 6px 0; } a { color: var(--get); }
.soft, td small { color: var(--soft); }
details, form { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 8px 0; }
summary { padding: 8px 12px; cursor: pointer; overflow-wrap: anywhere; } details > div, form { padding: 4px 14px 12px; }
.method { display: inline-block; width: 48px; font-weight: 700; color: var(--get); } .post { color: var(--post); }
code, pre, textarea { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--back); border: 1px solid var(--line); border-radius: 6px; padding: 8px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td { padding: 2px 14px 2px 0; vertical-align: top; }
textarea { width: 100%; height: 90px; color: inherit; background: var(--back); border: 1px solid var(--line);
  border-radius: 6px; padding: 8px; }
button { font: inherit; padding: 4px 14px; border-radius: 6px; border: 1px solid var(--line); cursor: pointer; }
"""

SCRIPT = """
"use strict";
document.getElementById("try").addEventListener("submit", async event => {
  event.preventDefault();
  const shown = document.getElementById("answer"), body = document.getElementById("body").value;
  shown.textContent = "…";
  try {
    const began = performance.now();
    const answer = await fetch("infer", {method: "POST", body, headers: {"Content-Type": "application/json"}});
    const text = await answer.text();
    shown.textContent = `${answer.status} after ${(performance.now() - began).toFixed(1)} ms\\n${text}`;
  } catch (error) { shown.textContent = String(error); }
});
"""


def page(description: dict[str, Any]) -> str:
    """Return the page for an OpenAPI document."""
    info, paths = description["info"], description["paths"]
    example = json.dumps(next(iter(_json(paths["/infer"]["post"]["requestBody"])["examples"].values()))["value"])
    operations = "".join(
        _operation(path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "parameters"
    )
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary><div><pre>{escape(json.dumps(schema, indent=1))}</pre>"
        "</div></details>"
        for name, schema in description["components"]["schemas"].items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])} · multiworld</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(info["title"])}</h1>
<p>{escape(info["summary"])}, version {escape(info["version"])}. {escape(info["description"])}</p>
<p class="soft">For programs: <a href="openapi.json">openapi.json</a></p>
<form id="try">
<p><b>Try it</b>: <code>POST /infer</code></p>
<textarea id="body" spellcheck="false" aria-label="The body of the request">{escape(example)}</textarea>
<p><button>Send</button></p>
<pre id="answer">no answer yet</pre>
</form>
<h2>Endpoints</h2>
{operations}
<h2>Schemas</h2>
{schemas}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>" if "description" in operation else ""]
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['description'])}</td></tr>"
        for each in operation.get("parameters", ())
    )
    if rows:
        parts.append(f"<p class='soft'>Headers</p><table>{rows}</table>")
    if "requestBody" in operation:
        kinds = ", ".join(f"<code>{escape(each)}</code>" for each in operation["requestBody"]["content"])
        parts.append(f"<p class='soft'>Body: {kinds}</p>")
        for title, example in _json(operation["requestBody"]).get("examples", {}).items():
            parts.append(f"<p>{escape(title)}</p><pre>{escape(json.dumps(example['value']))}</pre>")
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(each['description'])}</td></tr>"
        for status, each in operation["responses"].items()
    )
    parts.append(f"<p class='soft'>Answers</p><table>{rows}</table>")
    return (
        f"<details><summary><span class='method {method}'>{method.upper()}</span> <code>{escape(path)}</code> "
        f"<span class='soft'>{escape(operation['summary'])}</span></summary><div>{''.join(parts)}</div></details>\n"
    )


def _json(body: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = body["content"]["application/json"]
    return content
