// mhla: the command line. Parses, runs one job, and turns whatever goes wrong into one line on stderr and an
// exit code: 0 done, 1 a check or run failed, 2 the caller's mistake.
#include <filesystem>
#include <new>

#include "apps/cli/command_line.h"
#include "apps/cli/output.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla::apps {
namespace {

int parse_and_run(int argc, char** argv) {
  Job job;
  const std::unique_ptr<CLI::App> app = make_parser(job);
  try {
    parse_words(*app, std::vector<std::string>(argv + 1, argv + argc));
  } catch (const CLI::Success& asked_for) {  // --help, --version
    return app->exit(asked_for) == 0 ? kDone : kFailed;
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
