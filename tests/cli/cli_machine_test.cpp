// What the machine withholds: threads (`ulimit -u`), and the libraries of a program that was copied without them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/cli/expect.h"
#include "tests/cli/idx_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

// As a user who may start no thread beside those there are: root is not bounded, so it becomes somebody without
// processes.
ProgramRun run_alone(const std::vector<std::string>& arguments) {
  return run_program(arguments, {}, Reader::kListens, [] {
    const rlimit one{1, 1};
    if (setrlimit(RLIMIT_NPROC, &one) != 0) _exit(126);
    if (getuid() == 0 && (setgid(64321) != 0 || setuid(64321) != 0)) _exit(126);
  });
}

class CliMachine : public testing::Test {
 protected:
  void SetUp() override {
    fs::permissions(folder.path(), fs::perms::all);
    const ProgramRun version = run_alone({"--version"});
    if (version.code != 0) GTEST_SKIP() << "another user cannot run the program here";
  }
  TemporaryFolder folder;
};

TEST_F(CliMachine, WorksWithoutThreads) {
  const std::string data = folder.path("data");
  fs::create_directory(data);
  write_idx(data, "train", 80);
  write_idx(data, "t10k", 20);
  const ProgramRun op = run_alone({"bench", "op", "--n", "64", "--d", "16", "--min-time", "0", "--repeat", "1"});
  EXPECT_EQ(op.code, 0) << op.err;
  EXPECT_TRUE(has(op.out, ", 1 threads, ") || has(op.out, ", 1 thread, ")) << op.out;
  const ProgramRun info = run_alone({"data", "info", "--data", "mnist:" + data});
  EXPECT_EQ(info.code, 0) << info.err;
  if (!MHLA_TORCH_BUILT) return;
  const ProgramRun train = run_alone({"train",       "classify",
                                      "--model",     "vit_demo",
                                      "--data",      "fashion-mnist:" + data,
                                      "--out",       folder.path("run"),
                                      "--batch",     "16",
                                      "--max-steps", "2",
                                      "--threads",   "2",
                                      "--set",       "dims=[12]",
                                      "--set",       "heads=[2]",
                                      "--set",       "depths=[1]"});
  EXPECT_EQ(train.code, 0) << train.err;
  EXPECT_LT(train.seconds, 60.0);
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
    EXPECT_TRUE(has(train.err, "1 thread is used, not 2: the system lets this process start 0 more (ulimit -u)"))
        << train.err;
  }
}

TEST_F(CliMachine, AProgramWithoutItsLibrariesSaysWhereItLooked) {
  fs::create_directories(folder.path("bin"));
  const std::string copy = folder.path("bin/mhla");
  fs::copy_file(MHLA_PROGRAM, copy);
  const std::string err = folder.path("err"),
                    line = "env -u MHLA_ENGINE " + copy + " train lm --out " + folder.path("run") + " 2>" + err;
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 2);
  const std::vector<std::byte> bytes = read_file(err);
  const std::string said(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_TRUE(has(said, "libmhla_engine.so was not found in " + folder.path("bin") + " or " + folder.path("lib")))
      << said;
  EXPECT_TRUE(has(said, "set MHLA_ENGINE to the path of the library")) << said;
  EXPECT_EQ(lines_of(said).size(), 1u) << said;
}

TEST_F(CliMachine, ALibraryThatIsNotTheEngineIsNamed) {
  if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
  write_file(folder.path("text.so"), std::string("no library"));
  const std::string other = fs::path(MHLA_PROGRAM).parent_path().string() + "/../lib/libmhla_torch.so";
  for (const auto& [file, expected] : {std::pair{folder.path("text.so"), "could not be opened"},
                                       {other, "has no function mhla_engine, expected the library of this program"}}) {
    setenv("MHLA_ENGINE", file.c_str(), 1);
    const ProgramRun run = run_program({"train", "lm", "--out", folder.path("run")});
    unsetenv("MHLA_ENGINE");
    EXPECT_EQ(run.code, 2) << run.err;
    EXPECT_TRUE(has(run.err, file) && has(run.err, expected)) << run.err;
  }
}

}  // namespace
}  // namespace mhla
