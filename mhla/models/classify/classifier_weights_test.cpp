// Weights of image models: the published numbers and names, folders, and what does not fit.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "mhla/models/classify/classifier_fixture.h"
#include "mhla/models/weights_file.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

ClassifierConfig small_classifier(const std::string& name, const std::string& attention, bool official = false) {
  ClassifierConfig c = classifier_config(name == "vlt" ? "vlt_tiny" : "deit_tiny", attention, official);
  if (name == "vlt") {
    c.image = {32, 32}, c.dims = {16, 32, 32, 64}, c.depths = {1, 1, 1, 1}, c.heads = {1, 2, 2, 4};
    c.blocks = {{2, 2}, {2, 2}};
  } else {
    c.image = {32, 32}, c.patch = 4, c.dims = {32}, c.depths = {2}, c.heads = {2}, c.pad = {0, 0};
  }
  c.classes = 5;
  return c;
}

// The whole DeiT that the authors' code ran: image to logits, and every gradient.
TEST(ClassifierWeights, ReproduceThePublishedModel) {
  const Weights all = read_weights(MHLA_SOURCE_DIR "/tests/golden/classification.safetensors");
  const auto part = [&](const std::string& prefix) {
    Weights found;
    const std::string full = "deit_mhla_small/" + prefix;
    for (const auto& [name, value] : all) {
      if (name.compare(0, full.size(), full) == 0) found[name.substr(full.size())] = value;
    }
    return found;
  };
  ClassifierConfig c = classifier_config("deit_tiny", "mhla", /*official=*/true);
  c.image = {28, 28}, c.pad = {32, 32}, c.patch = 2, c.dims = {48}, c.depths = {2}, c.heads = {3}, c.classes = 10;
  c.mix_init = "cos";
  const AnyClassifier model = seeded_classifier(c);
  model->eval();
  load_published(*model, part("param."));
  torch::Tensor image = part("in.").at("img").clone().requires_grad_();
  const torch::Tensor out = model->forward(image);
  EXPECT_LE(relative_distance(out, all.at("deit_mhla_small/out")), 1e-5);
  out.backward(all.at("deit_mhla_small/dout"));
  EXPECT_LE(relative_distance(image.grad(), part("grad.in.").at("img")), 1e-5);
  const Weights wanted = part("grad.param.");
  const AnyClassifier gradients = seeded_classifier(c);  // under published names, through a model that holds them
  load_state(*gradients, [&] {
    Weights state;
    for (const auto& item : model->named_parameters()) state[item.key()] = item.value().grad();
    return state;
  }());
  const Weights got = published_weights(*gradients);
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, value] : wanted) EXPECT_LE(relative_distance(got.at(name), value), 2e-5) << name;
}

TEST(ClassifierWeights, HaveThePublishedNames) {
  const auto names = [](const ClassifierConfig& c) {
    std::set<std::string> found;
    for (const auto& [name, value] : published_weights(*seeded_classifier(c))) found.insert(name);
    return found;
  };
  std::set<std::string> deit{
      "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", "fc_norm.weight", "fc_norm.bias", "head.weight",
      "head.bias"};
  for (const char* block : {"blocks.0.", "blocks.1."}) {
    for (const char* name :
         {"norm1.weight", "norm1.bias", "attn.norm.weight", "attn.norm.bias", "attn.to_qkv.weight",
          "attn.q_norm.weight", "attn.k_norm.weight", "attn.lepe.weight", "attn.lepe.bias",
          "attn.piece_attn.conv.weight", "attn.to_out.0.weight", "attn.to_out.0.bias", "norm2.weight", "norm2.bias",
          "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"})
      deit.insert(std::string(block) + name);
  }
  EXPECT_EQ(names(small_classifier("deit", "mhla", true)), deit);
  const std::set<std::string> linear = names(small_classifier("deit", "linear", true));
  EXPECT_EQ(linear.count("blocks.0.norm1.weight"), 1u);
  EXPECT_EQ(linear.count("blocks.0.norm1.bias"), 0u);  // RMSNorm
  EXPECT_EQ(linear.count("blocks.0.attn.to_qkv.weight"), 1u);

  std::set<std::string> vlt;
  const auto both = [&](const std::string& name) { vlt.insert(name + ".weight"), vlt.insert(name + ".bias"); };
  const auto batch_norm = [&](const std::string& name) {
    both(name);
    for (const char* part : {".running_mean", ".running_var"}) vlt.insert(name + part);
  };
  for (const char* place : {"0", "3", "6", "9"}) both(str("patch_embed.proj.", place));
  for (const char* place : {"1", "4", "7", "10"}) batch_norm(str("patch_embed.proj.", place));
  for (int stage = 0; stage < 4; ++stage) {
    const std::string layer = str("layers.", stage, ".");
    vlt.insert(layer + "RoPE.angle");
    if (stage < 3) both(layer + "downsample.reduction"), batch_norm(layer + "downsample.norm");
    for (const char* name :
         {"pos", "norm1.norm", "attn.qkvo", "attn.lepe", "attn.proj", "norm2.norm", "ffn.fc1", "ffn.dwconv", "ffn.fc2"})
      both(layer + "blocks.0." + name);
    vlt.insert(layer + "blocks.0.gamma_1"), vlt.insert(layer + "blocks.0.gamma_2");
  }
  both("proj"), batch_norm("norm"), both("head");
  EXPECT_EQ(names(small_classifier("vlt", "rala")), vlt);
  const Weights published = published_weights(*seeded_classifier(small_classifier("vlt", "rala")));
  EXPECT_EQ(published.at("layers.1.blocks.0.attn.qkvo.weight").sizes(), (std::vector<std::int64_t>{128, 32, 1, 1}));
  EXPECT_EQ(published.at("layers.1.blocks.0.gamma_1").sizes(), (std::vector<std::int64_t>{1, 32, 1, 1}));
  EXPECT_EQ(published.at("layers.1.RoPE.angle").sizes(), (std::vector<std::int64_t>{8}));
}

TEST(ClassifierWeights, GoOutAndComeBack) {
  for (const ClassifierConfig& c :
       {small_classifier("deit", "mhla"), small_classifier("deit", "mhla", true), small_classifier("deit", "linear"),
        small_classifier("deit", "softmax"), small_classifier("deit", "gla"), small_classifier("vlt", "mhla"),
        small_classifier("vlt", "linear"), small_classifier("vlt", "rala"), small_classifier("vlt", "mala"),
        small_classifier("vlt", "softmax"), small_classifier("vlt", "inline")}) {
    SCOPED_TRACE(c.family + " " + c.attention);
    const AnyClassifier model = seeded_classifier(c);
    torch::manual_seed(7);
    const torch::Tensor x = torch::randn({2, 3, 32, 32});
    model->forward(x);  // batch norms have seen something
    model->eval();
    Weights published = published_weights(*model);
    torch::manual_seed(99);
    const AnyClassifier other = make_classifier(c);
    other->eval();
    EXPECT_FALSE(torch::equal(other->forward(x), model->forward(x)));
    load_published(*other, published);
    EXPECT_TRUE(torch::equal(other->forward(x), model->forward(x)));
    Weights wrapped;
    for (const auto& [name, value] : published) wrapped["module." + name] = value;
    if (c.family == "vlt") wrapped["module.norm.num_batches_tracked"] = torch::tensor(7);
    load_published(*other, wrapped);
    EXPECT_TRUE(torch::equal(other->forward(x), model->forward(x)));
  }
}

TEST(ClassifierWeights, OfSoftmaxAttentionStartMhla) {
  for (const char* family : {"deit", "vlt"}) {
    const AnyClassifier softmax = seeded_classifier(small_classifier(family, "softmax"));
    ClassifierConfig c = softmax->config();
    c.attention = "mhla", c.qkv_bias = true, c.qk_norm = false;
    const AnyClassifier turned = with_attention(*softmax, c);
    const Weights before = state_of(*softmax), after = state_of(*turned), fresh = state_of(*seeded_classifier(c));
    const std::string layer = c.family == "vlt" ? "layers.0.blocks.0.attn." : "blocks.1.attn.";
    EXPECT_TRUE(torch::equal(after.at("head.weight"), before.at("head.weight")));
    if (c.family == "vlt") {
      EXPECT_TRUE(torch::equal(torch::cat({after.at(layer + "qkv.weight"), after.at(layer + "gate.weight")}),
                               before.at(layer + "qkvo.weight")));
    } else {
      EXPECT_TRUE(torch::equal(after.at(layer + "qkv.weight"), before.at(layer + "qkv.weight")));
      EXPECT_TRUE(torch::equal(after.at(layer + "qkv.bias"), before.at(layer + "qkv.bias")));
    }
    EXPECT_TRUE(torch::equal(after.at(layer + "out.weight"), before.at(layer + "proj.weight")));
    EXPECT_TRUE(torch::equal(after.at(layer + "mix"), fresh.at(layer + "mix")));
    EXPECT_EQ(turned->forward(torch::randn({2, 3, 32, 32})).size(1), 5);
    c.dims[0] *= 2;
    EXPECT_TRUE(has(message_of([&] { with_attention(*softmax, c); }), "in more than its attention"));
  }
  EXPECT_TRUE(has(message_of([] {
                    with_attention(*seeded_classifier(small_classifier("deit", "gla")),
                                   small_classifier("deit", "mhla"));
                  }),
                  "from gla to mhla, expected softmax to mhla or linear"));
  EXPECT_TRUE(has(message_of([] {
                    with_attention(*seeded_classifier(small_classifier("deit", "softmax")),
                                   small_classifier("deit", "mhla"));
                  }),
                  "qkv_bias is false, expected true"));
}

TEST(ClassifierWeights, RefuseWhatDoesNotFit) {
  const AnyClassifier model = seeded_classifier(small_classifier("deit", "mhla"));
  const Weights before = state_of(*model);
  Weights published = published_weights(*model);
  for (auto& [name, value] : published) value = torch::zeros_like(value);
  published.erase("head.bias");
  published["cls_token"] = torch::zeros({1, 1, 32});
  EXPECT_EQ(message_of([&] { load_published(*model, published); }),
            "load_published: missing: head.bias; left over: cls_token");
  published = published_weights(*model);
  published.erase("blocks.1.attn.to_qkv.weight");
  EXPECT_TRUE(has(message_of([&] { load_published(*model, published); }),
                  "load_published: blocks.1.attn: weights: image: missing: to_qkv.weight"));
  Weights softmax = published_weights(*seeded_classifier(small_classifier("deit", "softmax")));
  EXPECT_TRUE(has(message_of([&] { load_published(*model, softmax); }), "left over: proj.bias, proj.weight, qkv.bias"));
  Weights wide = state_of(*model);
  wide["head.weight"] = torch::zeros({7, 32});
  EXPECT_TRUE(has(message_of([&] { load_state(*model, wide); }), "head.weight has shape [7, 32], expected [5, 32]"));
  for (const auto& [name, value] : state_of(*model)) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
}

TEST(ClassifierWeights, LieInAFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "classifier_weights_test";
  std::filesystem::remove_all(folder);
  for (const ClassifierConfig& c : {small_classifier("deit", "mhla"), small_classifier("vlt", "mhla")}) {
    const AnyClassifier model = seeded_classifier(c);
    const torch::Tensor x = torch::randn({2, 3, 32, 32});
    model->forward(x);
    model->eval();
    save_classifier(*model, folder);
    const AnyClassifier other = load_classifier(folder);
    other->eval();
    EXPECT_EQ(other->config(), c);
    EXPECT_TRUE(torch::equal(other->forward(x), model->forward(x)));
  }
  write_weights(folder / "model.safetensors", {{"x", torch::zeros({2})}});
  EXPECT_TRUE(has(message_of([&] { load_classifier(folder); }), "model.safetensors: load_state: missing: "));
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(has(message_of([&] { load_classifier(folder); }), "config.json"));
}

}  // namespace
}  // namespace mhla
