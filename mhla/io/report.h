// One HTML page with everything in it: text, tables and SVG plots, no script and nothing to load, so that it opens
// offline and can be mailed. Light or dark as the reader's system is. Equal contents give equal bytes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mhla {

enum class AxisScale : std::uint8_t { kLinear, kLog2, kLog10 };

struct Axis {
  std::string label;
  AxisScale scale = AxisScale::kLinear;
  std::optional<double> low{}, high{};  // otherwise from the data
  bool whole = false;                   // of things that are counted: no tick between two numbers
};

// Values that cannot be drawn (NaN, infinite, not positive on a log axis) leave a gap in the line.
struct Series {
  std::string name;
  std::vector<double> x, y;
  bool dashed = false;
};

struct LinePlot {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
  std::string caption{};
};

// Horizontal bars: one group per name, one bar per series in it. A value that is not finite is written, not drawn.
struct BarSeries {
  std::string name;
  std::vector<double> values;  // one per group
};
struct BarChart {
  std::string title;
  std::vector<std::string> groups;
  std::vector<BarSeries> series;
  std::string value_label{};
  bool log = false;                      // bars then start at the power of ten below the smallest value
  std::optional<double> maybe_target{};  // a line across all bars
  std::string target_label{};
  std::string caption{};
};

// A matrix, row-major, first row on top. With values of both signs the scale diverges, symmetric around 0.
struct HeatMap {
  std::string title;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;  // [rows, columns]; grey where not finite
  std::string row_label{}, column_label{};
  std::optional<double> low{}, high{};
  std::string caption{};
  std::string value_label{};                                  // of the colour scale
  std::string png{};                                          // a PNG file to draw over: low values let it through
  std::optional<std::array<std::int64_t, 2>> maybe_marked{};  // row and column of a cell with a frame
};

using Figure = std::variant<LinePlot, BarChart, HeatMap>;

// Columns in which every cell starts like a number are set flush right.
struct Table {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::string caption{};
};

// A PNG file; `width` in pixels of the screen, so that small images can be enlarged.
struct PngPicture {
  std::string png;  // or a GIF, which may move
  double width = 0;
  std::string caption{};
};

struct KeyFigure {
  std::string value;  // "0.87"
  std::string label;  // "of the GEMM peak"
};

class HtmlReport {
 public:
  explicit HtmlReport(std::string title, std::string subtitle = "");

  // All text is plain text; what HTML would read as markup is escaped. Every call appends and returns *this.
  HtmlReport& heading(std::string_view text);
  HtmlReport& subheading(std::string_view text);
  HtmlReport& paragraph(std::string_view text);
  HtmlReport& code(std::string_view text);  // verbatim: a command, a log
  HtmlReport& key_figures(const std::vector<KeyFigure>& figures);
  HtmlReport& table(const Table& table);
  HtmlReport& figure(const Figure& figure);
  // A PNG file, at most as wide as the page; `width` in pixels of the screen, so that small images can be enlarged.
  HtmlReport& picture(std::string_view png, double width, std::string_view caption);
  HtmlReport& figures(const std::vector<Figure>& side_by_side);       // two or three fit the page, more wrap
  HtmlReport& pictures(const std::vector<PngPicture>& side_by_side);  // as many as fit the page, more wrap

  [[nodiscard]] std::string html() const;
  void write(const std::filesystem::path& path) const;

 private:
  std::string title_, subtitle_, body_;
};

// The drawing alone, for pages of other makers; it needs the style sheet of report_style(). Text keeps its size
// whatever the width, which is in pixels.
std::string svg(const Figure& figure, double width = 760);
std::string_view report_style();
std::string html_escape(std::string_view text);

}  // namespace mhla
