// err = max |got - want| / max |want| over a tensor, NaN counting as failure; limit 1e-4, 3e-4 for the LM layer, which
// was recorded on a GPU. Integers: max |got - want|, limit 0 or what the family allows. All results of a case are
// computed first; only then are its expected values opened. The causal operator runs here, whole modules in the engine.
#include "apps/verify/verify_golden.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "apps/cli/candidates.h"
#include "apps/cli/engine.h"
#include "apps/commands.h"
#include "apps/verify/golden_case.h"
#include "mhla/core/error.h"
#include "mhla/io/folder.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/testing/run_case.h"
#include "mhla/testing/run_case_device.h"

namespace mhla::apps {
namespace {

struct Tally {
  int files = 0, cases = 0, checked = 0, failed = 0, not_judged = 0;
};

struct Result {
  std::string backend;
  std::map<std::string, Tensor> tensors;  // by judged name
};

double golden_error(const Tensor& got, const Tensor& want, bool integers) {
  double difference = 0.0, largest = 0.0;
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const double off = std::abs(got.at(i) - want.at(i));
    if (!std::isfinite(off)) return std::nan("");
    difference = std::max(difference, off);
    largest = std::max(largest, std::abs(want.at(i)));
  }
  if (integers || difference == 0.0) return difference;
  return difference / largest;  // infinite where all of `want` is 0
}

Result compute(const CausalCase& c, const std::string& backend) {
  Result result{backend, {}};
  ChunkwiseParams params;
  params.q = c.q.view();
  params.k = c.k.view();
  params.v = c.v.view();
  params.mix = c.mix.view();
  params.chunk = c.chunk;
  params.feature_map = FeatureMap::kIdentity;  // q and k come through their feature map already
  params.normalizer = Normalizer::kNone;
  params.scale = c.scale;
  ChunkwiseGrads grads;
  if (c.dout.given()) grads.dout = c.dout.view();
  std::optional<DevicePlace> device;
  if (on_device(backend)) device.emplace(0, nullptr);
  const std::pair<ConstView*, const char*> inputs[] = {
      {&params.q, "q"}, {&params.k, "k"}, {&params.v, "v"}, {&params.mix, "mix"}, {&grads.dout, "dout"}};
  for (const auto& [view, name] : inputs)
    if (device) device->move_input(*view, name);
  const auto output = [&](const char* name, const std::vector<std::int64_t>& shape) {
    Tensor& tensor = result.tensors[name] = Tensor(DType::kF32, shape);
    View view = tensor.view();
    if (device) device->move_output(view, tensor.guarded_bytes(), name);
    return view;
  };
  const RunOptions run{.candidate = backend};
  std::vector<std::int64_t> out_shape = c.q.shape();
  out_shape.back() = c.v.shape().back();
  chunkwise_forward(params, output("out", out_shape), run);
  if (c.dout.given()) {
    grads.dq = output("grad.in.q", c.q.shape());
    grads.dk = output("grad.in.k", c.k.shape());
    grads.dv = output("grad.in.v", c.v.shape());
    grads.dmix = output("grad.in.mix", c.mix.shape());
    chunkwise_backward(params, grads, run);
  }
  if (device) device->finish("a golden case");
  return result;
}

class GoldenRun {
 public:
  GoldenRun(const Output& out, std::vector<std::string> backends)
      : out_(out),
        backends_(std::move(backends)),
        table_(out, {{"case", -28}, {"backend", -8}, {"tensor", -34}, {"error", 10}, {"limit", 8}, {"", -6}}) {
    table_.head();
  }

  void judge_file(const std::filesystem::path& path) {
    ++tally.files;
    out_.line(path.string());
    try {
      const Safetensors file = Safetensors::read(path);
      const std::vector<GoldenEntry> entries = golden_entries(file);
      if (entries.empty()) out_.line("  no cases in this file");
      for (const GoldenEntry& entry : entries) judge_case(path, file, entry);
    } catch (const Error& error) {
      not_judged(path, "", error.what());
    }
  }

  Tally tally;

 private:
  void judge_case(const std::filesystem::path& path, const Safetensors& file, const GoldenEntry& entry) {
    try {
      const JsonValue config = parse_json(entry.config, "metadata");
      if (!config.is_object()) fail("metadata is no JSON object");
      const GoldenFamily family = family_of(config);
      std::vector<Result> results;
      std::vector<std::string> judged;
      if (family.name == kCausalOperator) {
        const CausalCase c = read_causal_case(file, entry, config);
        for (const std::string& backend : backends_) results.push_back(compute(c, backend));
        judged = c.judged;
      } else {
        const ModuleCase c = read_module_case(file, entry, family);
        for (const std::string& backend : module_backends())
          results.push_back({backend, compute_module({std::string(family.name), backend, config, c.inputs})});
        judged = c.judged;
        check_names(judged, results.front().tensors);
      }
      ++tally.cases;
      for (const std::string& name : judged) {
        const Tensor want = read_expected(file, entry, name, results.front().tensors.at(name).shape());
        const bool integers = is_exact(file, entry, name);
        for (const Result& result : results)
          judge_tensor(path, entry.name, family, result.backend, name, result.tensors.at(name), want, integers);
      }
    } catch (const Error& error) {
      not_judged(path, entry.name, error.what());
    }
  }

  static std::map<std::string, Tensor> compute_module(const GoldenRequest& request) {
    std::map<std::string, Tensor> results;
    const Outcome outcome = open_engine().golden_compute(request, results);
    if (outcome.code != kDone) fail(outcome.reason);
    return results;
  }

  // The backends of the operator that can run a whole module. Opens the engine on first use.
  std::vector<std::string> module_backends() const {
    std::vector<std::string> able;
    for (const std::string& backend : backends_) {
      if (open_engine().golden_runs_on(backend)) able.push_back(backend);
    }
    if (able.empty()) fail("a module cannot be run by ", fmt::format("{}", fmt::join(backends_, ", ")), " here");
    return able;
  }

  // What the file expects is computed, and every gradient that is computed is expected.
  static void check_names(const std::vector<std::string>& judged, const std::map<std::string, Tensor>& computed) {
    for (const std::string& name : judged) {
      if (computed.count(name) == 0) fail("tensor ", name, " is no result of this family");
    }
    for (const auto& [name, tensor] : computed) {
      const bool expected = std::find(judged.begin(), judged.end(), name) != judged.end();
      if (name.rfind("grad.", 0) == 0 && !expected) fail(name, " is missing");
    }
  }

  void judge_tensor(const std::filesystem::path& path, const std::string& name, const GoldenFamily& family,
                    const std::string& backend, const std::string& tensor, const Tensor& got, const Tensor& want,
                    bool integers) {
    const double error = golden_error(got, want, integers), limit = integers ? family.levels : family.limit;
    const bool good = error <= limit;  // false for NaN
    ++tally.checked;
    if (!good) ++tally.failed;
    table_.row(
        {name, backend, tensor, fmt::format("{:.2e}", error), fmt::format("{:.0e}", limit), good ? "ok" : "FAILED"});
    out_.row(JsonValue()
                 .set("kind", "check")
                 .set("file", path.string())
                 .set("case", name)
                 .set("family", family.name)
                 .set("backend", backend)
                 .set("tensor", tensor)
                 .set("error", error)
                 .set("limit", limit)
                 .set("ok", good));
  }

  void not_judged(const std::filesystem::path& path, const std::string& name, const std::string& reason) {
    ++tally.not_judged;
    std::fflush(stdout);
    // The reader of the file opens its messages with the path; ours come without.
    const std::string where = reason.rfind(path.string(), 0) == 0 ? "" : path.string() + ": ";
    complain(str("verify --golden: ", where, name.empty() ? "" : "case '" + name + "': ", reason));
    row_not_judged(path, name, reason);
  }

  void row_not_judged(const std::filesystem::path& path, const std::string& name, const std::string& reason) const {
    out_.row(JsonValue()
                 .set("kind", "not_judged")
                 .set("file", path.string())
                 .set("case", name.empty() ? JsonValue() : JsonValue(name))
                 .set("reason", reason));
  }

  const Output& out_;
  std::vector<std::string> backends_;
  TextTable table_;
};

std::vector<std::filesystem::path> golden_files(const std::string& path) {
  if (!is_there(path)) fail("verify --golden: ", path, " does not exist");
  if (!is_folder(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& item : std::filesystem::directory_iterator(path))
    if (item.path().extension() == ".safetensors" && !item.is_directory()) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int verify_golden(const std::string& path, const std::string& backend, const Output& out) {
  std::vector<std::string> backends = available_candidates(OpForm::kCausal, DType::kF32);
  if (!backend.empty()) {
    require_available(backend, OpForm::kCausal, DType::kF32, "verify");
    backends = {backend};
  }
  const std::vector<std::filesystem::path> files = golden_files(path);
  GoldenRun run(out, backends);
  for (const std::filesystem::path& file : files) run.judge_file(file);
  const Tally& t = run.tally;
  const int code = t.not_judged > 0 ? kCallersMistake : t.failed > 0 || t.checked == 0 ? kFailed : kDone;
  out.line(fmt::format("{} files, {} cases, {} tensors checked, {} failed, {} not judged{}", t.files, t.cases,
                       t.checked, t.failed, t.not_judged, t.checked == 0 ? ": nothing was checked" : ""));
  if (t.checked == 0 && t.not_judged == 0) complain(str("verify --golden: nothing was checked in ", path));
  out.row(JsonValue()
              .set("kind", "summary")
              .set("files", t.files)
              .set("cases", t.cases)
              .set("checked", t.checked)
              .set("failed", t.failed)
              .set("not_judged", t.not_judged)
              .set("ok", code == kDone));
  return code;
}

}  // namespace mhla::apps
