"""How the page looks: by day and by night, on wide and narrow screens; states differ by shape as well as by color."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #5b6575; --line: #e3e6ea;
  --good: #12805c; --warn: #9a6200; --bad: #c8323c; --calm: #2f6fde; --idle: #98a2b3; --wash: #f1f4f8; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --ink: #e6e9ee; --soft: #98a2b3;
  --line: #272d36; --good: #3fbf8f; --warn: #e0a53d; --bad: #ff7a80; --calm: #6ea1ff; --idle: #667085;
  --wash: #1e242c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
main, header { max-width: 1500px; margin: 0 auto; padding: 0 20px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 12px; padding-top: 18px; }
h1 { font-size: 20px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 12px; text-transform: uppercase; letter-spacing: .06em; color: var(--soft); margin: 0 0 8px; }
.pill { border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600; color: #fff;
  background: var(--idle); }
.pill.ready { background: var(--good); } .pill.unready { background: var(--bad); }
.pill.stopping { background: var(--warn); } .pill.resuming { background: var(--calm); }
@media (prefers-color-scheme: dark) { .pill { color: #0f1216; } }
.soft { color: var(--soft); font-size: 12px; }
#link { margin-left: auto; font-size: 12px; color: var(--soft); min-height: 18px; }
#link.lost { color: var(--bad); font-weight: 600; }
#banner { margin: 10px 0 0; padding: 6px 12px; min-height: 34px; border-radius: 8px; border: 1px solid var(--line);
  border-left: 5px solid var(--good); background: var(--card); overflow-wrap: anywhere; }
#banner.bad { border-left-color: var(--bad); font-weight: 600; } #banner.warn { border-left-color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 10px; margin: 10px 0; }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; min-width: 0; }
.tile { padding: 9px 12px 8px; }
.tile b { display: block; font-size: 21px; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.tile span { display: block; color: var(--soft); font-size: 12px; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
.tile svg { display: block; width: 100%; height: 36px; margin-top: 4px; }
.curve { fill: none; stroke: var(--calm); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.area { fill: var(--calm); opacity: .12; }
.base { stroke: var(--line); vector-effect: non-scaling-stroke; }
.fall { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 2 2; vector-effect: non-scaling-stroke; }
.card { padding: 14px; margin-bottom: 10px; } .scroll { overflow-x: auto; }
.scroll:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--calm); outline-offset: 1px; }
#graph svg { display: block; margin: 0 auto; max-width: none; }
#graph .stage { fill: var(--wash); stroke: var(--line); }
#graph .end { fill: none; stroke: var(--idle); }
#graph text { fill: var(--ink); font-size: 11px; font-variant-numeric: tabular-nums; }
#graph .name { font-weight: 650; font-size: 13px; } #graph .faint { fill: var(--soft); }
#graph .right { text-anchor: end; } #graph .middle { text-anchor: middle; }
#graph .box { fill: var(--card); stroke: var(--idle); stroke-width: 1.5; }
#graph .member.good .box { stroke: var(--good); }
#graph .member.calm .box { stroke: var(--calm); stroke-dasharray: 5 3; }
#graph .member.warn .box { stroke: var(--warn); stroke-dasharray: 2 3; }
#graph .member.bad .box { stroke: var(--bad); stroke-dasharray: 7 4; fill: none; }
#graph .good .state { fill: var(--good); } #graph .calm .state { fill: var(--calm); }
#graph .warn .state { fill: var(--warn); } #graph .bad .state { fill: var(--bad); }
#graph .idle .box { fill: none; stroke-dasharray: 2 4; } #graph .idle .state { fill: var(--soft); }
#graph .over text { paint-order: stroke; stroke: var(--wash); stroke-width: 4; stroke-linejoin: round; }
#graph .over .middle { stroke: var(--card); }
#graph .member:focus { outline: none; } #graph .member:focus-visible .box { stroke-width: 3.5; }
#graph .track { fill: var(--line); } #graph .load { fill: var(--calm); } #graph .load.high { fill: var(--warn); }
.world { fill: none; stroke: var(--idle); stroke-width: 1.6; }
.world.open { stroke: var(--good); opacity: .75; } .world.connected { stroke: var(--soft); stroke-dasharray: 1.5 4; }
.world.forming { stroke: var(--calm); stroke-dasharray: 6 4; }
.world.broken { stroke: var(--bad); stroke-width: 3; stroke-dasharray: 2 5; }
.world.near { stroke-width: 3.5; opacity: 1; } .world.far { opacity: .15; }
.legend { color: var(--soft); font-size: 12px; margin-top: 10px; display: flex; flex-wrap: wrap; gap: 2px 16px; }
.legend svg { width: 30px; height: 8px; margin-right: 5px; vertical-align: middle; }
.columns { display: grid; grid-template-columns: minmax(0, 1fr) minmax(300px, 400px); gap: 10px; align-items: start; }
.columns > section { position: sticky; top: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-size: 12px; font-weight: 600; color: var(--soft); padding: 0 12px 6px 0;
  white-space: nowrap; }
td { border-top: 1px solid var(--line); padding: 5px 12px 5px 0; vertical-align: top; white-space: nowrap; }
th.n, td.n { text-align: right; }
td.good { color: var(--good); } td.calm { color: var(--calm); } td.warn { color: var(--warn); }
td.bad { color: var(--bad); }
td.note { white-space: normal; min-width: 100px; color: var(--warn); }
#strip { display: block; width: 100%; height: 92px; }
#strip text { fill: var(--soft); font-size: 11px; } #strip line { stroke: var(--line); }
#strip .bad { fill: var(--bad); } #strip .warn { fill: var(--warn); } #strip .good { fill: var(--good); }
#strip .calm { fill: var(--calm); }
#filters { display: flex; flex-wrap: wrap; gap: 2px 12px; margin-bottom: 8px; font-size: 12px; }
#filters label { white-space: nowrap; } #filters input { margin: 0 4px 0 0; vertical-align: -2px; }
#events { list-style: none; margin: 0; padding: 0; height: 560px; overflow-y: auto; }
#events:empty::before { content: "Nothing has happened yet."; color: var(--soft); }
#events li { position: relative; padding: 0 0 10px 20px; overflow-wrap: anywhere; }
#events li::before { content: "○"; position: absolute; left: 2px; color: var(--idle); font-size: 12px; }
#events li.bad::before { content: "▲"; color: var(--bad); }
#events li.warn::before { content: "◆"; color: var(--warn); }
#events li.good::before { content: "●"; color: var(--good); }
#events li.calm::before { content: "■"; color: var(--calm); }
#events time { display: block; color: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
#events pre { font-size: 11px; overflow-x: auto; margin: 4px 0 0; }
@media (max-width: 1000px) { .columns { display: block; }
  .columns > section { position: static; } .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media (max-width: 560px) { .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  main, header { padding-left: 10px; padding-right: 10px; } .card { padding: 10px; } #banner { min-height: 56px; }
  #link { width: 100%; margin-left: 0; } }
"""
