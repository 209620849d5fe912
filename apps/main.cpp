// mhla: the command line. Parses, runs one job, and turns whatever goes wrong into one line on stderr and an
// exit code: 0 done, 1 a check or run failed, 2 the caller's mistake.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <new>

#include "apps/cli/output.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla::apps {
namespace {

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Multi-Head Linear Attention: check it, time it, train it, see it."};
  app.name("mhla");
  app.set_version_flag("--version", "mhla " MHLA_VERSION);
  app.require_subcommand(1);
  Job job;
  add_doctor(app, job);
  add_verify(app, job);
  add_bench(app, job);
  add_data(app, job);
  add_train(app, job);
  add_eval(app, job);
  add_generate(app, job);
  add_analyze(app, job);
  add_demo(app, job);
  add_inspect(app, job);
  add_convert(app, job);
  if (argc > 1 && argv[1][0] != '-') {
    bool known = false;
    std::string names;
    for (const CLI::App* command : app.get_subcommands({})) {
      known = known || command->get_name() == argv[1];
      names += (names.empty() ? "" : ", ") + command->get_name();
    }
    if (!known) fail("unknown command '", argv[1], "', expected one of ", names);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked_for) {  // --help, --version
    return app.exit(asked_for) == 0 ? kDone : kFailed;
  } catch (const CLI::ParseError& error) {
    complain(str(error.what(), " (run with --help for the options)"));
    return kCallersMistake;
  }
  return job();
}

}  // namespace
}  // namespace mhla::apps

int main(int argc, char** argv) {
  using namespace mhla::apps;
  int code = kFailed;
  try {
    try {
      code = parse_and_run(argc, argv);
    } catch (const std::filesystem::filesystem_error& error) {
      mhla::fail_as(error);
    }
  } catch (const mhla::Error& error) {
    complain(error.what());
    code = kCallersMistake;
  } catch (const std::bad_alloc&) {
    complain("out of memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  if (!flush_output()) {
    complain("could not write to stdout");
    code = code == kDone ? kFailed : code;
  }
  return code;
}
