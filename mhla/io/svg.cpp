#include "mhla/io/svg.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "mhla/core/error.h"

namespace mhla {
namespace {

std::string shortest(double value, std::chars_format format, int digits) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  return result.ec == std::errc() ? std::string(text.data(), result.ptr) : "0";
}

// A step of 1, 2 or 5 times a power of ten that cuts `span` into about `pieces`.
double nice_step(double span, int pieces) {
  const double raw = span / pieces;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = raw / power <= 1 ? 1 : raw / power <= 2 ? 2 : raw / power <= 5 ? 5 : 10;
  return step * power;
}

void linear_ticks(Scale& scale, const Axis& axis) {
  if (!(scale.high > scale.low)) {
    const double room = scale.low == 0 ? 1 : std::abs(scale.low) * 0.5;
    scale.low -= axis.low ? 0 : room;
    scale.high = std::max(scale.high + room, scale.low + room);
  }
  const double nice = nice_step(scale.high - scale.low, 5);
  const double step = axis.whole ? std::max(1.0, nice) : nice;
  if (!axis.low) scale.low = std::floor(scale.low / step) * step;
  if (!axis.high) scale.high = std::ceil(scale.high / step) * step;
  for (double k = std::ceil(scale.low / step - 1e-9); k * step <= scale.high + step * 1e-9 && scale.ticks.size() < 20;
       ++k)
    scale.ticks.push_back({k * step, number_text(k * step)});
}

void log2_ticks(Scale& scale, const Axis& axis) {
  const double first = std::floor(std::log2(scale.low) + 1e-9);
  const double last = std::max(std::ceil(std::log2(scale.high) - 1e-9), first + 1);
  const double stride = std::ceil((last - first) / 9);
  for (double k = first; k <= last; k += stride) {
    const double value = std::exp2(k);
    std::string label = number_text(value);
    if (k >= 10 && k < 40) {  // 16K is 16,384, as people say it
      const int thousands = static_cast<int>(k) / 10;
      label = str(static_cast<int>(std::exp2(k - 10 * thousands)), " KMG"[thousands]);
    }
    scale.ticks.push_back({value, label});
  }
  if (!axis.low) scale.low = std::exp2(first);
  if (!axis.high) scale.high = std::exp2(last);
}

void log10_ticks(Scale& scale, const Axis& axis) {
  const double first = std::floor(std::log10(scale.low) + 1e-9);
  const double last = std::ceil(std::log10(scale.high) - 1e-9);
  const bool fine = last - first <= 3;  // 1, 2, 5 in each decade
  const double stride = std::max(1.0, std::ceil((last - first) / 8));
  std::vector<double> candidates;
  for (double k = first; k < last + stride + 0.5; k += stride)
    for (const double digit : fine ? std::vector<double>{1, 2, 5} : std::vector<double>{1})
      candidates.push_back(digit * std::pow(10.0, k));
  // The last candidate at or below the data up to the first at or above it.
  std::size_t begin = 0, end = candidates.size() - 1;
  while (begin + 1 < end && candidates[begin + 1] <= scale.low * (1 + 1e-9)) ++begin;
  while (end - 1 > begin && candidates[end - 1] >= scale.high * (1 - 1e-9)) --end;
  for (std::size_t i = begin; i <= end; ++i) scale.ticks.push_back({candidates[i], number_text(candidates[i])});
  if (!axis.low) scale.low = candidates[begin];
  if (!axis.high) scale.high = candidates[end];
}

}  // namespace

std::string pixels(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = shortest(std::round(value * 100) / 100 + 0.0, std::chars_format::fixed, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string exact(double value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "\xe2\x88\x9e" : "-\xe2\x88\x9e";
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 9999.5 && size < 999.95e9) {
    constexpr std::array<std::pair<double, char>, 3> kUnits{{{1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}}};
    for (const auto& [unit, letter] : kUnits)
      if (size >= unit * 0.99995) return shortest(value / unit, std::chars_format::general, 4) + letter;
  }
  return shortest(value, std::chars_format::general, 4);
}

double text_width(std::string_view text, double font_size) {
  const auto letters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return static_cast<double>(letters) * font_size * 0.56;  // a usual sans serif, digits and lower case
}

bool Scale::drawable(double value) const { return std::isfinite(value) && (kind == AxisScale::kLinear || value > 0); }

double Scale::operator()(double value) const {
  const double share = kind == AxisScale::kLinear
                           ? (value - low) / (high - low)
                           : (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  return from + std::clamp(std::isnan(share) ? 0.0 : share, 0.0, 1.0) * (to - from);
}

Scale make_scale(const Axis& axis, const std::vector<double>& values, double from, double to, bool from_zero) {
  // Far enough from the ends of double that spans, steps and logarithms stay finite.
  constexpr double kHuge = 1e150;
  constexpr double kTiny = 1e-150;
  Scale scale{.kind = axis.scale, .from = from, .to = to};
  const bool linear = axis.scale == AxisScale::kLinear;
  const auto limited = [&](double value) { return std::clamp(value, linear ? -kHuge : kTiny, kHuge); };
  bool any = false;
  const auto cover = [&](double value) {
    if (!scale.drawable(value)) return;
    value = limited(value);
    if (linear && std::abs(value) < kTiny) value = 0;
    scale.low = any ? std::min(scale.low, value) : value;
    scale.high = any ? std::max(scale.high, value) : value;
    any = true;
  };
  for (const double value : values) cover(value);
  if (!any) cover(1);
  if (linear && from_zero) cover(0);
  const bool low_set = axis.low && scale.drawable(*axis.low);
  const bool high_set = axis.high && scale.drawable(*axis.high);
  if (low_set) scale.low = limited(*axis.low);
  if (high_set) scale.high = limited(*axis.high);
  if (scale.low >
      scale.high) {  // all data lies beyond the end that was set, or the ends were given the wrong way round
    if (low_set && high_set)
      std::swap(scale.low, scale.high);
    else
      (low_set ? scale.high : scale.low) = low_set ? scale.low : scale.high;
  }
  Axis used = axis;  // ends that were set and can be kept
  if (!low_set || scale.low == scale.high) used.low.reset();
  if (!high_set || scale.low == scale.high) used.high.reset();
  // A span far below the values' own precision is drawn as one value.
  if (linear && scale.high - scale.low <= 1e-12 * std::max(std::abs(scale.low), std::abs(scale.high)))
    scale.high = scale.low;
  if (linear)
    linear_ticks(scale, used);
  else if (axis.scale == AxisScale::kLog2)
    log2_ticks(scale, used);
  else
    log10_ticks(scale, used);
  return scale;
}

std::string svg_text(double x, double y, std::string_view text, const TextStyle& style) {
  std::string turn;
  if (style.turn != 0) turn = str(" transform=\"rotate(", pixels(style.turn), " ", pixels(x), " ", pixels(y), ")\"");
  return str("<text class=\"", style.css, "\" x=\"", pixels(x), "\" y=\"", pixels(y), "\" text-anchor=\"", style.anchor,
             "\"", turn, ">", html_escape(text), "</text>\n");
}

std::string svg_line(double x1, double y1, double x2, double y2, const char* css) {
  return str("<line class=\"", css, "\" x1=\"", pixels(x1), "\" y1=\"", pixels(y1), "\" x2=\"", pixels(x2), "\" y2=\"",
             pixels(y2), "\" />\n");
}

}  // namespace mhla
