// mhla verify --golden on families that cases name themselves: everything of image generation. They run in the engine,
// which is there where LibTorch is.
#include <cstring>
#include <functional>
#include <set>
#include <tuple>

#include "mhla/io/file.h"
#include "mhla/io/json.h"
#include "tests/cli/golden_fixture.h"

namespace mhla {
namespace {

const std::string kImage = MHLA_SOURCE_DIR "/tests/golden/image/";

class CliGoldenImage : public GoldenTest {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  }
  // The file with another first byte of a tensor.
  std::string spoiled(const std::string& file, const std::string& tensor) {
    const std::string from = kImage + file + ".safetensors", to = folder.path("spoiled.safetensors");
    const Safetensors open = Safetensors::read(from);
    std::vector<std::byte> bytes = read_file(from);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const Safetensors::Entry entry = open.entry(open.find(tensor).value());
    bytes.at(8 + header + static_cast<std::size_t>(entry.offset)) ^= std::byte{1};
    write_file(to, bytes);
    return to;
  }
};

constexpr const char* kFiles[] = {"diffusion", "flow",   "dit_model", "dit_mhla",  "dig",    "sana", "vae_kl",
                                  "vae_dc",    "gemma2", "metrics",   "inception", "images", "clip"};

TEST_F(CliGoldenImage, EveryFamilyComesBack) {
  const ProgramRun run = run_program({"verify", "--golden", kImage, "--json"});
  ASSERT_EQ(run.code, 0) << run.out << run.err;
  std::set<std::string> families, files;
  for (const std::string& line : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "row");
    if (row.at("kind").as_string() != "check") continue;
    EXPECT_TRUE(row.at("ok").as_bool()) << line;
    families.insert(std::string(row.at("family").as_string()));
    files.insert(std::string(row.at("file").as_string()));
  }
  EXPECT_EQ(families.size(), 27u);
  EXPECT_EQ(files.size(), std::size(kFiles));
}

TEST_F(CliGoldenImage, EveryFamilyOfVideoComesBack) {
  const ProgramRun run = run_program({"verify", "--golden", MHLA_SOURCE_DIR "/tests/golden/video"});
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("10 files, 32 cases"), std::string::npos) << run.out;
}

// ---- Damage

// Cases of a file, changed one by one and written as a file of their own. Tensors stay where they were mapped.
struct Damaged {
  explicit Damaged(const std::string& file) : original(Safetensors::read(kImage + file + ".safetensors")) {
    std::set<std::string> families;
    for (const auto& [name, text] : original.metadata()) {
      const JsonValue config = parse_json(text, name);
      if (families.insert(std::string(config.at("family").as_string())).second) cases.push_back(name);
    }
  }
  // The case `from` under another name. `keep` may change a view, or leave it out by false.
  void add(const std::string& from, const std::string& name, const JsonValue& config,
           const std::function<bool(const std::string&, ConstView&)>& keep) {
    metadata[name] = write_json(config);
    for (std::size_t i = 0; i < original.size(); ++i) {
      const std::string key(original.entry(i).name);
      if (key.compare(0, from.size() + 1, from + "/") != 0) continue;
      ConstView view = original.view(i);
      if (keep(key.substr(from.size() + 1), view)) tensors.push_back({name + key.substr(from.size()), view});
    }
  }
  [[nodiscard]] JsonValue config(const std::string& name) const {
    return parse_json(original.metadata().at(name), name);
  }
  // The first input with more than one axis; empty if there is none.
  [[nodiscard]] std::string input_of(const std::string& name, int axes) const {
    for (std::size_t i = 0; i < original.size(); ++i) {
      const std::string key(original.entry(i).name);
      if (key.compare(0, name.size() + 4, name + "/in.") == 0 && original.view(i).rank >= axes)
        return key.substr(name.size() + 1);
    }
    return "";
  }
  Safetensors original;
  std::vector<std::string> cases;  // one of every family
  std::vector<NamedView> tensors;
  Metadata metadata;
};

TEST_F(CliGoldenImage, DamagedCasesOfEveryFamilyAreNotJudged) {
  for (const char* file : kFiles) {
    Damaged damaged(file);
    for (const std::string& name : damaged.cases) {
      JsonValue option = damaged.config(name);
      damaged.add(name, name + "_option", option.set("surprise", 1), [](const auto&, auto&) { return true; });
      if (const std::string input = damaged.input_of(name, 1); !input.empty())
        damaged.add(name, name + "_missing", damaged.config(name),
                    [&](const std::string& tensor, ConstView&) { return tensor != input; });
      if (const std::string input = damaged.input_of(name, 2); !input.empty())
        damaged.add(name, name + "_flat", damaged.config(name), [&](const std::string& tensor, ConstView& view) {
          if (tensor == input) view = ConstView(view.data, view.dtype, {view.numel()});
          return true;
        });
    }
    const std::string path = folder.path(std::string(file) + ".safetensors");
    write_safetensors(path, damaged.tensors, damaged.metadata);
    const ProgramRun run = run_program({"verify", "--golden", path, "--backend", "simd"});
    EXPECT_EQ(run.code, 2) << file << run.out << run.err;
    const std::vector<std::string> lines = lines_of(run.err);
    EXPECT_EQ(lines.size(), damaged.metadata.size()) << file << "\n" << run.out << run.err;  // one each
    for (const std::string& line : lines) EXPECT_EQ(line.rfind("mhla: verify --golden: " + path, 0), 0u) << line;
  }
}

TEST_F(CliGoldenImage, AChangedNumberOfEveryFamilyFails) {
  for (const char* file : kFiles) {
    Damaged damaged(file);
    std::vector<std::vector<std::byte>> changed;
    changed.reserve(damaged.cases.size());
    for (const std::string& name : damaged.cases) {
      bool done = false;
      damaged.add(name, name, damaged.config(name), [&](const std::string& tensor, ConstView& view) {
        if (done || tensor.rfind("out", 0) != 0) return true;
        done = true;  // the last byte of the first number: its sign and exponent, or a large step of an integer
        const auto* data = static_cast<const std::byte*>(view.data);
        changed.emplace_back(data, data + view.numel() * size_of(view.dtype));
        changed.back()[static_cast<std::size_t>(size_of(view.dtype)) - 1] ^= std::byte{0x42};
        view = ConstView(changed.back().data(), view.dtype, {view.shape.begin(), view.shape.begin() + view.rank});
        return true;
      });
    }
    const std::string path = folder.path(std::string(file) + ".safetensors");
    write_safetensors(path, damaged.tensors, damaged.metadata);
    const ProgramRun run = run_program({"verify", "--golden", path, "--backend", "simd", "--json"});
    EXPECT_EQ(run.code, 1) << file << run.err;
    std::set<std::string> failed;
    for (const std::string& line : lines_of(run.out)) {
      const JsonValue row = parse_json(line, "row");
      if (row.at("kind").as_string() == "check" && !row.at("ok").as_bool())
        failed.insert(std::string(row.at("case").as_string()));
    }
    EXPECT_EQ(failed.size(), damaged.cases.size()) << file;
  }
}

TEST_F(CliGoldenImage, CropsMayBeOffByOne) {
  for (const auto& [file, tensor, code] : {std::tuple{"images", "center_crop_0/out.image", 0},
                                           {"images", "to_uint8/out.adm", 1},
                                           {"images", "grid/out.grid", 1}}) {
    const ProgramRun run = run_program({"verify", "--golden", spoiled(file, tensor)});  // a byte, by 1
    EXPECT_EQ(run.code, code) << tensor << run.out << run.err;
  }
}

TEST_F(CliGoldenImage, IntegersMustBeEqual) {
  const ProgramRun run = run_program({"verify", "--golden", spoiled("diffusion", "respace_1000_250/out.timesteps")});
  EXPECT_EQ(run.code, 1) << run.out << run.err;
  EXPECT_NE(run.out.find("FAILED"), std::string::npos) << run.out;
}

TEST_F(CliGoldenImage, AFamilyThatNobodyKnowsIsNotJudged) {
  Golden golden;
  golden.metadata["case"] = R"({"family": "wavelets"})";
  golden.tensors.emplace("case/out", ones({2}));
  expect_refusal(verify(golden), {"case 'case'", "family 'wavelets' is unknown"});
}

}  // namespace
}  // namespace mhla
