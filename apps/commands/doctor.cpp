// mhla doctor: what was found on this machine, and which kernel candidates can run and why not the others.
// Nothing heavy is opened: LibTorch is only looked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "apps/cli/candidates.h"
#include "apps/cli/engine.h"
#include "apps/cli/flags.h"
#include "apps/cli/host.h"
#include "apps/cli/openblas.h"
#include "apps/cli/output.h"
#include "apps/commands.h"
#include "mhla/core/cuda.h"
#include "mhla/core/threads.h"
#include "mhla/io/codecs/image.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/kernels/common/simd/targets.h"

namespace mhla::apps {
namespace {

std::string cache_text(const CpuFacts& cpu) {
  const auto part = [](const char* name, std::int64_t bytes) {
    return fmt::format("{} {}", name, bytes > 0 ? bytes_text(bytes) : "unknown");
  };
  return fmt::format("{} and {} per core, {} shared", part("L1d", cpu.l1d_bytes), part("L2", cpu.l2_bytes),
                     part("L3", cpu.l3_bytes));
}

void report_machine(const Output& out, JsonValue& row) {
  const CpuFacts cpu = read_cpu_facts();
  const std::vector<std::string> targets = simd_targets();
  const std::string in_use = simd_target();
  out.line(fmt::format("mhla        {} ({}, {})", MHLA_VERSION, compiler_text(), MHLA_BUILD_TYPE));
  out.line(fmt::format("processor   {}", cpu.model));
  out.line(fmt::format("features    {}", fmt::join(cpu.features, " ")));
  out.line(fmt::format("caches      {}", cache_text(cpu)));
  out.line(fmt::format("memory      {}, {} available", bytes_text(cpu.memory_bytes), bytes_text(cpu.available_bytes)));
  out.line(fmt::format("threads     {} found, {} used by default", cpu.threads, default_threads()));
  out.line(fmt::format("vectors     {} in use; supported here: {}", in_use, fmt::join(targets, " ")));
  row.set("version", MHLA_VERSION).set("compiler", compiler_text()).set("build_type", MHLA_BUILD_TYPE);
  row.set("cpu", JsonValue()
                     .set("model", cpu.model)
                     .set("features", json_list(cpu.features))
                     .set("l1d_bytes", cpu.l1d_bytes)
                     .set("l2_bytes", cpu.l2_bytes)
                     .set("l3_bytes", cpu.l3_bytes)
                     .set("memory_bytes", cpu.memory_bytes)
                     .set("available_bytes", cpu.available_bytes)
                     .set("threads", cpu.threads));
  row.set("default_threads", default_threads());
  row.set("simd", JsonValue().set("target", in_use).set("supported", json_list(targets)));
}

// How processes that train together reach each other. What this build can was settled when it was configured.
void report_backends(const Output& out, JsonValue& row, const std::string& no_libtorch) {
  const char* needs = "training needs LibTorch";
  std::string no_nccl = MHLA_NCCL_MISSING;
  if (!no_libtorch.empty()) no_nccl = needs;
  if (no_nccl.empty() && cuda_device_count() == 0) no_nccl = "there is no CUDA device";
  const std::string gloo = no_libtorch.empty() ? "Gloo" : fmt::format("Gloo: not available: {}", needs);
  const std::string nccl = no_nccl.empty() ? "NCCL, where every process has a CUDA device of its own"
                                           : fmt::format("NCCL: not available: {}", no_nccl);
  out.line(fmt::format("processes   {}; {}", gloo, nccl));
  JsonValue backends;
  backends.set("gloo", no_libtorch.empty()).set("nccl", no_nccl.empty());
  if (!no_libtorch.empty()) backends.set("gloo_reason", needs);
  if (!no_nccl.empty()) backends.set("nccl_reason", no_nccl);
  row.set("backends", backends);
}

void report_libraries(const Output& out, JsonValue& row) {
  const OpenBlas blas;
  out.line(
      fmt::format("BLAS        {}", blas.found() ? fmt::format("{} ({})", blas.path(), blas.config()) : blas.reason()));
  JsonValue blas_row;
  blas_row.set("available", blas.found());
  if (blas.found()) blas_row.set("path", blas.path()).set("config", blas.config()).set("core", blas.core());
  if (!blas.found()) blas_row.set("reason", blas.reason());
  row.set("blas", blas_row);

  std::string reason;
  const std::string path = find_engine(reason);
  out.line(fmt::format("LibTorch    {}", reason.empty() ? "engine in " + path : reason));
  JsonValue torch_row;
  torch_row.set("available", reason.empty());
  if (reason.empty()) torch_row.set("path", path);
  if (!reason.empty()) torch_row.set("reason", reason);
  row.set("libtorch_rivals", torch_row);

  report_backends(out, row, reason);

  JsonValue images;
  std::string missing;
  for (const ImageFormat& format : image_formats()) {
    images.set(std::string(format.name), format.decode != nullptr);
    if (format.decode == nullptr) missing += fmt::format("; {}: not built in ({})", format.name, format.library);
  }
  out.line(fmt::format("images      {}{}", readable_formats(", "), missing));
  row.set("images", images);

  out.line(fmt::format("tokenizers  bytes, byte-level BPE, SentencePiece{}",
                       has_sentencepiece() ? "" : ": not built in (libsentencepiece-dev)"));
  row.set("sentencepiece", has_sentencepiece());
}

void report_devices(const Output& out, JsonValue& row) {
  JsonValue devices = JsonValue::array();
  for (int i = 0; i < cuda_device_count(); ++i) {
    const DeviceFacts d = device_facts(i);
    out.line(
        fmt::format("CUDA        cuda:{} {}, compute capability {}.{}, {} multiprocessors, {}, L2 {}, driver for {}", i,
                    d.name, d.major, d.minor, d.multiprocessors, bytes_text(d.memory_bytes), bytes_text(d.l2_bytes),
                    version_text(d.driver_version)));
    devices.push(JsonValue()
                     .set("name", d.name)
                     .set("compute_capability", fmt::format("{}.{}", d.major, d.minor))
                     .set("multiprocessors", d.multiprocessors)
                     .set("memory_bytes", d.memory_bytes)
                     .set("l2_bytes", d.l2_bytes)
                     .set("shared_bytes_per_block", d.shared_bytes_per_block)
                     .set("memory_gbytes_per_s", d.memory_gbytes_per_s)
                     .set("driver", version_text(d.driver_version))
                     .set("runtime", version_text(d.runtime_version)));
  }
  const std::string missing = cuda_missing();
  if (!missing.empty()) out.line(fmt::format("CUDA        no devices: {}", missing));
  JsonValue cuda;
  cuda.set("built", cuda_built()).set("devices", devices);
  if (!missing.empty()) cuda.set("reason", missing);
  row.set("cuda", cuda);
}

void report_candidates(const Output& out, JsonValue& row) {
  static constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  out.line();
  const TextTable table(
      out, {{"form", -14}, {"candidate", -10}, {"f32", -4}, {"bf16", -4}, {"f16", -4}, {"f64", -4}, {"why not", -1}});
  table.head();
  JsonValue rows = JsonValue::array();
  for (const OpForm form : {OpForm::kBidirectional, OpForm::kCausal, OpForm::kDecode}) {
    std::vector<std::vector<CandidateFact>> by_dtype;
    for (const DType dtype : kDTypes) by_dtype.push_back(candidate_facts(form, dtype));
    for (std::size_t i = 0; i < by_dtype.front().size(); ++i) {
      std::vector<std::string> cells{name_of(form), by_dtype.front()[i].name};
      JsonValue candidate;
      candidate.set("form", name_of(form)).set("name", by_dtype.front()[i].name);
      std::vector<std::string> takes;
      std::string reason;
      for (std::size_t d = 0; d < by_dtype.size(); ++d) {
        const std::string& why = by_dtype[d][i].reason;
        cells.emplace_back(why.empty() ? "yes" : "no");
        if (why.empty()) takes.emplace_back(name_of(kDTypes[d]));
        if (!why.empty() && reason.empty()) reason = why;
      }
      cells.push_back(reason);
      table.row(cells);
      candidate.set("available", !takes.empty()).set("dtypes", json_list(takes));
      if (!reason.empty()) candidate.set("reason", reason);
      rows.push(candidate);
    }
  }
  out.line();
  out.line("ref is the definition in double precision: it runs when asked for by name, and for f64.");
  row.set("candidates", rows);
}

}  // namespace

void add_doctor(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("doctor", "show what was found: processor, libraries, kernel candidates");
  static bool json = false;
  add_json(*command, json, "one JSON object on stdout, text on stderr");
  command->callback([&job] {
    job = [] {
      const Output out(json);
      JsonValue row;
      report_machine(out, row);
      report_libraries(out, row);
      report_devices(out, row);
      report_candidates(out, row);
      out.row(row);
      return kDone;
    };
  });
}

}  // namespace mhla::apps
