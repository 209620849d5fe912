// The analysis of runs, for `mhla analyze` and `mhla demo`.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/output.h"
#include "apps/commands/analyze_report.h"
#include "mhla/io/folder.h"

namespace mhla::apps {

// Rows go to `rows` and, with --json, to stdout. Returns the exit code.
int collect_analysis(const AnalyzeRequest& request, const Output& out, AnalysisRows& rows);

// FOLDER/name.html and FOLDER/name.json, which holds the rows.
void write_analysis(const HtmlReport& page, const AnalysisRows& rows, OutputFolder& folder, const std::string& name);

}  // namespace mhla::apps
