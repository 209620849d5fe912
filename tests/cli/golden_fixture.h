// Golden files in memory, to be changed, written and handed to `mhla verify --golden`.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "mhla/io/safetensors.h"
#include "mhla/testing/tensor.h"
#include "tests/cli/program.h"

namespace mhla {

struct Golden {
  std::map<std::string, Tensor> tensors;
  Metadata metadata;

  void write(const std::string& path) const {
    std::vector<NamedView> views;
    for (const auto& [name, tensor] : tensors) views.push_back({name, tensor.view()});
    write_safetensors(path, views, metadata);
  }
};

inline Golden read_golden(const std::string& path) {
  const Safetensors file = Safetensors::read(path);
  Golden golden;
  golden.metadata = file.metadata();
  for (std::size_t i = 0; i < file.size(); ++i) {
    const ConstView view = file.view(i);
    const bool integers = view.dtype == DType::kI64;  // as f64: tensors of tests are floats
    Tensor tensor(integers ? DType::kF64 : view.dtype, file.entry(i).shape);
    for (std::int64_t j = 0; j < tensor.numel(); ++j)
      tensor.set(j, integers ? static_cast<double>(static_cast<const std::int64_t*>(view.data)[j])
                             : load_f64(view.data, view.dtype, j));
    golden.tensors.emplace(std::string(file.entry(i).name), std::move(tensor));
  }
  return golden;
}

inline Tensor ones(std::vector<std::int64_t> shape) {
  Tensor tensor(DType::kF32, std::move(shape));
  tensor.fill(1.0);
  return tensor;
}

class GoldenTest : public testing::Test {
 protected:
  ProgramRun verify(const Golden& golden) {
    golden.write(folder.path("case.safetensors"));
    return run_program({"verify", "--golden", folder.path("case.safetensors"), "--backend", "ref"});
  }
  TemporaryFolder folder;
};

// Exit code 2, and the reason has all the words.
inline void expect_refusal(const ProgramRun& run, const std::vector<std::string>& words) {
  EXPECT_EQ(run.code, 2) << run.out << run.err;
  EXPECT_EQ(run.err.rfind("mhla: verify --golden: ", 0), 0u) << run.err;
  for (const std::string& word : words)
    EXPECT_NE(run.err.find(word), std::string::npos) << "'" << word << "' in " << run.err;
}

}  // namespace mhla
