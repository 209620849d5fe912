// The table of names against the families that make the models, and against the documents.
#include "mhla/models/names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/io/file.h"
#include "mhla/models/classify/classifier_config.h"
#include "mhla/models/dit/dit_config.h"
#include "mhla/models/lm/lm_config.h"
#include "mhla/models/sana/sana_config.h"
#include "mhla/models/wan/wan_config.h"

namespace mhla {
namespace {

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ModelNames, AreThoseOfTheFamilies) {
  EXPECT_EQ(sorted(model_names("classify")), sorted(classifier_names()));
  EXPECT_EQ(sorted(model_names("lm")), sorted(lm_names()));
  EXPECT_EQ(sorted(model_names("video")), sorted(wan_names()));
  std::vector<std::string> denoisers = dit_names();
  for (const std::string& name : sana_names()) denoisers.push_back(name);
  EXPECT_EQ(sorted(model_names("diffusion")), sorted(denoisers));
}

TEST(ModelNames, AreInTheDocuments) {
  const std::vector<std::byte> page = read_file(std::string(MHLA_SOURCE_DIR) + "/docs/commands.md");
  const std::string_view text(reinterpret_cast<const char*>(page.data()), page.size());
  for (const ModelName& model : kModelNames) {
    const std::string row =
        "| `" + std::string(model.name) + "` | " + std::string(model.task) + " | " + std::string(model.about) + " |";
    EXPECT_NE(text.find(row), std::string_view::npos) << "docs/commands.md has no row " << row;
  }
}

}  // namespace
}  // namespace mhla
