// The page of `mhla analyze` and of `mhla demo`, from the rows that the analysis gave.
#pragma once

#include <string>
#include <vector>

#include "apps/engine/engine.h"
#include "mhla/io/json.h"
#include "mhla/io/report.h"

namespace mhla::apps {

// Rows as apps/engine/analyze.cpp makes them, sorted by kind.
struct AnalysisRows {
  std::vector<JsonValue> runs, heads, maps, mixes, growths;
  std::vector<Picture> pictures;
  void add(const JsonValue& row);  // of another kind: left out
};

// {"kind": "image", ..., "pixels": [...]}, as --json and analysis.json have it.
JsonValue image_row(const Picture& picture);

// What a run is called in tables and legends: its attention, with what tells it from the others of its kind.
std::vector<std::string> run_names(const AnalysisRows& rows);

// Mean over all heads and layers of a run of one field of its "head" rows; NaN where none has it.
double mean_of_heads(const AnalysisRows& rows, std::int64_t run, const char* field);

// Sections of the page: the table of runs, rank and entropy by layer and head, maps, mixing matrices, growth, methods.
void add_analysis(HtmlReport& page, const AnalysisRows& rows);

Table run_table(const AnalysisRows& rows);

}  // namespace mhla::apps
