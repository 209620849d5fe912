// Cached latents: what comes back, checksums, and every way a folder can be damaged.
#include "mhla/data/latent_set.h"

#include <cstring>
#include <limits>

#include "mhla/data/data_fixture.h"
#include "mhla/data/latent_set_fixture.h"

namespace mhla {
namespace {

class LatentSets : public testing::Test {
 protected:
  [[nodiscard]] std::string place() const { return scratch.path("set"); }
  [[nodiscard]] std::string refusal() const {
    return message_of([&] { LatentSet::open(place()).verify(); });
  }
  void change_byte(const std::string& name, std::ptrdiff_t from_end) const {
    std::vector<std::byte> bytes = read_file(place() + "/" + name);
    *(bytes.end() - from_end) ^= std::byte{1};
    write_file(place() + "/" + name, bytes);
  }
  ScratchFolder scratch;
};

TEST_F(LatentSets, ComeBack) {
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    make_latent_set(place(), {.dtype = dtype});
    const LatentSet set = LatentSet::open(place());
    set.verify();
    EXPECT_EQ(set.size(), 7);
    std::vector<float> latent(static_cast<std::size_t>(set.latent_size())), flipped = latent;
    for (const std::int64_t item : {6, 0, 3, 5}) {
      set.latent(item, false, latent.data()), set.latent(item, true, flipped.data());
      for (std::size_t i = 0; i < latent.size(); ++i) {
        EXPECT_NEAR(latent[i], static_cast<double>(item) + static_cast<double>(i) / 16, dtype[0] == 'b' ? 0.02 : 1e-6);
        EXPECT_EQ(flipped[i], -latent[i]);
      }
      EXPECT_EQ(set.label(item), item % 3);
    }
  }
}

TEST_F(LatentSets, OfCaptions) {
  for (const bool latents : {true, false}) {
    std::filesystem::remove_all(place());
    make_latent_set(place(), {.labels = false, .captions = true, .latents = latents});
    const LatentSet set = LatentSet::open(place());
    set.verify();
    std::vector<float> states(static_cast<std::size_t>(set.caption_size()));
    std::vector<std::int64_t> mask(5);
    set.caption(4, states.data(), mask.data());
    EXPECT_EQ(states[3], 4.0f + 3.0f / 16);
    EXPECT_EQ(mask, (std::vector<std::int64_t>{1, 1, 1, 1, 0}));
    set.null_caption(states.data(), mask.data());
    EXPECT_EQ(mask, (std::vector<std::int64_t>{1, 0, 0, 0, 0}));
    EXPECT_TRUE(has(message_of([&] { (void)set.label(0); }), "has no labels"));
    if (!latents) {
      EXPECT_TRUE(has(message_of([&] { set.latent(0, false, states.data()); }), "has no latents"));
    }
  }
}

TEST_F(LatentSets, AskedForWhatIsNotThere) {
  make_latent_set(place(), {.flipped = false});
  const LatentSet set = LatentSet::open(place());
  std::vector<float> latent(static_cast<std::size_t>(set.latent_size()));
  EXPECT_TRUE(has(message_of([&] { set.latent(0, true, latent.data()); }), "made with --flip"));
  EXPECT_TRUE(has(message_of([&] { set.latent(7, false, latent.data()); }), "item 7, expected 0 to 6"));
  EXPECT_TRUE(has(message_of([&] { set.latent(-1, false, latent.data()); }), "item -1"));
  EXPECT_TRUE(has(message_of([&] { set.caption(0, latent.data(), nullptr); }), "has no captions"));
}

TEST_F(LatentSets, ADamagedShardIsNamed) {
  make_latent_set(place());
  change_byte(shard_name(1), 5);
  const LatentSet set = LatentSet::open(place());  // heads are as they were
  std::vector<float> latent(static_cast<std::size_t>(set.latent_size()));
  set.latent(2, false, latent.data());
  for (int i = 0; i < 2; ++i) {  // and again: it does not become right by asking twice
    const std::string text = message_of([&] { set.latent(3, false, latent.data()); });
    EXPECT_TRUE(has(text, place() + "/shard-00001.safetensors: SHA-256 is ")) << text;
    EXPECT_TRUE(has(text, "the file is damaged; run `mhla data encode` again")) << text;
  }
}

TEST_F(LatentSets, FoldersThatAreRefused) {
  EXPECT_TRUE(has(refusal(), "latents.json is missing, expected a folder of `mhla data encode`"));
  const LatentSetConfig whole = make_latent_set(place());
  const auto with = [&](const std::function<void(LatentSetConfig&)>& change) {
    LatentSetConfig c = whole;
    change(c);
    write_file(place() + "/latents.json", write_json(fields_to_json(c)));
    return refusal();
  };
  EXPECT_TRUE(has(with([](auto& c) { c.sha256.pop_back(); }), "2 of 3 shards are there; run `mhla data encode`"));
  EXPECT_TRUE(has(with([](auto& c) { c.sha256.push_back(c.sha256[0]); }), "'sha256' has 4 items, but there are 3"));
  EXPECT_TRUE(has(with([](auto& c) { c.sha256[1] = "../etc"; }), "expected the 64 digits of a SHA-256"));
  EXPECT_TRUE(has(with([](auto& c) { c.version = 2; }), "latents.json: 'version' is 2, expected 1"));
  EXPECT_TRUE(has(with([](auto& c) { c.shape = {4, 2}; }), "'shape' is [4, 2], expected 3 sizes"));
  EXPECT_TRUE(has(with([](auto& c) {
                    c.shape = {4, 3, 2};
                  }),
                  "latents is f32 [3, 4, 2, 3], expected f32 [3, 4, 3, 2]"));
  EXPECT_TRUE(has(with([](auto& c) { c.dtype = "bf16"; }), "latents is f32 [3, 4, 2, 3], expected bf16"));
  EXPECT_TRUE(has(with([](auto& c) { c.dtype = "u8"; }), "expected bf16, f16 or f32"));
  EXPECT_TRUE(has(with([](auto& c) { c.flipped = false; }), "has 3 tensors, expected 2"));
  EXPECT_TRUE(has(with([](auto& c) { c.classes = {"ant", "bee"}; }), "label 2 of item 2, expected 0 to 1"));
  EXPECT_TRUE(has(with([](auto& c) { c.classes.clear(); }), "has 3 tensors, expected 2"));
  EXPECT_TRUE(has(with([](auto& c) { c.captions = {5, 2}; }), "'null_sha256' has ''"));
  EXPECT_TRUE(has(with([](auto& c) { c.count = 0; }), "'count' is 0"));
  EXPECT_TRUE(has(with([](auto& c) { c.count = std::numeric_limits<std::int64_t>::max(); }), "expected 1 to"));
  EXPECT_TRUE(has(with([](auto& c) { c.shard_items = 0; }), "'shard_items' is 0"));
  EXPECT_TRUE(has(with([](auto& c) { c.scale = 0; }), "'scale' is 0"));
  EXPECT_TRUE(has(with([](auto& c) { c.posterior = "mode"; }), "expected sample or mean"));
  EXPECT_EQ(with([](auto&) {}), "nothing was thrown");
  write_file(place() + "/latents.json", std::string("{\"version\": 1}"));
  EXPECT_TRUE(has(refusal(), "latents.json: 'source' is missing"));
  write_file(place() + "/latents.json", std::string("[1]"));
  EXPECT_TRUE(has(refusal(), "latents.json: ")) << refusal();
  write_file(place() + "/latents.json", write_latent_config(whole));
  std::filesystem::remove(place() + "/shard-00002.safetensors");
  EXPECT_TRUE(has(refusal(), "shard-00002.safetensors: is missing"));
}

TEST_F(LatentSets, NumbersThatAreNotFinite) {
  LatentSetConfig c = make_latent_set(place(), {.count = 2, .labels = false, .flipped = false});
  std::vector<float> values(2 * 4 * 2 * 3, 1.0f);
  values[30] = std::numeric_limits<float>::quiet_NaN();
  write_safetensors(place() + "/" + shard_name(0), {{"latents", ConstView(values.data(), DType::kF32, {2, 4, 2, 3})}});
  c.sha256 = {file_sha256(place() + "/" + shard_name(0))};
  write_file(place() + "/latents.json", write_latent_config(c));
  EXPECT_TRUE(has(refusal(), "the latent of item 1 has a NaN or infinite number"));
}

TEST(LatentConfig, IsTheSameAfterWritingAndReading) {
  ScratchFolder scratch;
  const LatentSetConfig c = make_latent_set(scratch.path("set"), {.captions = true});
  EXPECT_EQ(parse_latent_config(write_latent_config(c), "text"), c);
}

}  // namespace
}  // namespace mhla
