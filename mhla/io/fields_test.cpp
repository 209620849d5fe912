// A struct through its list of fields: out and back, half a document, and everything that may be wrong with one.
#include "mhla/io/fields.h"

#include <gtest/gtest.h>

#include "mhla/testing/messages.h"

namespace mhla {
namespace {

struct Config {
  std::int64_t depth = 12;
  double rate = 0.5;
  bool official = false;
  std::string name = "tiny";
  std::optional<double> eps;
  std::vector<std::int64_t> dims{1, 2};
  std::array<std::int64_t, 2> image{3, 4};
  std::vector<std::array<std::int64_t, 2>> blocks{{5, 6}};

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("depth", c.depth, "blocks"), visit("rate", c.rate, ""), visit("official", c.official, "");
    visit("name", c.name, ""), visit("eps", c.eps, ""), visit("dims", c.dims, "");
    visit("image", c.image, ""), visit("blocks", c.blocks, "");
  }
  bool operator==(const Config&) const = default;
};

Config config_from(const std::string& text) {
  Config config;
  fields_from_json(config, parse_json(text, "doc"), "doc");
  return config;
}

TEST(Fields, GoOutAndComeBack) {
  Config config{7, 0.25, true, "small", 1e-6, {3, 4, 5}, {8, 9}, {{1, 2}, {3, 4}}};
  const std::string text = write_json(fields_to_json(config));
  EXPECT_EQ(text, R"({"depth": 7, "rate": 0.25, "official": true, "name": "small", "eps": 1e-06, "dims": [3, 4, 5], )"
                  R"("image": [8, 9], "blocks": [[1, 2], [3, 4]]})");
  EXPECT_EQ(config_from(text), config);
  config.eps.reset();
  EXPECT_EQ(config_from(write_json(fields_to_json(config))), config);
}

TEST(Fields, ThatAreMissingKeepTheirValues) {
  Config want;
  want.depth = 3;
  EXPECT_EQ(config_from(R"({"depth": 3})"), want);
  EXPECT_EQ(config_from("{}"), Config{});
}

TEST(Fields, SayWhatIsWrong) {
  EXPECT_EQ(message_of([] { config_from(R"({"dept": 3})"); }), "doc: 'dept' is unknown, nearest is 'depth'");
  EXPECT_EQ(message_of([] { config_from(R"({"imag": 3})"); }), "doc: 'imag' is unknown, nearest is 'image'");
  EXPECT_EQ(nearest_name("rnu", {"rank", "run"}), "run");  // a swap is one change
  EXPECT_EQ(nearest_name("bacth", {"back", "batch"}), "batch");
  EXPECT_EQ(message_of([] { config_from(R"({"depth": "3"})"); }),
            "doc: 'depth': JSON value is a string, expected an integer");
  EXPECT_EQ(message_of([] { config_from(R"({"image": [1, 2, 3]})"); }), "doc: 'image': a list of 3, expected 2 items");
  EXPECT_EQ(message_of([] { config_from(R"({"blocks": [[1, 2], [3]]})"); }),
            "doc: 'blocks': a list of 1, expected 2 items");
  EXPECT_EQ(message_of([] { config_from("[1]"); }), "doc: JSON value is an array, expected an object");
}

}  // namespace
}  // namespace mhla
