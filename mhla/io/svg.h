// Text of SVG elements, numbers in the fewest digits that matter on a screen, and the axes of a plot.
// Private to this room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/report.h"

namespace mhla {

std::string pixels(double value);                            // two decimals at most; 0 for what is not finite
std::string exact(double value);                             // as many digits as the value has, for a scale factor
std::string number_text(double value);                       // 4 significant digits: "0.125", "1.5e-06", "12.3k"
double text_width(std::string_view text, double font_size);  // an estimate, for margins and legends

struct Tick {
  double value;
  std::string label;
};

// Maps values to pixels, [low, high] to [from, to].
struct Scale {
  AxisScale kind = AxisScale::kLinear;
  double low = 0;
  double high = 1;
  double from = 0;
  double to = 1;
  std::vector<Tick> ticks{};

  [[nodiscard]] bool drawable(double value) const;
  [[nodiscard]] double operator()(double value) const;  // clamped to the axis
};

// Covers the drawable values; the ends are ticks unless the axis sets them.
Scale make_scale(const Axis& axis, const std::vector<double>& values, double from, double to, bool from_zero = false);

struct TextStyle {
  const char* css = "tick";
  const char* anchor = "start";
  double turn = 0;  // degrees
};
std::string svg_text(double x, double y, std::string_view text, const TextStyle& style);
std::string base64(std::string_view bytes);
std::string svg_line(double x1, double y1, double x2, double y2, const char* css);

}  // namespace mhla
