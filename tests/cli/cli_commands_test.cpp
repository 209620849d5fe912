// The manners of the program: exit codes, one-line errors, --help and --json everywhere, a quick start.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "mhla/io/json.h"
#include "tests/cli/program.h"

namespace mhla {
namespace {

using Arguments = std::vector<std::string>;

TEST(CliCommands, HelpOfEveryCommandGoesToStdout) {
  for (const Arguments& command : {Arguments{},
                                   {"doctor"},
                                   {"verify"},
                                   {"bench"},
                                   {"bench", "op"},
                                   {"bench", "data"},
                                   {"bench", "scale"},
                                   {"data"},
                                   {"data", "info"},
                                   {"analyze"},
                                   {"report"},
                                   {"demo"},
                                   {"sample"},
                                   {"inspect"},
                                   {"convert"}}) {
    Arguments arguments = command;
    arguments.emplace_back("--help");
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0);
    EXPECT_NE(run.out.find("Usage"), std::string::npos) << run.out;
    EXPECT_EQ(run.err, "");
  }
  EXPECT_EQ(run_program({"--version"}).out.rfind("mhla ", 0), 0u);
}

TEST(CliCommands, EveryCommandHasJson) {
  for (const Arguments& command : {Arguments{"doctor"},
                                   {"verify"},
                                   {"bench", "op"},
                                   {"bench", "data"},
                                   {"bench", "scale"},
                                   {"data", "info"},
                                   {"analyze"},
                                   {"report"},
                                   {"demo"},
                                   {"sample"},
                                   {"inspect"},
                                   {"convert"}}) {
    Arguments arguments = command;
    arguments.emplace_back("--help");
    EXPECT_NE(run_program(arguments).out.find("--json"), std::string::npos) << command.back();
  }
}

TEST(CliCommands, CallersMistakesAreOneLineAndCodeTwo) {
  const Arguments mistakes[] = {
      {},
      {"no-such-command"},
      {"bench"},
      {"bench", "no-such-bench"},
      {"doctor", "--no-such-option"},
      {"verify", "--golden"},
      {"verify", "--golden", "/no/such/file"},
      {"verify", "--backend", "no-such-backend"},
      {"verify", "--threads", "-1"},
      {"verify", "--dtype", "bf17"},
      {"verify", "--dtype", "f32", "--backend", "sm90"},
      {"verify", "--dtype", "f32", "--golden", "/no/such/file"},
      {"verify", "--simd-target", "PAPER_TAPE"},
      {"bench", "op", "--shape", "no_such_shape"},
      {"bench", "op", "--shape", "dit_s_256", "--form", "causal"},
      {"bench", "op", "--shape", "lm_2048", "--form", "bidirectional"},
      {"bench", "op", "--shape", "dit_s_256", "--n", "4"},
      {"bench", "op"},
      {"bench", "op", "--n", "-5"},
      {"bench", "op", "--n", "sixteen"},
      {"bench", "op", "--n", "99999999999999999999999"},
      {"bench", "op", "--n", "4611686018427387904", "--h", "64"},
      {"bench", "op", "--n", "1000000000000", "--h", "4"},
      {"bench", "op", "--n", "16", "--hkv", "3", "--h", "4", "--backend", "ref"},
      {"bench", "op", "--n", "17", "--grid", "4x4", "--blocks", "2x2"},
      {"bench", "op", "--grid", "4x4"},
      {"bench", "op", "--grid", "4by4", "--blocks", "2x2"},
      {"bench", "op", "--grid", "4x0", "--blocks", "2x2"},
      {"bench", "op", "--grid", "4x4", "--blocks", "3x2"},
      {"bench", "op", "--n", "16", "--pass", "sideways"},
      {"bench", "op", "--n", "16", "--dtype", "f64"},
      {"bench", "op", "--n", "16", "--backend", "no-such-backend"},
      {"bench", "op", "--n", "16", "--form", "spiral"},
      {"bench", "op", "--n", "16", "--rivals", "nobody", "--backend", "ref"},
      {"bench", "op", "--n", "16", "--min-time", "nan"},
  };
  for (const Arguments& arguments : mistakes) {
    std::string all;
    for (const std::string& word : arguments) all += word + " ";
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 2) << all << run.err;
    const std::vector<std::string> lines = lines_of(run.err);
    ASSERT_EQ(lines.size(), 1u) << all << run.err;
    EXPECT_EQ(lines[0].rfind("mhla: ", 0), 0u) << all << run.err;
    EXPECT_GT(lines[0].size(), 20u) << all;
  }
}

TEST(CliCommands, DoctorTellsWhatIsThereAndWhatIsNot) {
  const ProgramRun run = run_program({"doctor", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 1u);
  const JsonValue row = parse_json(lines[0], "doctor");
  for (const char* key : {"version", "cpu", "simd", "blas", "libtorch_rivals", "cuda", "candidates", "default_threads"})
    EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_GE(row.at("cpu").at("threads").as_int(), 1);
  for (const char* format : {"JPEG", "PNG", "BMP"}) EXPECT_TRUE(row.at("images").at(format).as_bool()) << format;
  for (const char* format : {"WebP", "GIF", "TIFF"}) EXPECT_TRUE(row.at("images").contains(format)) << format;
  const bool device = !row.at("cuda").at("devices").items().empty();
  EXPECT_NE(device, row.at("cuda").contains("reason"));
  const JsonValue& backends = row.at("backends");
  EXPECT_EQ(backends.at("gloo").as_bool(), MHLA_TORCH_BUILT != 0);
  for (const char* name : {"gloo", "nccl"}) {  // there, or with a reason
    const JsonValue* reason = backends.find(std::string(name) + "_reason");
    EXPECT_NE(backends.at(name).as_bool(), reason != nullptr && reason->as_string().size() > 10) << name;
  }
  EXPECT_TRUE(device || !backends.at("nccl").as_bool());
  EXPECT_NE(run.err.find("NCCL"), std::string::npos) << run.err;
  int ref = 0, cuda = 0;
  for (const JsonValue& candidate : row.at("candidates").items()) {
    const std::string& name = candidate.at("name").as_string();
    if (name == "ref" && candidate.at("available").as_bool()) ++ref;
    if (name != "cuda") continue;
    EXPECT_TRUE(device || !candidate.at("available").as_bool());
    if (candidate.at("available").as_bool() || !candidate.at("reason").as_string().empty()) ++cuda;
  }
  EXPECT_EQ(ref, 3);   // one per form
  EXPECT_EQ(cuda, 3);  // there, or with a reason
  EXPECT_NE(run.err.find("processor"), std::string::npos);
  EXPECT_TRUE(run_program({"doctor"}).err.empty());
}

bool has_device() {
  const ProgramRun run = run_program({"doctor", "--json"});
  return !parse_json(lines_of(run.out).at(0), "doctor").at("cuda").at("devices").items().empty();
}

TEST(CliCommands, ABackendThatCannotRunHereIsACallersMistake) {
  if (has_device()) GTEST_SKIP() << "there is a CUDA device";
  for (const Arguments& arguments : {Arguments{"bench", "op", "--n", "16", "--backend", "cuda"},
                                     {"bench", "op", "--n", "16", "--backend", "simd,sm90"},
                                     {"bench", "op", "--n", "16", "--backend", "gpu"},
                                     {"verify", "--backend", "cuda"},
                                     {"verify", "--backend", "sm90", "--quick"}}) {
    const ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 2) << run.err;
    ASSERT_EQ(lines_of(run.err).size(), 1u) << run.err;
    EXPECT_NE(run.err.find("CUDA"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("available for bidirectional in f32: simd, ref"), std::string::npos) << run.err;
  }
}

TEST(CliCommands, VerifiesTheDtypesThatAreAskedFor) {
  const ProgramRun run = run_program({"verify", "--backend", "simd", "--quick", "--dtype", "bf16,f16", "--json"});
  EXPECT_EQ(run.code, 0) << run.err;
  int checks[2] = {0, 0};
  for (const std::string& line : lines_of(run.out)) {
    const JsonValue row = parse_json(line, "stdout");
    if (row.at("kind").as_string() != "check") continue;
    const std::string dtype = row.at("dtype").as_string();
    ASSERT_TRUE(dtype == "bf16" || dtype == "f16") << line;
    ++checks[dtype == "f16"];
  }
  EXPECT_GT(checks[0], 5);
  EXPECT_EQ(checks[0], checks[1]);
}

TEST(CliCommands, HelpAndDoctorStartQuickly) {
  double help = 1e9, doctor = 1e9;
  for (int i = 0; i < 3; ++i) {
    help = std::min(help, run_program({"--help"}).cpu_seconds);
    doctor = std::min(doctor, run_program({"doctor"}).cpu_seconds);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kSlower = 20.0;  // sanitizers set up their shadow memory
#else
  constexpr double kSlower = 1.0;
#endif
  EXPECT_LE(help, 0.1 * kSlower);
  EXPECT_LE(doctor, (has_device() ? 2.0 : 0.1) * kSlower);  // the driver takes its time
}

TEST(CliCommands, AFullDiskIsAFailure) {
  if (!std::ifstream("/dev/full")) GTEST_FAIL() << "this system has no /dev/full";
  const std::string command = std::string(MHLA_PROGRAM) + " doctor > /dev/full 2> /dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

}  // namespace
}  // namespace mhla
