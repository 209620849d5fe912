// Finds and opens libmhla_engine.so (apps/engine/engine.h) when a command asks for it. It lies beside the program, in
// ../lib next to it, or where MHLA_ENGINE points.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "apps/cli/output.h"
#include "apps/engine/engine.h"

namespace mhla::apps {

// Where the library lies, or an empty string with `reason` filled. Opens nothing.
std::string find_engine(std::string& reason);

// LibTorch, OpenBLAS and the kernels have a pool of threads each. kShared: their idle workers sleep soon, so that the
// others have the cores. kOwn: each waits as it does by itself, for a fair race. The first call decides.
enum class Cores { kShared, kOwn };

// The table, or null with `reason` filled. Opened once.
const Engine* open_engine(std::string& reason, Cores cores = Cores::kShared);
const Engine& open_engine();  // throws mhla::Error with the reason

// A request run by a function of the table; returns the exit code. What went wrong has been said on stderr.
template <class Request, class Listener>
int run_engine(Outcome (*Engine::*function)(const Request&, Listener&), const std::type_identity_t<Request>& request,
               std::type_identity_t<Listener>& listener) {
  const Outcome outcome = (open_engine().*function)(request, listener);
  if (outcome.code != 0 && !outcome.reason.empty()) complain(outcome.reason);
  return outcome.code;
}

// The result of a function of the table. Throws mhla::Error for the caller's mistake, std::runtime_error for a failure.
void expect_done(const Outcome& outcome);
template <class Result, class Request>
Result engine_result(Outcome (*Engine::*function)(const Request&, Result&), const Request& request) {
  Result result;
  expect_done((open_engine().*function)(request, result));
  return result;
}

// Rows and progress to functions.
template <class HandleRow, class HandleProgress>
class Rows : public train::Observer {
 public:
  Rows(HandleRow handle_row, HandleProgress handle_progress)
      : row_(std::move(handle_row)), progress_(std::move(handle_progress)) {}
  void row(const JsonValue& row) override { row_(row); }
  void progress(const JsonValue& row) override { progress_(row); }

 private:
  HandleRow row_;
  HandleProgress progress_;
};

// Whether the row is a warning; it has been said then.
bool said_warning(const JsonValue& row);

}  // namespace mhla::apps
