#include "apps/commands/analyze_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "mhla/io/codecs/image.h"

namespace mhla::apps {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double mean_in(const JsonValue& row, const char* field) {
  const JsonValue& value = row.at(field);
  return value.is_null() ? kNaN : value.at("mean").as_double();
}

std::vector<double> doubles(const JsonValue& list) {
  std::vector<double> values;
  for (const JsonValue& value : list.items()) values.push_back(value.as_double());
  return values;
}

std::string number(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

std::string side_by_side(const JsonValue& pair) {
  return fmt::format("{} x {}", pair.at(0).as_int(), pair.at(1).as_int());
}

std::string png_of(const Image& image) {
  const std::vector<std::byte> bytes = encode_png(image);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// One point per layer, the mean over heads, a line per run.
LinePlot by_layer(const AnalysisRows& rows, const std::vector<std::string>& names, const char* field,
                  const std::string& title, const std::string& unit) {
  LinePlot plot;
  plot.title = title;
  plot.x.label = "layer (1 is the first)", plot.x.whole = true, plot.y.label = unit, plot.y.low = 0.0;
  for (std::size_t run = 0; run < rows.runs.size(); ++run) {
    std::vector<std::string> layers;
    std::map<std::string, std::pair<double, int>> sums;
    for (const JsonValue& head : rows.heads) {
      if (head.at("run").as_int() != static_cast<std::int64_t>(run)) continue;
      const std::string& layer = head.at("layer").as_string();
      if (sums.count(layer) == 0) layers.push_back(layer);
      auto& [sum, count] = sums[layer];
      sum += mean_in(head, field), ++count;
    }
    Series series{names[run], {}, {}};
    for (std::size_t l = 0; l < layers.size(); ++l) {
      series.x.push_back(static_cast<double>(l + 1));
      series.y.push_back(sums[layers[l]].first / sums[layers[l]].second);
    }
    if (!series.x.empty()) plot.series.push_back(std::move(series));
  }
  return plot;
}

void add_heads(HtmlReport& page, const AnalysisRows& rows, const std::vector<std::string>& names) {
  page.heading("Rank and entropy of the attention matrices");
  page.paragraph(fmt::format(
      "Row t of an attention matrix holds the weights that token t gives to all tokens. Every layer and head "
      "was looked at on {} test images; lines are means over heads and images.",
      rows.runs[0].at("samples").as_int()));
  page.figures({by_layer(rows, names, "rank_1pc", "Rank above 1 %", "singular values"),
                by_layer(rows, names, "entropy", "Entropy of rows", "share of log N")});
  page.figures({by_layer(rows, names, "rank", "Numerical rank", "singular values"),
                by_layer(rows, names, "stable_rank", "Stable rank", "directions")});
  page.paragraph(
      "Numerical rank counts singular values above N times the rounding of f32 over the largest: what the matrix can "
      "tell apart at all. Rank above 1 % counts those that matter. Stable rank is the sum of squared singular values "
      "over the largest squared: it has no threshold. Entropy 1 is a token that looks everywhere alike, 0 one that "
      "looks at a single place.");
  Table table{{"run", "layer", "head", "rank", "at most", "above 1 %", "effective", "stable", "entropy", "computed"},
              {}};
  for (const JsonValue& head : rows.heads) {
    table.rows.push_back({names.at(static_cast<std::size_t>(head.at("run").as_int())), head.at("layer").as_string(),
                          std::to_string(head.at("head").as_int()), number(mean_in(head, "rank"), 1),
                          std::to_string(head.at("rank_bound").as_int()), number(mean_in(head, "rank_1pc"), 1),
                          number(mean_in(head, "effective_rank"), 1), number(mean_in(head, "stable_rank"), 2),
                          number(mean_in(head, "entropy"), 3), head.at("method").as_string()});
  }
  page.table(table);
}

void add_maps(HtmlReport& page, const AnalysisRows& rows, const std::vector<std::string>& names) {
  if (rows.maps.empty()) return;
  page.heading("Where a token looks");
  page.paragraph(
      fmt::format("Weights that the framed token gives to all tokens, in {}, the mean over heads. Each picture "
                  "has its own scale; 1/N would be looking everywhere alike.",
                  rows.maps[0].at("layer").as_string()));
  for (const Picture& picture : rows.pictures) {
    const std::string png = png_of(picture.image);
    const auto is_of_picture = [&](const JsonValue& map) { return map.at("sample").as_int() == picture.sample; };
    std::vector<JsonValue> queries;
    for (const JsonValue& map : rows.maps)
      if (is_of_picture(map) && std::find(queries.begin(), queries.end(), map.at("query")) == queries.end())
        queries.push_back(map.at("query"));
    for (const JsonValue& query : queries) {
      page.subheading(fmt::format("{} ({}), token {}, {}", picture.class_name, picture.item, query.at(0).as_int(),
                                  query.at(1).as_int()));
      std::vector<Figure> figures;
      for (const JsonValue& row : rows.maps) {
        if (!is_of_picture(row) || !(row.at("query") == query)) continue;
        HeatMap map;
        map.title = names.at(static_cast<std::size_t>(row.at("run").as_int()));
        map.rows = row.at("grid").at(0).as_int(), map.columns = row.at("grid").at(1).as_int();
        map.values = doubles(row.at("weights"));
        map.row_label = "token row", map.column_label = "token column", map.value_label = "weight";
        map.low = 0.0, map.png = png, map.maybe_marked = {{query.at(0).as_int(), query.at(1).as_int()}};
        figures.emplace_back(std::move(map));
      }
      page.figures(figures);
    }
  }
}

void add_mixes(HtmlReport& page, const AnalysisRows& rows, const std::vector<std::string>& names) {
  if (rows.mixes.empty()) return;
  page.heading("Mixing matrices, as they began and as they were learned");
  page.paragraph(
      "Row i: how query block i weighs the summary of every block. Blocks are numbered row by row over the image, so "
      "neighbours above and below stand a block row apart.");
  constexpr std::size_t kMost = 24;  // a page of them; all are in the JSON
  for (std::size_t i = 0; i < std::min(kMost, rows.mixes.size()); ++i) {
    const JsonValue& row = rows.mixes[i];
    const std::int64_t M = row.at("M").as_int();
    const std::vector<double> initial = doubles(row.at("initial")), learned = doubles(row.at("learned"));
    double low = 0.0, high = 0.0;
    for (const std::vector<double>* values : {&initial, &learned})
      for (const double value : *values) low = std::min(low, value), high = std::max(high, value);
    std::vector<double> change(learned.size());
    for (std::size_t j = 0; j < change.size(); ++j) change[j] = learned[j] - initial[j];
    const auto drawing = [&](const char* title, const std::vector<double>& values, bool common) {
      HeatMap map;
      map.title = title, map.rows = map.columns = M, map.values = values;
      map.row_label = "query block", map.column_label = "key block", map.value_label = common ? "weight" : "difference";
      if (common) map.low = low, map.high = high;
      return map;
    };
    page.subheading(fmt::format("{}, {}{}", names.at(static_cast<std::size_t>(row.at("run").as_int())),
                                row.at("layer").as_string(),
                                row.at("head").is_null() ? "" : fmt::format(", head {}", row.at("head").as_int())));
    page.figures({drawing("initial", initial, true), drawing("learned", learned, true),
                  drawing("learned - initial", change, false)});
  }
  if (rows.mixes.size() > kMost)
    page.paragraph(fmt::format("The first {} of {}; analysis.json has all.", kMost, rows.mixes.size()));
}

LinePlot growth_plot(const AnalysisRows& rows, const std::vector<std::string>& names, const std::string& by) {
  LinePlot plot;
  plot.title = by == "N" ? "Rank by the number of tokens" : "Rank by the number of blocks";
  plot.x.label = by == "N" ? "tokens N" : "blocks M", plot.x.scale = AxisScale::kLog2;
  plot.y.label = "singular values", plot.y.scale = AxisScale::kLog2;
  for (std::size_t run = 0; run < rows.runs.size(); ++run) {
    Series bound{names[run] + ", bound", {}, {}, true}, rank{names[run] + ", rank", {}, {}},
        useful{names[run] + ", above 1 %", {}, {}};
    for (const JsonValue& row : rows.growths) {
      if (row.at("run").as_int() != static_cast<std::int64_t>(run) || row.at("by").as_string() != by) continue;
      const double x = row.at(by).as_double();
      bound.x.push_back(x), bound.y.push_back(row.at("rank_bound").as_double());
      rank.x.push_back(x), rank.y.push_back(mean_in(row, "rank"));
      useful.x.push_back(x), useful.y.push_back(mean_in(row, "rank_1pc"));
    }
    if (bound.x.empty()) continue;
    plot.series.push_back(bound), plot.series.push_back(rank);
    if (by == "M") plot.series.push_back(useful);
  }
  return plot;
}

void add_growth(HtmlReport& page, const AnalysisRows& rows, const std::vector<std::string>& names) {
  if (rows.growths.empty()) return;
  page.heading("The bound of the rank, and the rank, as N and M grow");
  page.paragraph(
      "Linear attention cannot pass the head size D, softmax attention N, MHLA min(N, D rank(mix), sum over blocks of "
      "min(tokens, D)). The trained weights were carried over to other image sizes and other blocks (positions "
      "interpolated, mixing matrices resampled, nothing trained again); the middle layer on two images.");
  for (const char* by : {"N", "M"}) {
    const LinePlot plot = growth_plot(rows, names, by);
    if (!plot.series.empty()) page.figure(plot);
  }
}

void add_methods(HtmlReport& page) {
  page.heading("How it was computed");
  page.paragraph(
      "q, k and the mixing matrix are taken from the trained network as it computes them and widened to f64. Of linear "
      "attention and MHLA no N x N matrix is written down for the singular values (\"blocks\"): features are factored "
      "block by block, "
      "Q_b / den = U_b R_b and K_b = V_b T_b, and the matrix of all mix[i,b] R_i T_b^T has the same singular values at "
      "a "
      "side of sum over blocks of min(tokens, D). Where that is not smaller than N, and for softmax attention, the "
      "matrix itself is "
      "taken up to the size given by --largest (\"dense\"). Above it the ranks are left out and the stable rank comes "
      "from "
      "power iteration over rows made when they are needed (\"rows\"). Entropy always goes row by row. Singular values "
      "come from Householder bidiagonalisation and implicit QL, right to a small multiple of 2e-16 of the largest. "
      "Convolutions, gates and MLPs around the attention are no part of these matrices.");
}

}  // namespace

void AnalysisRows::add(const JsonValue& row) {
  const std::string& kind = row.at("kind").as_string();
  if (kind == "run") runs.push_back(row);
  if (kind == "head") heads.push_back(row);
  if (kind == "map") maps.push_back(row);
  if (kind == "mix") mixes.push_back(row);
  if (kind == "growth") growths.push_back(row);
}

JsonValue image_row(const Picture& picture) {
  JsonValue::Array pixels;
  for (const std::uint8_t value : picture.image.pixels) pixels.emplace_back(static_cast<std::int64_t>(value));
  return JsonValue()
      .set("kind", "image")
      .set("sample", picture.sample)
      .set("item", picture.item)
      .set("class", picture.class_name)
      .set("height", picture.image.height)
      .set("width", picture.image.width)
      .set("channels", picture.image.channels)
      .set("pixels", pixels);
}

std::vector<std::string> run_names(const AnalysisRows& rows) {
  std::vector<std::string> names;
  // The first description in which all differ; the folder always does, unless it was given twice.
  const auto folder = [](const JsonValue& run) {
    std::string path = run.at("folder").as_string();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path.substr(path.rfind('/') + 1);
  };
  for (const int detail : {0, 1, 2}) {
    names.clear();
    for (const JsonValue& run : rows.runs) {
      const std::string& attention = run.at("attention").as_string();
      std::string name = attention == "mhla" ? "MHLA" : attention;
      if (detail == 1 && !run.at("blocks").is_null())
        name += fmt::format(" {} M={}{}", run.at("mix_init").as_string(),
                            run.at("blocks").at(0).as_int() * run.at("blocks").at(1).as_int(),
                            run.at("learn_mix").as_bool() ? "" : " frozen");
      if (detail == 2) name = folder(run);
      names.push_back(name);
    }
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) break;
  }
  return names;
}

double mean_of_heads(const AnalysisRows& rows, std::int64_t run, const char* field) {
  double sum = 0.0;
  std::int64_t count = 0;
  for (const JsonValue& head : rows.heads) {
    if (head.at("run").as_int() != run || head.at(field).is_null()) continue;
    sum += mean_in(head, field), ++count;
  }
  return count == 0 ? kNaN : sum / static_cast<double>(count);
}

Table run_table(const AnalysisRows& rows) {
  const std::vector<std::string> names = run_names(rows);
  Table table{{"run", "model", "blocks", "initial mix", "parameters", "top-1 (%)", "images/s", "rank", "above 1 %",
               "stable rank", "entropy"},
              {}};
  for (std::size_t i = 0; i < rows.runs.size(); ++i) {
    const JsonValue& run = rows.runs[i];
    const auto index = static_cast<std::int64_t>(i);
    const auto text = [&](const char* key, double factor, int digits) {
      return run.at(key).is_null() ? std::string("-") : number(factor * run.at(key).as_double(), digits);
    };
    const bool mixes = !run.at("blocks").is_null();
    table.rows.push_back(
        {names[i], run.at("model").as_string(), mixes ? side_by_side(run.at("blocks")) : "-",
         mixes ? run.at("mix_init").as_string() + (run.at("learn_mix").as_bool() ? "" : ", frozen") : "-",
         std::to_string(run.at("parameters").as_int()), text("top1", 100.0, 2), text("images_per_s", 1.0, 0),
         number(mean_of_heads(rows, index, "rank"), 1), number(mean_of_heads(rows, index, "rank_1pc"), 1),
         number(mean_of_heads(rows, index, "stable_rank"), 2), number(mean_of_heads(rows, index, "entropy"), 3)});
  }
  return table;
}

void add_analysis(HtmlReport& page, const AnalysisRows& rows) {
  const std::vector<std::string> names = run_names(rows);
  if (!rows.heads.empty()) add_heads(page, rows, names);
  add_maps(page, rows, names);
  add_mixes(page, rows, names);
  add_growth(page, rows, names);
  add_methods(page);
}

}  // namespace mhla::apps
