#include "mhla/io/report.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/svg.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

constexpr double kPageWidth = 952;  // pixels of text: max-width less padding in report_style()
constexpr double kRowGap = 36;

bool starts_like_a_number(const std::string& cell) {
  const std::size_t first = cell.find_first_not_of("+-~<> ");
  if (first == cell.npos) return true;  // empty, or a dash for "not there"
  const std::string_view rest = std::string_view(cell).substr(first);
  return (rest[0] >= '0' && rest[0] <= '9') || rest[0] == '.' || rest == "inf" || rest == "nan" || rest == "NaN";
}

std::string element(const char* tag, std::string_view text, const char* css = nullptr) {
  return str("<", tag, css != nullptr ? str(" class=\"", css, "\"") : "", ">", html_escape(text), "</", tag, ">\n");
}

std::string captioned(const Figure& figure, double width) {
  const std::string& caption =
      std::visit([](const auto& drawing) -> const std::string& { return drawing.caption; }, figure);
  return str("<figure>\n", svg(figure, width), caption.empty() ? "" : element("figcaption", caption), "</figure>\n");
}

std::string framed(std::string_view picture, double width, std::string_view caption) {
  const char* kind = picture.substr(0, 4) == "GIF8" ? "gif" : "png";
  return str("<figure>\n<img class=\"picture\" width=\"", pixels(std::min(width, kPageWidth)), "\" alt=\"",
             html_escape(caption), "\" src=\"data:image/", kind, ";base64,", base64(picture), "\" />\n",
             element("figcaption", caption), "</figure>\n");
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
      out += kReplacementCharacter;
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

HtmlReport::HtmlReport(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

HtmlReport& HtmlReport::heading(std::string_view text) {
  body_ += element("h2", text);
  return *this;
}

HtmlReport& HtmlReport::subheading(std::string_view text) {
  body_ += element("h3", text);
  return *this;
}

HtmlReport& HtmlReport::paragraph(std::string_view text) {
  body_ += element("p", text);
  return *this;
}

HtmlReport& HtmlReport::code(std::string_view text) {
  body_ += element("pre", text);
  return *this;
}

HtmlReport& HtmlReport::key_figures(const std::vector<KeyFigure>& figures) {
  body_ += "<div class=\"keys\">\n";
  for (const KeyFigure& figure : figures)
    body_ += str("<div class=\"key\">", element("div", figure.value, "key-value"),
                 element("div", figure.label, "key-label"), "</div>\n");
  body_ += "</div>\n";
  return *this;
}

HtmlReport& HtmlReport::table(const Table& table) {
  std::vector<const char*> align(table.columns.size(), "n");
  for (const auto& row : table.rows) {
    if (row.size() != table.columns.size())
      fail("report: a table row has ", row.size(), " cells for ", table.columns.size(), " columns");
    for (std::size_t c = 0; c < row.size(); ++c)
      if (!starts_like_a_number(row[c])) align[c] = nullptr;
  }
  body_ += "<div class=\"table\">\n<table>\n";
  if (!table.caption.empty()) body_ += element("caption", table.caption);
  body_ += "<thead><tr>\n";
  for (std::size_t c = 0; c < table.columns.size(); ++c) body_ += element("th", table.columns[c], align[c]);
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    body_ += "<tr>\n";
    for (std::size_t c = 0; c < row.size(); ++c) body_ += element("td", row[c], align[c]);
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table>\n</div>\n";
  return *this;
}

HtmlReport& HtmlReport::figure(const Figure& figure) {
  body_ += captioned(figure, kPageWidth * 0.8);
  return *this;
}

HtmlReport& HtmlReport::figures(const std::vector<Figure>& side_by_side) {
  body_ += "<div class=\"row\">\n";
  const double columns = side_by_side.size() == 2 ? 2 : side_by_side.size() == 1 ? 1.25 : 3;
  const double width = (kPageWidth - (columns - 1) * kRowGap) / columns;
  for (const Figure& figure : side_by_side) body_ += captioned(figure, width);
  body_ += "</div>\n";
  return *this;
}

HtmlReport& HtmlReport::picture(std::string_view png, double width, std::string_view caption) {
  body_ += framed(png, width, caption);
  return *this;
}

HtmlReport& HtmlReport::pictures(const std::vector<PngPicture>& side_by_side) {
  body_ += "<div class=\"row pictures\">\n";
  for (const PngPicture& one : side_by_side) body_ += framed(one.png, one.width, one.caption);
  body_ += "</div>\n";
  return *this;
}

std::string HtmlReport::html() const {
  return str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n",
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n",
             "<meta name=\"color-scheme\" content=\"light dark\" />\n", element("title", title_), "<style>\n",
             report_style(), "</style>\n</head>\n<body>\n<header>\n", element("h1", title_),
             subtitle_.empty() ? "" : element("p", subtitle_, "subtitle"), "</header>\n<main>\n", body_,
             "</main>\n</body>\n</html>\n");
}

void HtmlReport::write(const std::filesystem::path& path) const { write_file(path, html()); }

}  // namespace mhla
