// Flags that several commands have: one name, one range, one text. And what their values may be: CLI11's own ranges
// are written into every line of help, and their messages are not ours.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace mhla::apps {

namespace detail {

template <class Number>
CLI::Validator number_in(Number least, Number most, const std::string& expected) {
  return CLI::Validator(
      [least, most, expected](const std::string& text) {
        Number value = 0;
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool read = error == std::errc() && stop == text.data() + text.size();
        return read && value >= least && value <= most ? std::string() : "is " + text + ", expected " + expected;
      },
      "");
}

}  // namespace detail

inline CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return detail::number_in(least, most, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}
inline CLI::Validator is_positive() {
  return detail::number_in(std::int64_t{1}, std::int64_t{1} << 40, "a whole number of at least 1");
}
inline CLI::Validator is_seconds() { return detail::number_in(0.0, 1e9, "seconds, 0 or more"); }
inline CLI::Validator is_seed() {  // CLI11 takes -1 for 2^64 - 1, and what is beyond that for the same
  return detail::number_in(std::uint64_t{0}, ~std::uint64_t{0}, "a whole number from 0 to 18446744073709551615");
}
inline CLI::Validator one_of(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](const std::string& text) {
        std::string all;
        for (const std::string& name : names) {
          if (name == text) return std::string();
          all += (all.empty() ? "" : &name == &names.back() ? " or " : ", ") + name;
        }
        return "is " + text + ", expected " + all;
      },
      "");
}

template <class Whole>
void add_threads(CLI::App& command, Whole& threads) {
  command.add_option("--threads", threads, "CPU threads; 0: all")->check(whole_number(0, 1024))->capture_default_str();
}

inline void add_json(CLI::App& command, bool& json,
                     const char* help = "one JSON object per line on stdout, text on stderr") {
  command.add_flag("--json", json, help);
}

// Of commands that open a run.
inline void add_run_flags(CLI::App& command, std::string& weights, std::string& device) {
  command
      .add_option("--weights", weights,
                  "model, ema: the running average of the weights, or best: those of the best evaluation")
      ->check(one_of({"model", "ema", "best"}))
      ->capture_default_str();
  command.add_option("--device", device, "cpu, cuda or cuda:N (default: as in training)")->type_name("NAME");
}

inline void add_precision(CLI::App& command, std::string& precision, const char* help = "of the weights: f32 or bf16") {
  command.add_option("--precision", precision, help)->check(one_of({"f32", "bf16"}))->capture_default_str();
}

// Of commands that time something.
inline void add_min_time(CLI::App& command, double& seconds) {
  command.add_option("--min-time", seconds, "seconds of timed work for each row")
      ->check(is_seconds())
      ->capture_default_str();
}

}  // namespace mhla::apps
