// Checkpoint folders: complete or not there, rotated, and damage found by file.
#include "mhla/train/runs/checkpoints.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

void save_text(CheckpointFolder& folder, std::int64_t step, const std::string& text) {
  folder.save(step, [&](const fs::path& to) {
    write_file(to / "a.txt", text);
    write_file(to / "b.txt", text + text);
  });
}

std::vector<std::int64_t> steps_of(const CheckpointFolder& folder) {
  std::vector<std::int64_t> steps;
  for (const Checkpoint& checkpoint : folder.list()) steps.push_back(checkpoint.step);
  return steps;
}

TEST(Checkpoints, KeepsTheNewest) {
  const TemporaryRun run;
  CheckpointFolder folder(run.path(), 2);
  for (const std::int64_t step : {5, 10, 123456789, 200000000}) save_text(folder, step, "text");
  EXPECT_EQ(steps_of(folder), (std::vector<std::int64_t>{123456789, 200000000}));
  std::vector<std::string> complaints;
  EXPECT_EQ(folder.newest(complaints)->step, 200000000);
  EXPECT_TRUE(complaints.empty());
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(run.path())) ++entries;
  EXPECT_EQ(entries, 2u);  // nothing hidden is left
}

TEST(Checkpoints, DamageIsNamedAndTheOneBeforeIsTaken) {
  struct Damage {
    const char* says;
    std::function<void(const fs::path&)> make;
  };
  const std::vector<Damage> damages = {
      {"a.txt has another checksum", [](const fs::path& at) { write_file(at / "a.txt", std::string("tExt")); }},
      {"b.txt has 3 bytes, expected 8", [](const fs::path& at) { write_file(at / "b.txt", std::string("tex")); }},
      {"b.txt is missing", [](const fs::path& at) { fs::remove(at / "b.txt"); }},
      {"checkpoint.json", [](const fs::path& at) { fs::remove(at / "checkpoint.json"); }},
      {"checkpoint.json", [](const fs::path& at) { write_file(at / "checkpoint.json", std::string("{\"format\":")); }},
      {"format is 2, expected 1",
       [](const fs::path& at) { write_file(at / "checkpoint.json", std::string("{\"format\":2}")); }},
      {"checkpoint.json: JSON value is a string, expected an integer",
       [](const fs::path& at) { write_file(at / "checkpoint.json", std::string(R"({"format": 1, "step": "9"})")); }},
      {"checkpoint.json: JSON value is an array, expected an object",
       [](const fs::path& at) {
         write_file(at / "checkpoint.json", std::string(R"({"format": 1, "step": 9, "files": []})"));
       }},
      {"is of step 5, expected 9",
       [](const fs::path& at) {
         fs::copy_file(at.parent_path() / "step-00000005" / "checkpoint.json", at / "checkpoint.json",
                       fs::copy_options::overwrite_existing);
       }},
  };
  for (const Damage& damage : damages) {
    const TemporaryRun run;
    CheckpointFolder folder(run.path(), 3);
    save_text(folder, 5, "text");
    save_text(folder, 9, "text");
    damage.make(run.path() / "step-00000009");
    std::vector<std::string> complaints;
    const std::optional<Checkpoint> newest = folder.newest(complaints);
    ASSERT_TRUE(newest) << damage.says;
    EXPECT_EQ(newest->step, 5) << damage.says;
    ASSERT_EQ(complaints.size(), 1u) << damage.says;
    EXPECT_NE(complaints[0].find(damage.says), std::string::npos) << complaints[0];
    EXPECT_NE(complaints[0].find("step-00000009"), std::string::npos) << complaints[0];
    save_text(folder, 9, "again");  // replaces the damaged one
    EXPECT_EQ(folder.newest(complaints)->step, 9) << damage.says;
  }
}

TEST(Checkpoints, DamagedOnesOfLaterStepsDoNotPushOutSoundOnes) {
  const TemporaryRun run;
  CheckpointFolder folder(run.path(), 1);
  save_text(folder, 14, "text");
  fs::rename(run.path() / "step-00000014", run.path() / "kept");
  save_text(folder, 12, "text");
  fs::rename(run.path() / "kept", run.path() / "step-00000014");
  write_file(run.path() / "step-00000014" / "a.txt", std::string("damaged"));
  std::vector<std::string> complaints;
  ASSERT_EQ(folder.newest(complaints)->step, 12);
  save_text(folder, 13, "text");
  EXPECT_EQ(steps_of(folder), std::vector<std::int64_t>{13});
}

TEST(Checkpoints, AWriterThatFailsLeavesTheOthers) {
  const TemporaryRun run;
  CheckpointFolder folder(run.path(), 2);
  save_text(folder, 5, "text");
  EXPECT_THROW(folder.save(6,
                           [](const fs::path& to) {
                             write_file(to / "a.txt", std::string("text"));
                             fail("no more");
                           }),
               Error);
  EXPECT_EQ(steps_of(folder), std::vector<std::int64_t>{5});
  EXPECT_FALSE(fs::exists(run.path() / "step-00000006"));
  std::vector<std::string> complaints;
  EXPECT_EQ(folder.newest(complaints)->step, 5);
}

TEST(Checkpoints, OtherNamesAreNotCheckpointsAndLeftoversAreSwept) {
  const TemporaryRun run;
  CheckpointFolder folder(run.path(), 2);
  save_text(folder, 7, "text");
  for (const char* name :
       {"step-7", "step-", "step-0000000x", "notes", ".part-1-step-00000008", ".old-1-step-00000003"})
    fs::create_directory(run.path() / name);
  EXPECT_EQ(steps_of(folder), std::vector<std::int64_t>{7});
  folder.sweep();
  EXPECT_FALSE(fs::exists(run.path() / ".part-1-step-00000008"));
  EXPECT_FALSE(fs::exists(run.path() / ".old-1-step-00000003"));
  EXPECT_TRUE(fs::exists(run.path() / "notes"));
}

}  // namespace
}  // namespace mhla::train
