// The three drawings of report.h as SVG. Colours are CSS variables of the page's style sheet, series i has class
// s<i mod 8>; marker shapes change with the series, so that a plot can be read without colours.
#include <algorithm>
#include <array>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/io/report.h"
#include "mhla/io/svg.h"

namespace mhla {
namespace {

constexpr double kFont = 12;
constexpr int kColors = 8;

std::string open_svg(double width, double height, const std::string& title) {
  return str("<svg viewBox=\"0 0 ", pixels(width), " ", pixels(height),
             "\" role=\"img\" style=\"max-width: ", pixels(width), "px\" aria-label=\"", html_escape(title), "\">\n");
}

std::string marker(std::size_t series, double x, double y, const std::string& hint) {
  constexpr std::array<const char*, 4> kShapes{"m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
                                               "m-3.2 -3.2h6.4v6.4h-6.4z", "m0 -4.4l4.2 7.4h-8.4z",
                                               "m0 -4.6l4.2 4.6l-4.2 4.6l-4.2 -4.6z"};
  return str("<path class=\"mark\" d=\"M", pixels(x), " ", pixels(y), kShapes[series % kShapes.size()], "\">",
             hint.empty() ? "" : "<title>" + html_escape(hint) + "</title>", "</path>\n");
}

struct LegendEntry {
  std::string name;
  bool line = false;  // a line with a marker, or a filled square
  bool dashed = false;
};

// Entries in rows from (left, top) on; returns the height used.
double legend(std::string& out, const std::vector<LegendEntry>& entries, double left, double top, double right) {
  constexpr double kRow = 20;
  double x = left, y = top;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double swatch = entries[i].line ? 26 : 14;
    const double width = swatch + 6 + text_width(entries[i].name, kFont) + 18;
    if (x > left && x + width > right) {
      x = left;
      y += kRow;
    }
    out += str("<g class=\"s", i % kColors, "\">");
    if (entries[i].line) {
      out += svg_line(x, y + 8, x + swatch, y + 8, entries[i].dashed ? "curve dashed" : "curve");
      out += marker(i, x + swatch / 2, y + 8, "");
    } else {
      out += str("<rect class=\"bar\" x=\"", pixels(x), "\" y=\"", pixels(y + 2),
                 "\" width=\"12\" height=\"12\" rx=\"2\" />");
    }
    out += svg_text(x + swatch + 6, y + 12, entries[i].name, {.css = "legend"}) + "</g>\n";
    x += width;
  }
  return y + kRow - top;
}

std::vector<double> all_values(const LinePlot& plot, std::vector<double> Series::*axis) {
  std::vector<double> all;
  for (const Series& series : plot.series) all.insert(all.end(), (series.*axis).begin(), (series.*axis).end());
  return all;
}

double widest(const std::vector<Tick>& ticks) {
  double width = 0;
  for (const Tick& tick : ticks) width = std::max(width, text_width(tick.label, kFont));
  return width;
}

std::string draw(const LinePlot& plot, double full_width) {
  for (const Series& series : plot.series) {
    if (series.x.size() != series.y.size())
      fail("report: series ", series.name, " has ", series.x.size(), " x and ", series.y.size(), " y values");
  }
  std::string body = svg_text(0, 16, plot.title, {.css = "title"});
  std::vector<LegendEntry> entries;
  for (const Series& series : plot.series) entries.push_back({series.name, true, series.dashed});
  const double top = 30 + (entries.empty() ? 0 : legend(body, entries, 0, 30, full_width)) + 10;
  const double bottom = top + std::clamp(full_width * 0.42, 190.0, 300.0);
  Scale y = make_scale(plot.y, all_values(plot, &Series::y), bottom, top);
  const double left = widest(y.ticks) + (plot.y.label.empty() ? 14 : 32);
  const double right = full_width - 16;
  const Scale x = make_scale(plot.x, all_values(plot, &Series::x), left, right);

  for (const Tick& tick : y.ticks) {
    body += svg_line(left, y(tick.value), right, y(tick.value), "grid");
    body += svg_text(left - 8, y(tick.value) + 4, tick.label, {.anchor = "end"});
  }
  for (const Tick& tick : x.ticks) {
    body += svg_line(x(tick.value), top, x(tick.value), bottom, "grid");
    body += svg_text(x(tick.value), bottom + 18, tick.label, {.anchor = "middle"});
  }
  body += svg_line(left, bottom, right, bottom, "axis");
  if (!plot.x.label.empty())
    body += svg_text((left + right) / 2, bottom + 38, plot.x.label, {.css = "label", .anchor = "middle"});
  if (!plot.y.label.empty())
    body += svg_text(12, (top + bottom) / 2, plot.y.label, {.css = "label", .anchor = "middle", .turn = -90});

  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    std::string path, marks;
    bool drawing = false;
    for (std::size_t k = 0; k < series.x.size(); ++k) {
      const bool there = x.drawable(series.x[k]) && y.drawable(series.y[k]);
      if (there) {
        path += str(drawing ? "L" : "M", pixels(x(series.x[k])), " ", pixels(y(series.y[k])));
        if (series.x.size() <= 64 || (!drawing && k + 1 == series.x.size()))  // beyond that they hide the curve
          marks += marker(i, x(series.x[k]), y(series.y[k]),
                          str(series.name, ": ", number_text(series.x[k]), ", ", number_text(series.y[k])));
      }
      drawing = there;
    }
    body += str("<g class=\"s", i % kColors, "\">");
    if (!path.empty()) body += str("<path class=\"curve", series.dashed ? " dashed" : "", "\" d=\"", path, "\" />\n");
    body += marks + "</g>\n";
  }
  return open_svg(full_width, bottom + (plot.x.label.empty() ? 28 : 48), plot.title) + body + "</svg>\n";
}

std::string draw(const BarChart& chart, double full_width) {
  constexpr double kBar = 18, kGap = 3, kGroupGap = 14;
  std::vector<double> values;
  for (const BarSeries& series : chart.series) {
    if (series.values.size() != chart.groups.size())
      fail("report: bars ", series.name, " have ", series.values.size(), " values for ", chart.groups.size(),
           " groups");
    values.insert(values.end(), series.values.begin(), series.values.end());
  }
  if (chart.maybe_target) values.push_back(*chart.maybe_target);
  std::string body = svg_text(0, 16, chart.title, {.css = "title"});
  double top = 30;
  if (chart.series.size() > 1) {
    std::vector<LegendEntry> entries;
    for (const BarSeries& series : chart.series) entries.push_back({series.name});
    top += legend(body, entries, 0, top, full_width);
  }
  top += chart.maybe_target && !chart.target_label.empty() ? 22 : 8;
  double left = 0;
  for (const std::string& group : chart.groups) left = std::max(left, text_width(group, kFont));
  left = std::min(left + 14, full_width / 2);
  const double right = full_width - 64;  // room for the value beside the longest bar
  Axis axis{.label = chart.value_label, .scale = chart.log ? AxisScale::kLog10 : AxisScale::kLinear};
  if (chart.log) {  // from the power of ten below the smallest value, so that no bar has length 0
    double smallest = HUGE_VAL;
    for (const double value : values) smallest = value > 0 ? std::min(smallest, value) : smallest;
    if (std::isfinite(smallest))
      axis.low = std::pow(10.0, std::ceil(std::log10(std::max(smallest, 1e-150)) - 1e-9) - 1);
  }
  const Scale x = make_scale(axis, values, left, right, true);
  const auto count = static_cast<double>(chart.series.size());
  const double group_height = count * kBar + std::max(0.0, count - 1) * kGap + kGroupGap;
  const double bottom = top + group_height * static_cast<double>(chart.groups.size());

  for (const Tick& tick : x.ticks) {
    body += svg_line(x(tick.value), top, x(tick.value), bottom, "grid");
    body += svg_text(x(tick.value), bottom + 18, tick.label, {.anchor = "middle"});
  }
  const double zero = chart.log ? left : x(0);
  std::string values_text;  // above the target line
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    const double group_top = top + kGroupGap / 2 + static_cast<double>(g) * group_height;
    body += svg_text(left - 10, group_top + (group_height - kGroupGap) / 2 + 4, chart.groups[g],
                     {.css = "name", .anchor = "end"});
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      const double value = chart.series[i].values[g];
      const double y = group_top + static_cast<double>(i) * (kBar + kGap);
      const double end = x.drawable(value) ? x(value) : zero;
      body += str("<rect class=\"bar s", i % kColors, "\" x=\"", pixels(std::min(zero, end)), "\" y=\"", pixels(y),
                  "\" width=\"", pixels(std::abs(end - zero)), "\" height=\"", pixels(kBar), "\" rx=\"2\"><title>",
                  html_escape(str(chart.groups[g], ", ", chart.series[i].name, ": ", number_text(value))),
                  "</title></rect>\n");
      values_text += svg_text(std::max(zero, end) + 6, y + kBar / 2 + 4, number_text(value), {.css = "value"});
    }
  }
  body += svg_line(zero, top, zero, bottom, "axis");
  if (chart.maybe_target && x.drawable(*chart.maybe_target)) {
    const double at = x(*chart.maybe_target);
    body += svg_line(at, top, at, bottom, "target");
    if (!chart.target_label.empty())
      body += svg_text(at, top - 7, chart.target_label,
                       {.css = "target-label", .anchor = at > full_width * 0.85 ? "end" : "middle"});
  }
  body += values_text;
  if (!chart.value_label.empty())
    body += svg_text((left + right) / 2, bottom + 38, chart.value_label, {.css = "label", .anchor = "middle"});
  return open_svg(full_width, bottom + (chart.value_label.empty() ? 28 : 48), chart.title) + body + "</svg>\n";
}

using Color = std::array<double, 3>;

// Piecewise linear through these stops: viridis for sizes, blue to red through near-white for signs. Both are
// read alike on light and dark pages and by most colour-blind readers.
std::string color_at(double share, bool diverging) {
  constexpr std::array<Color, 9> kSize{{{68, 1, 84},
                                        {71, 44, 122},
                                        {59, 81, 139},
                                        {44, 113, 142},
                                        {33, 144, 141},
                                        {39, 173, 129},
                                        {92, 200, 99},
                                        {170, 220, 50},
                                        {253, 231, 37}}};
  constexpr std::array<Color, 9> kSign{{{5, 48, 97},
                                        {33, 102, 172},
                                        {67, 147, 195},
                                        {146, 197, 222},
                                        {247, 247, 247},
                                        {253, 219, 199},
                                        {244, 165, 130},
                                        {214, 96, 77},
                                        {165, 15, 21}}};
  const auto& stops = diverging ? kSign : kSize;
  const double place = std::clamp(share, 0.0, 1.0) * 8;
  const auto below = std::min<std::size_t>(7, static_cast<std::size_t>(place));
  std::string text = "#";
  for (std::size_t c = 0; c < 3; ++c) {
    const double part = place - static_cast<double>(below);
    const auto level = static_cast<unsigned>(std::lround(stops[below][c] * (1 - part) + stops[below + 1][c] * part));
    constexpr char kHex[] = "0123456789abcdef";
    (text += kHex[level >> 4 & 15]) += kHex[level & 15];
  }
  return text;
}

std::string draw(const HeatMap& map, double full_width) {
  if (map.rows < 0 || map.columns < 0 || map.values.size() != static_cast<std::size_t>(map.rows * map.columns))
    fail("report: heat map of ", map.rows, " x ", map.columns, " has ", map.values.size(), " values");
  constexpr int kLevels = 128;
  constexpr double kBarWidth = 14;
  const double side = std::min(full_width - 110, 340.0);  // beside the scale and its numbers
  double low = 0, high = 1;
  bool any = false;
  for (const double value : map.values) {
    if (!std::isfinite(value)) continue;
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  low = map.low.value_or(low);
  high = map.high.value_or(high);
  const bool diverging = low < 0 && high > 0;
  if (diverging) {  // the neutral colour is 0
    high = std::max(high, -low);
    low = -high;
  }
  if (!(high > low)) high = low + std::max(std::abs(low) * 1e-6, 1e-300);
  const double span = high / 2 - low / 2;  // halved: high - low may overflow
  const auto level_of = [&](double value) {
    const double share = (std::clamp(value, low, high) / 2 - low / 2) / span;
    return std::min(kLevels - 1, static_cast<int>(share * kLevels));
  };

  const auto opacity_at = [](int level) { return 0.1 + 0.75 * (level + 0.5) / kLevels; };

  // The whole map fits a square; cells are square. One path per colour: runs of equal colour become one rectangle.
  const double cell = side / static_cast<double>(std::max<std::int64_t>({map.rows, map.columns, 1}));
  const double left = map.row_label.empty() ? 2 : 24;
  const double top = 34;
  const double width = cell * static_cast<double>(map.columns), height = cell * static_cast<double>(map.rows);
  std::vector<std::string> paths(kLevels + 1);  // the last: not finite
  for (std::int64_t row = 0; row < map.rows; ++row) {
    const auto level_at = [&](std::int64_t column) {
      const double value = map.values[static_cast<std::size_t>(row * map.columns + column)];
      return std::isfinite(value) ? level_of(value) : kLevels;
    };
    for (std::int64_t column = 0; column < map.columns;) {
      std::int64_t end = column + 1;
      while (end < map.columns && level_at(end) == level_at(column)) ++end;
      paths[static_cast<std::size_t>(level_at(column))] +=
          str("M", std::to_string(column), " ", std::to_string(row), "h", std::to_string(end - column), "v1h",
              std::to_string(column - end), "z");
      column = end;
    }
  }
  std::string body = svg_text(0, 16, map.title, {.css = "title"});
  if (!map.png.empty())
    body += str("<image x=\"", pixels(left), "\" y=\"", pixels(top), "\" width=\"", pixels(width), "\" height=\"",
                pixels(height), "\" preserveAspectRatio=\"none\" style=\"image-rendering: pixelated\" ",
                "href=\"data:image/png;base64,", base64(map.png), "\" />\n");
  body += str("<g transform=\"translate(", pixels(left), " ", pixels(top), ") scale(", str(cell),
              ")\" shape-rendering=\"crispEdges\">\n");
  for (int level = 0; level <= kLevels; ++level) {
    const std::string& path = paths[static_cast<std::size_t>(level)];
    if (path.empty()) continue;
    const std::string fill =
        level == kLevels ? "class=\"missing\"" : str("fill=\"", color_at((level + 0.5) / kLevels, diverging), "\"");
    const std::string through = map.png.empty() ? "" : str(" fill-opacity=\"", pixels(opacity_at(level)), "\"");
    body += str("<path ", fill, through, " d=\"", path, "\" />\n");
  }
  if (map.maybe_marked) {
    const auto [row, column] = *map.maybe_marked;
    body += str("<rect class=\"marked\" x=\"", std::to_string(column), "\" y=\"", std::to_string(row),
                "\" width=\"1\" height=\"1\" />\n");
  }
  body += "</g>\n";
  if (!map.column_label.empty())
    body += svg_text(left + width / 2, top + height + 18, map.column_label, {.css = "label", .anchor = "middle"});
  if (!map.row_label.empty())
    body += svg_text(14, top + height / 2, map.row_label, {.css = "label", .anchor = "middle", .turn = -90});

  const double bar_left = left + width + 16;
  const double bar_height = std::max(height, 80.0);
  constexpr int kSteps = 32;
  for (int step = 0; step < kSteps; ++step) {
    body += str("<rect x=\"", pixels(bar_left), "\" y=\"", pixels(top + bar_height * (kSteps - 1 - step) / kSteps),
                "\" width=\"", pixels(kBarWidth), "\" height=\"", pixels(bar_height / kSteps + 0.5), "\" fill=\"",
                color_at((step + 0.5) / kSteps, diverging), "\" />\n");
  }
  if (!map.value_label.empty()) body += svg_text(bar_left, top - 5, map.value_label, {.css = "tick"});
  const double middle = low / 2 + high / 2;
  const double text_left = bar_left + kBarWidth + 6;
  body += svg_text(text_left, top + 9, number_text(high), {});
  body += svg_text(text_left, top + bar_height / 2 + 4, number_text(middle), {});
  body += svg_text(text_left, top + bar_height, number_text(low), {});
  const double full =
      std::max({text_left + 48, text_width(map.title, 14) + 8, bar_left + text_width(map.value_label, 12) + 4});
  return open_svg(full, top + bar_height + (map.column_label.empty() ? 6 : 26), map.title) + body + "</svg>\n";
}

}  // namespace

std::string svg(const Figure& figure, double width) {
  if (!(width >= 200 && width <= 10000)) fail("report: figure of width ", width, ", expected 200 to 10000");
  return std::visit([&](const auto& drawing) { return draw(drawing, width); }, figure);
}

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t at) -> unsigned {
      return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0u;
    };
    const unsigned word = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    text += kDigits[word >> 18], text += kDigits[word >> 12 & 63];
    text += i + 1 < bytes.size() ? kDigits[word >> 6 & 63] : '=';
    text += i + 2 < bytes.size() ? kDigits[word & 63] : '=';
  }
  return text;
}

}  // namespace mhla
