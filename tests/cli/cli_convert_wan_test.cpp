// mhla convert of Wan transformers: names in and out, softmax to MHLA and back.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "mhla/io/json.h"
#include "tests/cli/dit_fixture.h"
#include "tests/cli/expect.h"
#include "tests/cli/train_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

// Of the recorded wan_original and wan_diffusers.
JsonValue recorded_config(const std::string& name) {
  const Safetensors golden = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/video/wan_transformer.safetensors");
  return parse_json(golden.metadata().at(name), name);
}

void write_wan(const std::string& folder, const std::string& name, const std::string& class_name) {
  fs::create_directories(folder);
  write_recorded("video/wan_transformer.safetensors", name, folder + "/diffusion_pytorch_model.safetensors");
  JsonValue config = JsonValue::object();
  config.set("_class_name", class_name);
  const JsonValue recorded = recorded_config(name);
  const std::set<std::string> others{"family", "names", "time", "text_lens", "seed", "param_case", "note"};
  for (const JsonValue::Member& member : recorded.members())
    if (others.count(member.key) == 0) config.set(member.key, member.value);
  write_file(folder + "/config.json", write_json(config));
}

class CliConvertWan : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    write_wan(folder.path("original"), "wan_original", "WanModel");
    write_wan(folder.path("diffusers"), "wan_diffusers", "WanTransformer3DModel");
  }
  void convert(const std::string& from, const std::string& to, const std::vector<std::string>& more = {}) {
    const ProgramRun run = run_program(joined({"convert", folder.path(from), folder.path(to)}, more));
    EXPECT_EQ(run.code, 0) << run.err;
  }
  [[nodiscard]] Safetensors weights(const std::string& name) const {
    return Safetensors::read(folder.path(name) + "/diffusion_pytorch_model.safetensors");
  }
  // Every tensor of `some` is in `all`, bit for bit.
  void expect_kept(const std::string& some, const std::string& all, std::size_t more) {
    const Safetensors a = weights(some), b = weights(all);
    EXPECT_EQ(b.size(), a.size() + more);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::string name(a.entry(i).name);
      ASSERT_TRUE(b.contains(name)) << name;
      const ConstView x = a.view(i), y = b.view(name);
      ASSERT_EQ(x.dtype, y.dtype);
      EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<std::size_t>(a.entry(i).bytes)), 0) << name;
    }
  }
  [[nodiscard]] JsonValue config(const std::string& name) const {
    return read_json(folder.path(name) + "/config.json");
  }
  TemporaryFolder folder;
};

TEST_F(CliConvertWan, BothNameSetsInAndOut) {
  for (const char* from : {"original", "diffusers"}) {
    const std::string there = std::string(from) + "_there", back = std::string(from) + "_back";
    const bool original = from == std::string("original");
    convert(from, there, {"--to", original ? "diffusers" : "ours"});
    EXPECT_TRUE(weights(there).contains(original ? "blocks.0.attn1.to_q.weight" : "blocks.0.self_attn.q.weight"));
    convert(there, back, {"--to", original ? "ours" : "diffusers"});
    expect_kept(from, back, 0);
  }
}

TEST_F(CliConvertWan, SoftmaxBecomesMhlaFullOrHybrid) {
  convert("original", "full", {"--attention", "mhla", "--blocks", "1x2x2"});
  EXPECT_EQ(config("full").at("attention").as_string(), "mhla");
  EXPECT_EQ(config("full").at("layers").items().size(), 0u);
  expect_kept("original", "full", 2 * static_cast<std::size_t>(config("full").at("depth").as_int()));  // mix, g_norm
  convert("original", "hybrid",
          {"--attention", "mhla", "--layers", "every-2nd-kept", "--blocks", "1x2x2", "--variant", "gate"});
  const JsonValue hybrid = config("hybrid");
  EXPECT_EQ(hybrid.at("layers").items().size(), 1u);
  EXPECT_EQ(hybrid.at("layers").items()[0].as_int(), 1);
  expect_kept("original", "hybrid", 4);  // mix, g_norm, g.weight, g.bias
  const Safetensors file = weights("hybrid");
  const ConstView bias = file.view("blocks.1.self_attn.g.bias"), gate = file.view("blocks.1.self_attn.g.weight"),
                  mix = file.view("blocks.1.self_attn.block_attn.conv.weight");
  EXPECT_NEAR(load_f64(bias.data, bias.dtype, 0), 1.2784645, 1e-6);  // silu of it is 1
  EXPECT_EQ(load_f64(gate.data, gate.dtype, 3), 0.0);
  EXPECT_GT(load_f64(mix.data, mix.dtype, 0), load_f64(mix.data, mix.dtype, 1));  // a block sees itself most
  convert("hybrid", "back", {"--attention", "softmax"});
  expect_kept("original", "back", 0);
  convert("full", "finer", {"--blocks", "1x4x2"});
  EXPECT_EQ(config("finer").at("blocks").items()[1].as_int(), 4);
}

TEST_F(CliConvertWan, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    expect_refused(joined({"convert", folder.path("original"), folder.path("out")}, more), {part});
  };
  refused({"--layers", "1"}, "--layers is given, but the attention stays softmax, expected --attention mhla");
  refused({"--attention", "mhla", "--layers", "9"}, "--layers has 9, expected 0 to ");
  refused({"--attention", "mhla", "--layers", "odd"}, "expected all, every-3rd-kept, or numbers joined by commas");
  refused({"--attention", "gla"}, "--attention is gla, expected softmax, mhla or linear for a Wan");
  refused({"--blocks", "1x2x2"}, "--blocks is given for softmax attention, expected mhla");
  refused({"--image", "32"}, "--image is given, but");
  write_recorded("video/wan_transformer.safetensors", "wan_diffusers",
                 folder.path("original/diffusion_pytorch_model.safetensors"));
  refused({}, "expected");
  EXPECT_FALSE(fs::exists(folder.path("out")));
}

}  // namespace
}  // namespace mhla
