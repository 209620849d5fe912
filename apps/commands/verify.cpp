// mhla verify: the built-in self-check, or with --golden the recorded outputs of the published code.
#include <CLI/CLI.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/commands.h"
#include "apps/verify/verify_golden.h"
#include "apps/verify/verify_self.h"
#include "mhla/core/error.h"
#include "mhla/core/threads.h"
#include "mhla/kernels/common/simd/targets.h"

namespace mhla::apps {
namespace {

struct VerifyOptions {
  std::string golden, backend, simd_target;
  std::vector<std::string> dtypes;
  int threads = 0;
  bool quick = false;
  bool json = false;
};

}  // namespace

void add_verify(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("verify", "check every available kernel candidate");
  static VerifyOptions options;
  command->add_option("--golden", options.golden, "a golden file, or a folder of them, to recompute")
      ->type_name("FILE|DIR");
  command->add_option("--backend", options.backend, "one candidate instead of all: sm90, sm80, cuda, simd, ref")
      ->type_name("NAME");
  command->add_option("--dtype", options.dtypes, "f32, bf16, f16, joined by commas (default: all)")
      ->type_name("NAME,...")
      ->delimiter(',');
  command
      ->add_option("--simd-target", options.simd_target,
                   "instruction set of the simd candidate, one that `mhla doctor` lists")
      ->type_name("NAME");
  add_threads(*command, options.threads);
  command->add_flag("--quick", options.quick, "a small part of the cases, for slow tools such as compute-sanitizer");
  add_json(*command, options.json);
  command->callback([&job, command] {
    job = [command] {
      const Output out(options.json);
      if (!options.simd_target.empty()) use_simd_target(options.simd_target);
      set_default_threads(threads_for(options.threads));
      if (command->count("--golden") > 0 && command->count("--dtype") > 0)
        fail("verify: --dtype with --golden, expected one of them: golden files have their own");
      if (command->count("--golden") > 0) return verify_golden(options.golden, options.backend, out);
      return verify_self(options.backend, options.dtypes, options.quick, out);
    };
  });
}

}  // namespace mhla::apps
