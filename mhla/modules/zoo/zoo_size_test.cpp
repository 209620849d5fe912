// The formulas of attention_size.h against the modules: every attention of the zoo, and MHLA with every part.
#include "mhla/modules/zoo/zoo_size.h"

#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/modules/zoo/gated_image.h"

namespace mhla {
namespace {

TEST(ZooSize, IsThatOfTheModules) {
  for (const std::string_view name : attention_names()) {
    for (const std::int64_t dim : {16, 64}) {
      AttentionConfig image;
      image.dim = dim, image.heads = 2, image.layout = Layout::grid2d(4, 6, 2, 3);
      image.lepe = name == "softmax" ? 5 : 0;
      EXPECT_EQ(attention_size(name, image).parameters(),
                static_cast<double>(count_parameters(*make_attention(name, image))))
          << name << dim;
      if (!has_causal_form(name)) continue;
      AttentionConfig text;
      text.dim = dim, text.heads = 4, text.causal = true, text.chunk = 8, text.max_tokens = 60;
      EXPECT_EQ(attention_size(name, text).parameters(),
                static_cast<double>(count_parameters(*make_attention(name, text))))
          << name << dim;
    }
  }
  AttentionConfig video;
  video.dim = 24, video.heads = 2, video.layout = Layout::grid3d({2, 4, 6}, {1, 2, 3});
  for (const std::string_view name : {"mhla", "softmax"}) {
    video.lepe = name == "softmax" ? 3 : 0;
    EXPECT_EQ(attention_size(name, video).parameters(),
              static_cast<double>(count_parameters(*make_attention(name, video))))
        << name;
  }
  AttentionConfig gated;
  gated.dim = 16, gated.heads = 2, gated.layout = Layout::grid2d(4, 6, 1, 1);
  EXPECT_EQ(
      gated_size(gated).parameters(),
      static_cast<double>(count_parameters(GatedImageAttentionImpl(gated, GatedImageAttentionImpl::Core::kSoftmax))));
}

void expect_size(const char* what, const MhlaAttentionOptions& o) {
  EXPECT_EQ(size_of(o).parameters(), static_cast<double>(count_parameters(MhlaAttentionImpl(o)))) << what;
}

TEST(ZooSize, KnowsEveryPartOfMhla) {
  const Layout grid = Layout::grid2d(8, 8, 2, 4), video = Layout::grid3d({2, 4, 6}, {2, 2, 3});
  for (const bool official : {false, true}) {
    expect_size("image", MhlaAttentionOptions::image(32, 4, grid, official));
    expect_size("dit", MhlaAttentionOptions::dit(32, 4, grid, official));
    expect_size("video", MhlaAttentionOptions::video(32, 4, video, official));
    expect_size("lm", MhlaAttentionOptions::lm(32, 4, official));
  }
  expect_size("linear", MhlaAttentionOptions::linear(32, 4));
  for (const Features features : {Features::kT2r, Features::kHedgehog, Features::kHadamard, Features::kDpfp}) {
    MhlaAttentionOptions o = MhlaAttentionOptions::lm(32, 4);
    o.features = features, o.short_conv = 4, o.kv_heads = 2, o.head_dim = 6, o.value_dim = 10;
    o.mix_per_head = true, o.max_tokens = 100, o.chunk = 16;
    expect_size("features", o);
    o.gate = Gate::kNone, o.head_norm = false, o.qkv_bias = o.out_bias = true;
    expect_size("plain", o);
  }
}

}  // namespace
}  // namespace mhla
