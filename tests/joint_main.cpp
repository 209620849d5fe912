// main() of the test programs of a room, which hold many files (mhla_tests in cmake/rooms.cmake). Called by the name of
// one, trainer_test, the program runs the tests of trainer_test.cpp; called by its own name, all.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace {

// Messages show the filter that the caller asked for, not the list of all tests that are left out.
class RestoresFilter : public testing::EmptyTestEventListener {
 public:
  explicit RestoresFilter(std::string filter) : filter_(std::move(filter)) {}
  void OnTestProgramStart(const testing::UnitTest& /*tests*/) override { testing::GTEST_FLAG(filter) = filter_; }

 private:
  std::string filter_;
};

// Calls visit(file, name) for every test of the program.
template <class Visit>
void each_test(Visit visit) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      visit(std::filesystem::path(test.file()).stem().string(), std::string(suite.name()) + "." + test.name());
    }
  }
}

void leave_out_other_files(const std::string& name) {
  bool found = false;
  const std::string asked = testing::GTEST_FLAG(filter);
  std::string filter = asked;
  char before = asked.find('-') == std::string::npos ? '-' : ':';  // the first that is left out, and others
  each_test([&](const std::string& file, const std::string& test) {
    found = found || file == name;
    if (file == name || !file.ends_with("_test")) return;  // tests of a header belong to every file
    filter += before;
    filter += test;
    before = ':';
  });
  if (!found) return;
  testing::UnitTest::GetInstance()->listeners().Append(new RestoresFilter(asked));
  testing::GTEST_FLAG(filter) = filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  leave_out_other_files(std::filesystem::path(argv[0]).filename().string());
  return RUN_ALL_TESTS();
}
