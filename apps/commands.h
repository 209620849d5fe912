// The subcommands of `mhla`. Each add_* describes one to the parser; parsing leaves the chosen job in `job`,
// which main() then runs. A job returns the exit code: 0 done, 1 a check or run failed. The caller's mistakes
// are thrown as mhla::Error and become exit code 2.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace mhla::apps {

using Job = std::function<int()>;

void add_doctor(CLI::App& app, Job& job);
void add_verify(CLI::App& app, Job& job);
void add_bench(CLI::App& app, Job& job);
void add_data(CLI::App& app, Job& job);
void add_train(CLI::App& app, Job& job);
void add_eval(CLI::App& app, Job& job);
void add_predict(CLI::App& app, Job& job);
void add_export(CLI::App& app, Job& job);
void add_generate(CLI::App& app, Job& job);
void add_sample(CLI::App& app, Job& job);
void add_analyze(CLI::App& app, Job& job);
void add_report(CLI::App& app, Job& job);
void add_demo(CLI::App& app, Job& job);
void add_inspect(CLI::App& app, Job& job);
void add_convert(CLI::App& app, Job& job);

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kCallersMistake = 2;

}  // namespace mhla::apps
