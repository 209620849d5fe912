#include "apps/cli/train_screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace mhla::apps {
namespace {

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

bool is_share(const std::string& key) {
  return ends_with(key, "accuracy") || ends_with(key, "top1") || ends_with(key, "top5");
}

std::string number_text_of(const JsonValue::Member& member) {
  const double value = member.value.as_double();
  const std::string& key = member.key;
  if (is_share(key)) return fmt::format("{} {:.2f} %", key, 100.0 * value);
  if (key == "mfu") return fmt::format("mfu {:.1f} %", 100.0 * value);
  if (ends_with(key, "perplexity")) return fmt::format("{} {:.2f}", key, value);
  if (key == "epoch") return fmt::format("epoch {:.2f}", value);
  if (key == "lr") return fmt::format("lr {:.2e}", value);
  if (key == "grad_norm") return fmt::format("grad_norm {:.3g}", value);
  if (key == "eta_s") return clock_text(value) + " left";
  if (key == "seconds") return fmt::format("{:.1f} s", value);
  if (ends_with(key, "_per_s")) return fmt::format("{:.0f} {}/s", value, key.substr(0, key.size() - 6));
  return fmt::format("{} {:.4f}", key, value);
}

}  // namespace

std::string length_text(const JsonValue& row) {
  const std::string& policy = row.at("length_policy").as_string();
  return policy == "none" ? "" : fmt::format("; length policy {} ({})", policy, row.at("length_plan").as_string());
}

std::string clock_text(double seconds) {
  if (!(seconds < 3.6e6)) return "?";
  const auto whole = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string row_text(const JsonValue& row) {
  std::string text;
  for (const JsonValue::Member& member : row.members()) {
    if (member.key == "of" || !member.value.is_number()) continue;
    if (!text.empty()) text += "  ";
    if (member.key == "step") {
      const JsonValue* of = row.find("of");
      text += fmt::format("step {}", member.value.as_int()) + (of == nullptr ? "" : fmt::format("/{}", of->as_int()));
    } else {
      text += number_text_of(member);
    }
  }
  return text;
}

std::string bar_of(double share) {
  constexpr int kWidth = 10;
  const int full = std::clamp(static_cast<int>(share * kWidth), 0, kWidth);
  std::string bar(static_cast<std::size_t>(full), '=');
  if (full < kWidth) bar += '>';
  bar.resize(kWidth, ' ');
  return fmt::format("[{}] {:3.0f} %", bar, 100.0 * share);
}

std::string bar_text(const JsonValue& row, int columns) {
  const std::string bar = bar_of(row.at("step").as_double() / std::max(1.0, row.at("of").as_double()));
  JsonValue shown;
  for (const JsonValue::Member& member : row.members()) {
    const bool aside =
        member.key == "lr" || member.key == "grad_norm" || member.key == "epoch" || member.key == "eta_s";
    if (!aside) shown.set(member.key, member.value);
  }
  const JsonValue *kind = row.find("kind"), *samples = row.find("samples");
  if (kind != nullptr && (kind->as_string() == "eval" || kind->as_string() == "samples")) {
    const std::string text = fmt::format(
        "{}  {}  {}/{} {}", bar, kind->as_string() == "eval" ? "evaluating" : "sampling", row.at("step").as_int(),
        row.at("of").as_int(), samples == nullptr ? "tokens" : samples->as_string());
    return text.substr(0, static_cast<std::size_t>(std::max(columns, 1)));
  }
  const JsonValue* eta = row.find("eta_s");  // first: a narrow terminal cuts the end
  const std::string left = eta == nullptr ? "" : row_text(JsonValue().set("eta_s", *eta)) + "  ";
  const std::string text = fmt::format("{}  {}{}", bar, left, row_text(shown));
  return text.substr(0, static_cast<std::size_t>(std::max(columns, 1)));
}

namespace {

// Of the terminal behind stderr; a line that wraps cannot be drawn over.
int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

}  // namespace

TrainScreen::TrainScreen(const Output& out) : out_(out), terminal_(isatty(STDERR_FILENO) != 0) {}

void TrainScreen::show(const JsonValue& row, bool progress) {
  const std::string& kind = row.at("kind").as_string();
  if (progress) {
    out_.progress(bar_text(row, terminal_columns()));
    return;
  }
  out_.row(row);
  if (kind == "step") {
    if (!terminal_) out_.line(row_text(row));
  } else if (kind == "eval") {
    out_.line("eval  " + row_text(row));
  } else if (kind == "start") {
    const JsonValue *tested = row.find("tested_on"), *resumed = row.find("resumed"), *warmup = row.find("warmup_steps");
    const JsonValue* ranks = row.find("ranks");
    out_.line(fmt::format("{} steps on {}{}{}{}{}", row.at("of").as_int(), row.at("device").as_string(),
                          ranks == nullptr ? "" : fmt::format(", {} processes", ranks->as_int()),
                          warmup == nullptr ? "" : fmt::format(", warm-up shortened to {}", warmup->as_int()),
                          tested == nullptr ? "" : ", tested on " + tested->as_string(),
                          resumed == nullptr ? "" : ", going on from " + resumed->as_string()));
    if (const JsonValue* init = row.find("init")) out_.line("init  " + init->as_string());
    if (const JsonValue* changed = row.find("changed")) {
      for (const JsonValue& line : changed->items()) out_.line("init  " + line.as_string());
    }
  } else if (kind == "best") {
    if (!terminal_)
      out_.line(fmt::format("best  {}  {}", row_text(JsonValue().set(row.at("metric").as_string(), row.at("value"))),
                            row.at("path").as_string()));
  } else if (kind == "samples") {
    if (!terminal_) out_.line("samples  " + row.at("path").as_string());
  } else if (kind == "tokens" || kind == "context") {
    out_.line(kind + "  " + row.at("text").as_string());
  } else if (kind == "checkpoint") {
    if (!terminal_) out_.line("checkpoint  " + row.at("path").as_string());
  } else if (kind == "warning") {
    out_.progress_done();
    complain(row.at("text").as_string());
  } else if (kind == "stopped" || kind == "failed") {
    out_.progress_done();  // and the ^C that the terminal has put behind the bar
  } else if (kind == "end") {
    out_.line("weights  " + row.at("path").as_string());
  }
}

}  // namespace mhla::apps
