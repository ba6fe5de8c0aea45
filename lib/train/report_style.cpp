#include "lib/train/report_style.hpp"

namespace llmtrain::train {

// Line colours c0, c1 and category colours m0..m8 keep a contrast of 3:1 to both backgrounds.
const std::string_view kReportStyle = R"css(
:root { color-scheme: light dark;
  --bg: #fff; --fg: #1b1e23; --muted: #646b75; --rule: #e4e6ea; --faint: #f5f6f8;
  --c0: #2a5fb0; --c1: #c2571a; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #15171b; --fg: #e4e6ea; --muted: #979eaa; --rule: #2c3037; --faint: #1c1f24;
  --c0: #78a5ea; --c1: #ec965c; } }
.m0 { --m: #3b6fb6; } .m1 { --m: #7d9fce; } .m2 { --m: #4c9a8a; } .m3 { --m: #94bf7b; }
.m4 { --m: #c98a3c; } .m5 { --m: #b65a4f; } .m6 { --m: #8f6cae; } .m7 { --m: #7a828e; }
.m8 { --m: #a9895f; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 48px 32px 64px; background: var(--bg);
  color: var(--fg); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, sans-serif; font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; }
h1 { margin: 0; font-size: 26px; line-height: 1.25; font-weight: 600; letter-spacing: -.012em;
  overflow-wrap: anywhere; }
h2 { margin: 48px 0 16px; font-size: 17px; font-weight: 600; }
h3 { margin: 0; font-size: 14px; font-weight: 600; }
.sub { margin: 4px 0 0; color: var(--muted); overflow-wrap: anywhere; }
.key { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 20px 24px;
  margin: 28px 0 36px; padding: 20px 0; border: solid var(--rule); border-width: 1px 0; }
.key dt { font-size: 12.5px; color: var(--muted); }
.key dd { margin: 2px 0 0; font-size: 22px; line-height: 1.25; font-weight: 500;
  letter-spacing: -.01em; white-space: nowrap; }
.key small { font-size: 13px; font-weight: 400; color: var(--muted); letter-spacing: 0; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 36px 40px; }
.chart { margin: 0; min-width: 0; break-inside: avoid; }
.chart:first-child { grid-column: 1 / -1; }
.chart:first-child .plot { height: 320px; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 8px; margin-bottom: 10px; }
.unit { color: var(--muted); font-size: 13px; }
.legend { margin-left: auto; font-size: 13px; color: var(--muted); display: flex; gap: 16px; }
.legend b { color: var(--fg); font-weight: 500; }
.legend i { display: inline-block; width: 14px; height: 2.5px; border-radius: 1px;
  margin-right: 6px; vertical-align: 4px; background: currentColor; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); }
.plot { position: relative; height: 200px; margin: 0 6px 26px 46px;
  border-bottom: 1px solid var(--muted); }
.plot svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; stroke: currentColor; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; }
.plot .grid { stroke: var(--rule); stroke-width: 1; }
.plot .thin { stroke-width: 1; opacity: .32; }
.plot .bold { stroke-width: 1.75; }
.plot .dots { stroke-width: 6; stroke-linecap: round; }
.plot span { position: absolute; font-size: 12px; line-height: 1; color: var(--muted);
  white-space: nowrap; }
.plot .y { right: 100%; margin-right: 8px; transform: translateY(-50%); }
.plot .x { top: 100%; margin-top: 8px; transform: translateX(-50%); }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--muted);
  pointer-events: none; }
.tip { position: absolute; top: 6px; padding: 6px 9px; font-size: 12.5px; line-height: 1.45;
  background: var(--bg); border: 1px solid var(--rule); border-radius: 4px;
  box-shadow: 0 2px 8px #0002; pointer-events: none; white-space: pre; z-index: 1; }
table { border-collapse: collapse; width: 100%; max-width: 720px; font-size: 14px; }
th { text-align: left; font-weight: 400; color: var(--muted); vertical-align: top; }
thead th { font-size: 12.5px; border-bottom: 1px solid var(--rule); }
th, td { padding: 5px 16px 5px 0; overflow-wrap: anywhere; }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
.num { text-align: right; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
.facts { columns: 2; column-gap: 40px; margin: 0; font-size: 14px; }
.facts div { display: flex; gap: 16px; padding: 5px 0; border-bottom: 1px solid var(--rule);
  break-inside: avoid; }
.facts dt { flex: 0 0 38%; color: var(--muted); overflow-wrap: anywhere; }
.facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.stack { display: grid; grid-template-columns: 76px 1fr auto; gap: 8px 12px; align-items: center;
  margin-bottom: 20px; font-size: 14px; }
.stack > span:first-child, .stack > span:nth-child(4) { color: var(--muted); }
.stack svg { display: block; width: 100%; height: 22px; }
.stack rect { fill: var(--m); stroke: var(--bg); stroke-width: 1; vector-effect: non-scaling-stroke; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px;
  background: var(--m); }
pre { margin: 0; padding: 14px 16px; background: var(--faint); border-radius: 4px;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre em { font-style: normal; color: var(--muted); }
.sample { margin: 0 0 20px; } .sample figcaption { color: var(--muted); font-size: 13px; margin-bottom: 6px; }
summary { cursor: pointer; color: var(--muted); font-size: 14px; margin: 12px 0; }
footer { margin-top: 48px; padding-top: 14px; border-top: 1px solid var(--rule); font-size: 13px;
  color: var(--muted); }
@media (max-width: 720px) {
  body { padding: 24px 16px 40px; }
  h1 { font-size: 22px; } h2 { margin-top: 36px; }
  .key { grid-template-columns: repeat(2, 1fr); gap: 16px; margin: 20px 0 28px; padding: 16px 0; }
  .key dd { font-size: 19px; }
  .charts { grid-template-columns: minmax(0, 1fr); gap: 28px; }
  .chart:first-child .plot { height: 240px; }
  .plot .wide { display: none; }
  .facts { columns: 1; }
  .stack { grid-template-columns: 70px 1fr; } .stack span:nth-child(3n) { grid-column: 2; margin-top: -6px; }
  th, td { padding-right: 10px; } }
@media print {
  :root { --bg: #fff; --fg: #000; --muted: #555; --rule: #ccc; --faint: #f5f5f5; --c0: #2a5fb0;
    --c1: #c2571a; }
  body { max-width: none; padding: 0; font-size: 11pt; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }
  h2 { break-after: avoid; } details:not([open]) { display: none; } }
)css";

const std::string_view kReportScript = R"js(
"use strict";
const report = JSON.parse(document.getElementById("llmtrain-report").textContent);
for (const chart of report.charts) {
  const figure = document.getElementById(chart.id);
  const plot = figure.querySelector(".plot");
  const cursor = plot.querySelector(".cursor");
  const tip = plot.querySelector(".tip");
  const [low, high] = chart.x;
  const nearest = (points, x) => {
    let a = 0, b = points.length - 1;
    while (b - a > 1) {
      const middle = (a + b) >> 1;
      if (points[middle][0] <= x) a = middle; else b = middle;
    }
    return Math.abs(points[a][0] - x) <= Math.abs(points[b][0] - x) ? points[a] : points[b];
  };
  const show = (event) => {
    const box = plot.getBoundingClientRect();
    const pointer = low + (high - low) * (event.clientX - box.left) / box.width;
    const lines = chart.lines.filter((line) => line.points.length > 0);
    if (lines.length === 0) return;
    const step = nearest(lines[0].points, pointer)[0];
    const at = (step - low) / (high - low);
    tip.textContent = "step " + step.toLocaleString("en") + lines.map((line) => {
      const point = nearest(line.points, pointer);
      const where = point[0] === step ? "" : " (step " + point[0].toLocaleString("en") + ")";
      return "\n" + line.label + "  " + point[1] + where;
    }).join("");
    cursor.style.left = 100 * at + "%";
    tip.style.left = at < 0.5 ? "calc(" + 100 * at + "% + 10px)" : "auto";
    tip.style.right = at < 0.5 ? "auto" : "calc(" + 100 * (1 - at) + "% + 10px)";
    cursor.hidden = tip.hidden = false;
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
  plot.addEventListener("pointerleave", () => { cursor.hidden = tip.hidden = true; });
}
)js";

}  // namespace llmtrain::train
