// The analysis of runs, for `mhla analyze` and `mhla demo`.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/output.h"
#include "apps/commands/analyze_report.h"
#include "mhla/io/folder.h"

namespace mhla::apps {

struct AnalyzeOptions {
  std::vector<std::string> runs, queries;  // a query: "ROW,COLUMN" of the token grid
  std::string out, data, device, weights = "model";
  std::int64_t samples = 64, maps = 3, layer = -1, largest = 1024, threads = 0;
  bool json = false;
};

// Rows go to `rows` and, with --json, to stdout. Returns the exit code.
int collect_analysis(const AnalyzeOptions& options, const Output& out, AnalysisRows& rows);

// FOLDER/name.html and FOLDER/name.json, which holds the rows.
void write_analysis(const HtmlReport& page, const AnalysisRows& rows, OutputFolder& folder, const std::string& name);

}  // namespace mhla::apps
