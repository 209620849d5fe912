// The style sheet of a report: the reader's own fonts, colours by system preference, eight series colours of equal
// weight on either background.
#include "mhla/io/report.h"

namespace mhla {

std::string_view report_style() {
  return R"css(:root {
  --page: #ffffff; --ink: #1c2430; --soft: #5b6675; --rule: #e2e6ec; --panel: #f6f8fa; --grid: #e9edf2;
  --accent: #1d5fd1;
  --s0: #1d5fd1; --s1: #d2540a; --s2: #0b8457; --s3: #8b3fd1;
  --s4: #a87708; --s5: #0a8098; --s6: #c8286f; --s7: #5f6b7a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181f; --ink: #e3e8ef; --soft: #9aa6b5; --rule: #2c343f; --panel: #1b212a; --grid: #262e39;
    --accent: #7fb0ff;
    --s0: #6ea8ff; --s1: #ff9a57; --s2: #45cf9b; --s3: #c594ff;
    --s4: #e8bb45; --s5: #4fcbe3; --s6: #ff85b9; --s7: #a3afbe;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 40px 24px 80px; max-width: 1000px; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
header { border-bottom: 1px solid var(--rule); padding-bottom: 16px; margin-bottom: 28px; }
h1 { font-size: 30px; line-height: 1.25; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 21px; line-height: 1.3; margin: 44px 0 10px; }
h3 { font-size: 16px; margin: 28px 0 6px; }
p { margin: 8px 0 16px; max-width: 72ch; }
.subtitle { color: var(--soft); margin: 6px 0 0; }
pre {
  background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 12px 14px; overflow-x: auto;
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
.keys { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; margin: 20px 0 28px; }
.key { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px; }
.key-value { font-size: 27px; font-weight: 650; line-height: 1.2; color: var(--accent); }
.key-label { color: var(--soft); font-size: 13.5px; line-height: 1.4; margin-top: 4px; }
.table { overflow-x: auto; margin: 16px 0 24px; }
table { border-collapse: collapse; font-size: 14px; min-width: 50%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: 13.5px; padding-bottom: 8px; }
th, td { text-align: left; padding: 7px 18px 7px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: 13px; border-bottom: 2px solid var(--rule); }
th.n, td.n { text-align: right; padding: 7px 0 7px 18px; }
th.n + th:not(.n), td.n + td:not(.n) { padding-left: 18px; }
tbody tr:hover { background: var(--panel); }
figure { margin: 22px 0 26px; }
.picture { max-width: 100%; height: auto; image-rendering: pixelated; }
figcaption { color: var(--soft); font-size: 13.5px; line-height: 1.5; margin-top: 8px; max-width: 80ch; }
.row { display: flex; flex-wrap: wrap; gap: 12px 36px; align-items: flex-start; }
.row figure { flex: 1 1 280px; min-width: 0; margin: 12px 0; }
.pictures figure { flex: 0 1 auto; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .title { fill: var(--ink); font-size: 14px; font-weight: 600; }
svg .label, svg .legend, svg .name, svg .value { fill: var(--ink); }
svg .value, svg .target-label { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .target { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 5 4; }
svg .target-label { fill: var(--ink); font-style: italic; }
svg .curve { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
svg .dashed { stroke-dasharray: 6 5; }
svg .mark { fill: var(--c); stroke: var(--page); stroke-width: 1.2; }
svg .bar { fill: var(--c); }
svg .missing { fill: #8a8f98; }
svg .marked { fill: none; stroke: #ff2d55; stroke-width: 0.18; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
@media print {
  body { padding: 0; max-width: none; }
  figure, tr, .key { break-inside: avoid; }
  .table { overflow: visible; }
  table { font-size: 10px; width: 100%; }
  th, td { white-space: normal; padding: 3px 8px 3px 0; font-size: 10px; }
  th.n, td.n { padding: 3px 0 3px 8px; }
}
)css";
}

}  // namespace mhla
