// mhla verify --golden on families that cases name themselves: diffusion, flow matching, diffusion transformers. They
// run in the engine, which is there where LibTorch is.
#include <cstring>
#include <set>

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

TEST_F(CliGoldenImage, EveryFamilyComesBack) {
  std::set<std::string> families;
  for (const char* file : {"diffusion", "flow", "dit_model", "dit_mhla", "dig"}) {
    const ProgramRun run = run_program({"verify", "--golden", kImage + file + ".safetensors", "--json"});
    ASSERT_EQ(run.code, 0) << run.out << run.err;
    for (const std::string& line : lines_of(run.out)) {
      const JsonValue row = parse_json(line, "row");
      if (row.at("kind").as_string() != "check") continue;
      EXPECT_TRUE(row.at("ok").as_bool()) << line;
      families.insert(std::string(row.at("family").as_string()));
    }
  }
  EXPECT_EQ(families.size(), 13u);
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
