// The help of --attention lists the attentions of the zoo: all of them, for language models those with a causal form.
#include <gtest/gtest.h>

#include "mhla/modules/zoo/zoo.h"
#include "mhla/train/classify/classify_options.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/lm/lm_options.h"

namespace mhla::train {
namespace {

// "a, b or c"
std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += std::string(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  return text;
}

template <class Options>
std::string help_of_attention() {
  std::string found;
  Options options;
  Options::fields(options, [&](const std::string& name, const auto&, const char* help) {
    if (name == "attention") found = help;
  });
  return found;
}

TEST(AttentionHelp, ListsTheZoo) {
  std::vector<std::string_view> causal;
  for (const std::string_view name : attention_names())
    if (has_causal_form(name)) causal.push_back(name);
  EXPECT_EQ(help_of_attention<ClassifyOptions>().rfind(listed(attention_names()) + " (default", 0), 0u)
      << help_of_attention<ClassifyOptions>() << " against " << listed(attention_names());
  EXPECT_EQ(help_of_attention<DiffusionOptions>().rfind(listed(attention_names()) + " (default", 0), 0u);
  EXPECT_EQ(help_of_attention<LmOptions>().rfind(listed(causal) + ", causal (default", 0), 0u)
      << help_of_attention<LmOptions>() << " against " << listed(causal);
}

}  // namespace
}  // namespace mhla::train
