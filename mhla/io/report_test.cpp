// Reports must open anywhere: balanced tags, escaped text, nothing to load, drawings that survive any number.
#include "mhla/io/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Empty when every tag is closed in order, every attribute quoted and no text holds a bare '<', '>' or '&'.
std::string fault(std::string_view page) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < page.size()) {
    if (page[at] == '&') {
      const std::size_t end = page.find(';', at);
      if (end == page.npos || end - at > 7) return str("bare & at ", at);
      at = end + 1;
      continue;
    }
    if (page[at] == '>') return str("bare > at ", at);
    if (page[at] != '<') {
      ++at;
      continue;
    }
    if (page.substr(at, 15) == "<!DOCTYPE html>") {
      at += 15;
      continue;
    }
    std::size_t end = at + 1;
    bool quoted = false;
    for (; end < page.size() && (quoted || page[end] != '>'); ++end) {
      if (page[end] == '"') quoted = !quoted;
      if (page[end] == '<') return str("< inside a tag at ", end);
    }
    if (end == page.size()) return str("tag at ", at, " does not end");
    const std::string tag(page.substr(at + 1, end - at - 1));
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" \n", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name)
        return str("</", name, "> closes ", open.empty() ? "nothing" : open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
      if (name == "style") end = page.find("</style>", end) - 1;
    }
    at = end + 1;
  }
  return open.empty() ? "" : str("<", open.back(), "> is not closed");
}

int count(std::string_view text, std::string_view what) {
  int found = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// No number of a drawing may be written as nan or inf, in any attribute.
void expect_drawable(const Figure& figure) {
  const std::string drawing = svg(figure);
  EXPECT_EQ(fault(drawing), "") << drawing;
  bool inside = false;
  std::string attributes;
  for (const char c : drawing) {
    if (c == '"') inside = !inside;
    if (inside) attributes += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  EXPECT_EQ(attributes.find("nan"), std::string::npos) << drawing;
  EXPECT_EQ(attributes.find("inf"), std::string::npos) << drawing;
}

HtmlReport everything(const std::string& text) {
  HtmlReport report(text, text);
  report.heading(text).subheading(text).paragraph(text).code(text).key_figures({{text, text}, {"2", "b"}});
  report.table({.columns = {text, "n"}, .rows = {{text, "1.5"}, {"x", "-"}}, .caption = text});
  const LinePlot plot{
      text, {text, AxisScale::kLog2}, {text, AxisScale::kLog10}, {{text, {1, 2, 4}, {1, 10, 1000}}}, text};
  const BarChart bars{text, {text, "b"}, {{text, {1, 2}}, {"s", {3, -1}}}, text, false, 2.5, text, text};
  const HeatMap map{text, 2, 2, {1, 2, -3, kNaN}, text, text, {}, {}, text, text, "any bytes", {{1, 0}}};
  report.figure(plot).figures({bars, map}).picture("any bytes", 1e6, text);
  report.pictures({{"any bytes", 20, text}, {"any bytes", 30, text}});
  return report;
}

TEST(Report, IsWellFormed) {
  const std::string page = everything("plain").html();
  EXPECT_EQ(fault(page), "");
  EXPECT_EQ(page.substr(0, 15), "<!DOCTYPE html>");
  EXPECT_EQ(count(page, "<svg "), 3);
  EXPECT_EQ(count(page, "src=\"data:image/png;base64,YW55IGJ5dGVz\""), 3);
  EXPECT_EQ(count(page, "<div class=\"row pictures\">"), 1);
  EXPECT_EQ(count(page, "<table>"), 1);
  EXPECT_EQ(count(page, "<h2>plain</h2>"), 1);
  EXPECT_NE(fault("<p>a</b>"), "");  // the judge judges
  EXPECT_NE(fault("<p>a < b</p>"), "");
  EXPECT_NE(fault("<p>a & b</p>"), "");
  EXPECT_NE(fault("<p><b></b>"), "");
}

TEST(Report, EscapesEverywhere) {
  const std::string page = everything("<script>alert(\"&'\")</script>\x01\xff").html();
  EXPECT_EQ(fault(page), "");
  EXPECT_EQ(count(page, "<script"), 0);
  EXPECT_GE(count(page, "&lt;script&gt;alert(&quot;&amp;&#39;&quot;)&lt;/script&gt;\xef\xbf\xbd\xef\xbf\xbd"), 15);
  EXPECT_EQ(html_escape("a<b>&\"'\n\tz\xc3\xa9"), "a&lt;b&gt;&amp;&quot;&#39;\n\tz\xc3\xa9");
}

TEST(Report, LoadsNothing) {
  const std::string page = everything("x").html();
  for (const char* loader : {"http", "//", "url(", "@import", "<link", "<script", "<iframe"})
    EXPECT_EQ(count(page, loader), 0) << loader;
  for (const std::string place : {"href", "src"})
    EXPECT_EQ(count(page, place), count(page, place + "=\"data:image/png;base64,")) << place;
}

TEST(Report, SameContentsSameBytes) { EXPECT_EQ(everything("x").html(), everything("x").html()); }

TEST(Report, AlignsColumnsOfNumbers) {
  HtmlReport report("t");
  report.table(
      {.columns = {"name", "ms", "mixed"}, .rows = {{"a", "1.5", "1"}, {"b", "-", "x"}, {"c", "2.0 ms", "3"}}});
  const std::string page = report.html();
  EXPECT_EQ(count(page, "<th class=\"n\">ms</th>"), 1);
  EXPECT_EQ(count(page, "<td class=\"n\">1.5</td>"), 1);
  EXPECT_EQ(count(page, "<td>x</td>"), 1);
  EXPECT_EQ(count(page, "<th>mixed</th>"), 1);
}

TEST(Report, GapsWhereNothingCanBeDrawn) {
  const LinePlot plot{"t", {"x"}, {"y", AxisScale::kLog10}, {{"a", {1, 2, 3, 4, 5, 6}, {1, 10, kNaN, 0, 100, 1000}}}};
  const std::string drawing = svg(plot);
  EXPECT_EQ(count(drawing, "class=\"mark\""), 1 + 4);  // the legend's and four points
  const std::size_t path = drawing.find("class=\"curve\" d=\"");
  ASSERT_NE(path, std::string::npos);
  const std::string d = drawing.substr(path + 17, drawing.find('"', path + 17) - path - 17);
  EXPECT_EQ(count(d, "M"), 2) << d;  // two pieces
  EXPECT_EQ(count(d, "L"), 2) << d;
}

TEST(Report, AnyNumbersCanBeDrawn) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  const double huge = std::numeric_limits<double>::max();
  const std::vector<std::vector<double>> sets = {
      {},         {kNaN},          {kInf, -kInf, kNaN}, {0},          {0, 0},         {-1},
      {5, 5, 5},  {1e-320, tiny},  {huge, -huge},       {tiny, huge}, {1, 1 + 1e-15}, {-3, kNaN, 7},
      {1e6, 2e6}, {0.1, 0.2, 0.3}, {kInf, 1, 2}};
  for (const auto& y : sets) {
    for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog2, AxisScale::kLog10}) {
      const LinePlot plot{"t", {"x", scale}, {"y", scale}, {{"a", y, y}, {"b", y, std::vector<double>(y.size(), 1)}}};
      expect_drawable(plot);
      expect_drawable(LinePlot{"t", {"x", scale, 2, 1}, {"y", scale, kNaN, -1}, {{"a", y, y}}});
    }
    const std::vector<std::string> names(y.size(), "g");
    for (const bool log : {false, true})
      expect_drawable(BarChart{"t", names, {{"a", y}, {"b", y}}, "v", log, kNaN, "target"});
    expect_drawable(HeatMap{"t", 1, static_cast<std::int64_t>(y.size()), y});
    expect_drawable(HeatMap{"t", static_cast<std::int64_t>(y.size()), 1, y, "r", "c", 0.0, 0.0});
  }
  for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog2, AxisScale::kLog10}) {  // data beyond the set end
    expect_drawable(LinePlot{"t", {"x", scale, 100}, {"y", scale, {}, 1}, {{"a", {1, 2}, {10, 20}}}});
    expect_drawable(LinePlot{"t", {"x", scale, 1, 1}, {"y", scale, huge, huge}, {{"a", {1, 2}, {10, 20}}}});
  }
  expect_drawable(LinePlot{"empty", {}, {}, {}});
  expect_drawable(BarChart{"empty", {}, {}});
}

TEST(Report, PointsLieInsideTheAxes) {
  const LinePlot plot{"t", {"x", AxisScale::kLog2}, {"y"}, {{"a", {16384, 65536, 1048576}, {0.25, 0.5, 1.0}}}};
  const std::string drawing = svg(plot);
  for (const char* label : {">16K<", ">1M<", ">0.2<", ">1<"}) EXPECT_EQ(count(drawing, label), 1) << label << drawing;
}

TEST(Report, WhatIsCountedHasWholeTicks) {
  const std::vector<double> layers{1, 2, 3}, values{0.25, 0.5, 1.0};
  EXPECT_EQ(count(svg(LinePlot{"t", {.label = "layer"}, {"y"}, {{"a", layers, values}}}), ">1.5<"), 1);
  const std::string drawing = svg(LinePlot{"t", {.label = "layer", .whole = true}, {"y"}, {{"a", layers, values}}});
  for (const char* label : {">1<", ">2<", ">3<"}) EXPECT_GE(count(drawing, label), 1) << label << drawing;
  for (const char* label : {">1.5<", ">2.5<"}) EXPECT_EQ(count(drawing, label), 0) << label << drawing;
}

TEST(Report, AxesReachTheData) {
  // The last tick lies at or above the largest value, whatever the number of decades.
  for (int decades = 1; decades < 60; ++decades) {
    const double top = std::pow(10.0, decades) * 0.99;
    const std::string drawing =
        svg(LinePlot{"t", {"x"}, {"y", AxisScale::kLog10}, {{"a", {1, 2, 3}, {1, top / 1.05, top}}}});
    const std::size_t path = drawing.find("class=\"curve\" d=\"");
    const std::string d = drawing.substr(path, drawing.find('"', path + 17) - path);
    const auto y_of = [](const std::string& point) { return point.substr(point.find(' ')); };
    const std::size_t second = d.find('L'), third = d.rfind('L');
    EXPECT_NE(y_of(d.substr(second, third - second)), y_of(d.substr(third))) << decades << drawing;  // not cut off
  }
}

TEST(Report, LogBarsStartBelowTheSmallest) {
  for (const double smallest : {2.0, 1.0, 0.5}) {
    const std::string drawing = svg(BarChart{"t", {"a", "b"}, {{"s", {smallest, 200}}}, "", true});
    EXPECT_EQ(count(drawing, "width=\"0\""), 0) << drawing;
    EXPECT_EQ(count(drawing, smallest > 1 ? ">1<" : ">0.1<"), 1) << drawing;
  }
}

TEST(Report, HeatMapColoursByValue) {
  const std::string drawing = svg(HeatMap{"t", 2, 2, {0, 0, 1, kNaN}});
  EXPECT_EQ(count(drawing, "d=\"M0 0h2v1h-2z\""), 1) << drawing;  // equal neighbours are one rectangle
  EXPECT_EQ(count(drawing, "class=\"missing\" d=\"M1 1h1v1h-1z\""), 1) << drawing;
  std::vector<double> large(256 * 256);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = std::sin(static_cast<double>(i));
  EXPECT_LE(svg(HeatMap{"t", 256, 256, large}).size(), std::size_t{2} << 20);
}

TEST(Report, HeatMapLiesOverAnImage) {
  HeatMap map{"t", 2, 2, {0, 0, 1, 0.5}};
  EXPECT_EQ(count(svg(map), "fill-opacity"), 0);
  map.png = "\x89PNG!", map.maybe_marked = {{1, 0}}, map.value_label = "weight";
  const std::string drawing = svg(map);
  EXPECT_EQ(count(drawing, "href=\"data:image/png;base64,iVBORyE=\""), 1) << drawing;
  EXPECT_EQ(count(drawing, "fill-opacity"), 3) << drawing;  // three levels
  EXPECT_EQ(count(drawing, "<rect class=\"marked\" x=\"0\" y=\"1\""), 1) << drawing;
  EXPECT_EQ(count(drawing, ">weight</text>"), 1) << drawing;
}

TEST(Report, RefusesWhatDoesNotFit) {
  EXPECT_THROW(svg(LinePlot{"t", {}, {}, {{"a", {1, 2}, {1}}}}), Error);
  EXPECT_THROW(svg(BarChart{"t", {"a"}, {{"s", {1, 2}}}}), Error);
  EXPECT_THROW(svg(HeatMap{"t", 2, 2, {1, 2, 3}}), Error);
  EXPECT_THROW(svg(HeatMap{"t", -1, -1, {1}}), Error);
  HtmlReport report("t");
  EXPECT_THROW(report.table({.columns = {"a"}, .rows = {{"1", "2"}}}), Error);
}

TEST(Report, WritesAFile) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "report_test.html";
  const HtmlReport report = everything("x");
  report.write(path);
  const std::vector<std::byte> bytes = read_file(path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), report.html());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace mhla
