// Draws the include graph of the rooms and fails on an arrow that turns round. The rules are tried on
// small made-up houses too, each with one thing wrong, so that the map is known to see it.
#include "tests/room_map.h"

#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

namespace mhla::room_map {
namespace {

Sources small_house() {
  return {{"mhla/core/view.h", "#pragma once\n#include <vector>\n"},
          {"mhla/core/CMakeLists.txt", "mhla_room(core)\n"},
          {"mhla/io/file.h", "#include \"mhla/core/view.h\"\n"},
          {"mhla/io/CMakeLists.txt", "mhla_room(io USES core)\n"},
          {"mhla/kernels/form/form.h", "#include \"mhla/core/view.h\"\n"},
          {"mhla/kernels/CMakeLists.txt", "mhla_room(kernels USES core PRIVATE_LINKS hwy::hwy)\n"},
          {"mhla/testing/cases.h", "#include \"mhla/kernels/form/form.h\"\n"},
          {"mhla/testing/CMakeLists.txt", "mhla_room(testing USES core kernels)\n"},
          {"mhla/kernels/form/form_test.cpp", "#include \"mhla/testing/cases.h\"\n"}};
}

// The one violation that `text`, put at `path`, causes; a sentence that matches nothing when there is not exactly one.
std::string violation_of(const std::string& path, const std::string& text) {
  Sources house = small_house();
  house[path] = text;
  const std::vector<std::string> wrong = violations(house);
  return wrong.size() == 1 ? wrong[0] : "violations: " + std::to_string(wrong.size());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(RoomMap, TheHouseIsInOrder) {
  const Sources sources = read_tree(MHLA_SOURCE_DIR);
  std::cout << draw(drawn_arrows(sources));
  for (const std::string& line : violations(sources)) ADD_FAILURE() << line;
}

TEST(RoomMap, TheTreeWasRead) {
  const Arrows drawn = drawn_arrows(read_tree(MHLA_SOURCE_DIR));
  for (const char* room : {"io", "kernels", "testing", "ops"}) {
    ASSERT_EQ(drawn.count(room), 1u) << room;
    EXPECT_EQ(drawn.at(room).count("core"), 1u) << room;
  }
}

TEST(RoomMap, AllowedArrowsAndLinkLinesHaveNoCycle) {
  EXPECT_EQ(room_on_cycle(direct_arrows()), "");
  EXPECT_EQ(room_on_cycle(linked_arrows(read_tree(MHLA_SOURCE_DIR))), "");
  EXPECT_EQ(room_on_cycle({{"a", {"b"}}, {"b", {"c"}}, {"c", {"b"}}}), "b");
}

TEST(RoomMap, SmallHouseIsInOrder) { EXPECT_EQ(violations(small_house()), std::vector<std::string>{}); }

TEST(RoomMap, SeesAnArrowThatTurnsRound) {
  const std::string line = violation_of("mhla/core/up.h", "\n#include \"mhla/kernels/form/form.h\"\n");
  EXPECT_TRUE(contains(line, "mhla/core/up.h:2: core includes mhla/kernels/form/form.h: an arrow turns round")) << line;
}

TEST(RoomMap, SeesATestThatLooksTooFar) {
  const std::string line = violation_of("mhla/kernels/form/save_test.cpp", "#include \"mhla/io/file.h\"\n");
  EXPECT_TRUE(contains(line, "kernels includes mhla/io/file.h: an arrow turns round")) << line;
  EXPECT_EQ(violation_of("tests/save_test.cpp", "#include \"mhla/io/file.h\"\n"), "violations: 0");
}

TEST(RoomMap, SeesTestingInALibrary) {
  const std::string line = violation_of("mhla/kernels/form/form.cpp", "#include \"mhla/testing/cases.h\"\n");
  EXPECT_TRUE(contains(line, "an arrow turns round")) << line;
}

TEST(RoomMap, SeesAFixtureInALibrary) {
  Sources house = small_house();
  house["mhla/kernels/form/form_fixture.h"] = "#include \"mhla/testing/cases.h\"\n";
  EXPECT_EQ(violations(house), std::vector<std::string>{});
  house["mhla/kernels/form/form.cpp"] = "#include \"mhla/kernels/form/form_fixture.h\"\n";
  const std::vector<std::string> wrong = violations(house);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_TRUE(contains(wrong[0], "form_fixture.h is for tests only")) << wrong[0];
}

TEST(RoomMap, SeesTheFileThatHighwayIncludes) {
  const std::string line = violation_of("mhla/kernels/a.cpp", "#define HWY_TARGET_INCLUDE \"mhla/io/file.h\"\n");
  EXPECT_TRUE(contains(line, "an arrow turns round")) << line;
}

TEST(RoomMap, SeesAnArrowThatIsNotLinked) {
  Sources house = small_house();
  house["mhla/testing/CMakeLists.txt"] = "mhla_room(testing USES core)\n";
  const std::vector<std::string> wrong = violations(house);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_TRUE(contains(wrong[0], "its mhla_room() line does not use kernels")) << wrong[0];
}

TEST(RoomMap, SeesLibTorchBelowOps) {
  const std::string line = violation_of("mhla/kernels/a.cpp", "#include <torch/torch.h>\n");
  EXPECT_TRUE(contains(line, "LibTorch begins at ops")) << line;
  EXPECT_EQ(violation_of("apps/engine/rivals.cpp", "#include <torch/torch.h>\n"), "violations: 0");
}

TEST(RoomMap, ARoomInsideARoomHasArrowsOfItsOwn) {
  EXPECT_EQ(room_of("mhla/data/loader.h"), "data");
  EXPECT_EQ(room_of("mhla/train/database.h"), "train");
  EXPECT_EQ(room_of("mhla/io/codecs/image.h"), "io_codecs");
  const std::string torch = violation_of("mhla/data/loader.h", "#include <torch/torch.h>\n");
  EXPECT_TRUE(contains(torch, "data includes torch/torch.h, but LibTorch begins at ops")) << torch;
  Sources house = small_house();
  house["mhla/io/codecs/image.h"] = "";
  house["mhla/io/read.cpp"] = "#include \"mhla/io/codecs/image.h\"\n";
  const std::vector<std::string> wrong = violations(house);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_TRUE(contains(wrong[0], "io includes mhla/io/codecs/image.h: an arrow turns round")) << wrong[0];
}

TEST(RoomMap, ARoomIsCalledAfterItsPath) {
  const std::string line = violation_of("mhla/io/codecs/CMakeLists.txt", "mhla_room(codecs USES core io)\n");
  EXPECT_TRUE(contains(line, "the room is called codecs, expected io_codecs")) << line;
  EXPECT_EQ(violation_of("mhla/io/codecs/CMakeLists.txt", "mhla_room(io_codecs USES core io)\n"), "violations: 0");
}

TEST(RoomMap, OpsStandOnTheKernelsAndOnNothingAbove) {
  Sources house = small_house();
  house["mhla/ops/CMakeLists.txt"] = "mhla_room(ops USES kernels core TORCH torch.h PRIVATE_LINKS dl)\n";
  house["mhla/ops/ops.cpp"] = "#include <torch/library.h>\n#include \"mhla/kernels/form/form.h\"\n";
  house["mhla/ops/ops_test.cpp"] = "#include \"mhla/testing/cases.h\"\n";
  house["mhla/modules/attention.h"] = "#include <torch/torch.h>\n";
  EXPECT_EQ(violations(house), std::vector<std::string>{});
  house["mhla/ops/up.cpp"] = "#include \"mhla/modules/attention.h\"\n";
  house["mhla/kernels/up.cpp"] = "#include \"mhla/ops/torch.h\"\n";
  house["mhla/ops/torch.h"] = "#include <ATen/ATen.h>\n";
  const std::vector<std::string> wrong = violations(house);
  ASSERT_EQ(wrong.size(), 2u);
  EXPECT_TRUE(contains(wrong[0], "kernels includes mhla/ops/torch.h: an arrow turns round")) << wrong[0];
  EXPECT_TRUE(contains(wrong[1], "ops includes mhla/modules/attention.h: an arrow turns round")) << wrong[1];
}

TEST(RoomMap, SeesSpellingsThatHideTheArrow) {
  EXPECT_TRUE(contains(violation_of("mhla/core/a.cpp", "#include \"view.h\"\n"), "is no file of ours"));
  EXPECT_TRUE(contains(violation_of("mhla/core/a.cpp", "#include \"../core/view.h\"\n"), "is no file of ours"));
  EXPECT_TRUE(contains(violation_of("mhla/core/a.cpp", "#include <mhla/core/view.h>\n"), "write \"mhla/core/view.h\""));
  EXPECT_TRUE(contains(violation_of("mhla/attic/a.h", "#include \"mhla/core/view.h\"\n"), "'attic' is no room"));
}

}  // namespace
}  // namespace mhla::room_map
