// Whole models: any split of a text gives the logits and the continuation of one pass; exact ones their bits. Texts
// that are cut, saved, forked and continued are the texts that were not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "mhla/core/error.h"
#include "mhla/io/text/bpe.h"
#include "mhla/language/decoding/generator.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/testing/messages.h"
#include "mhla/testing/random.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

LmConfig small(const std::string& attention = "mhla") {
  LmConfig c;
  c.model = "mhla_10m", c.attention = attention;
  c.vocab = 257, c.dim = 64, c.layers = 2, c.heads = 2, c.mlp = 160, c.context = 512, c.chunk = 16;
  c.match = has_mlp(attention);
  return c;
}

LanguageModel make(const LmConfig& c, std::int64_t seed = 1) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  LanguageModel model(c);
  const torch::NoGradGuard no_gradient;  // larger weights, so that the blocks matter
  for (const auto& item : model->named_parameters())
    if (item.value().dim() == 2 && item.key().find(".mix") == std::string::npos) item.value().mul_(5);
  return model;
}

torch::Tensor random_tokens(std::int64_t count, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::randint(256, {1, count}, torch::kLong);
}

// Logits of every token, [N, vocab], with the sequence cut into pieces of random lengths, single tokens among them.
torch::Tensor in_pieces(LanguageModel& model, const torch::Tensor& tokens, std::uint64_t seed) {
  const torch::NoGradGuard no_gradient;
  Random random(seed);
  LmState state = model->begin(1);
  std::vector<torch::Tensor> parts;
  for (std::int64_t at = 0; at < tokens.size(1);) {
    const double u = random.uniform();
    std::int64_t count = u < 0.3   ? 1
                         : u < 0.6 ? 1 + static_cast<std::int64_t>(random.uniform() * 7)
                                   : 1 + static_cast<std::int64_t>(random.uniform() * 80);
    count = std::min(count, tokens.size(1) - at);
    parts.push_back(model->logits(model->stream(tokens.narrow(1, at, count), state)).squeeze(0));
    at += count;
  }
  return torch::cat(parts, 0);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

TEST(WholeModel, AnySplitGivesTheLogitsOfOnePass) {
  const torch::NoGradGuard no_gradient;
  LanguageModel model = make(small());
  for (const std::int64_t length : {1, 15, 16, 17, 64, 127, 300, 512}) {
    const torch::Tensor tokens = random_tokens(length, length), want = model->forward(tokens).squeeze(0);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const double off = ((in_pieces(model, tokens, seed) - want).abs().max() / want.abs().max()).item<double>();
      EXPECT_LE(off, 2e-5) << length << " tokens, split " << seed;
    }
  }
}

TEST(WholeModel, ExactHasTheSameBitsForAnySplitBatchAndThreads) {
  const torch::NoGradGuard no_gradient;
  for (const char* attention : {"mhla", "linear"})
    for (const char* features : {"relu", "elu1"}) {
      LmConfig c = small(attention);
      c.features = features, c.dim = 72, c.mlp = 100;  // no multiples of a vector
      LanguageModel model = make(c);
      model->set_exact(true);
      const torch::Tensor tokens = random_tokens(300, 7), want = model->forward(tokens).squeeze(0);
      for (std::uint64_t seed = 0; seed < 6; ++seed)
        EXPECT_TRUE(same_bits(in_pieces(model, tokens, seed), want))
            << attention << " " << features << ", split " << seed;
      // Others in the batch, at other places.
      const torch::Tensor other = random_tokens(300, 8);
      EXPECT_TRUE(same_bits(model->forward(torch::cat({other, tokens, other}, 0))[1], want));
      LmState state = join([&] {
        std::vector<LmState> states;
        for (const auto& [text, count] : {std::pair{other, 100}, {tokens, 299}}) {
          states.push_back(model->begin(1));
          model->prefill(text.narrow(1, 0, count), states.back(), 64);
        }
        return states;
      }());
      const torch::Tensor last = torch::stack({other[0][100], tokens[0][299]});
      EXPECT_TRUE(same_bits(model->decode(last, state)[1], want[299]));
    }
}

TEST(WholeModel, ExactIsRefusedWhereItWouldNotBe) {
  EXPECT_EQ(message_of([] { make(small("softmax"))->set_exact(true); }),
            "LanguageModel::set_exact: attention is softmax, expected mhla or linear");
  LmConfig c = small();
  c.short_conv = 4;
  EXPECT_EQ(message_of([&] { make(c)->set_exact(true); }), "LanguageModel::set_exact: short_conv is 4, expected 0");
  LanguageModel half = make(small());
  half->cast(torch::kBFloat16);
  EXPECT_TRUE(has(message_of([&] { half->set_exact(true); }), "expected f32 on the CPU"));
}

class Generation : public testing::Test {
 protected:
  Generation() : model_(make(small())), tokenizer_(byte_tokenizer()) {
    folder_ = fs::path(testing::TempDir()) / str("mhla_generation_", ::getpid());
    fs::create_directories(folder_);
  }
  ~Generation() override {
    std::error_code none;
    fs::remove_all(folder_, none);
  }
  Generated write(TextContext& context, GenerateOptions o, const TakeText& take = {}, bool goes_on = false,
                  const std::function<bool()>& stopped = {}) {
    o.goes_on = goes_on;
    return generate(*model_, *tokenizer_, context, o, take, stopped);
  }
  static GenerateOptions sampled(std::int64_t tokens) {
    GenerateOptions o;
    o.max_tokens = tokens, o.sampler.seed = 5, o.sampler.top_k = 40, o.sampler.repetition_penalty = 1.1;
    o.end_with_document = false;
    return o;
  }
  LanguageModel model_;
  TokenizerPtr tokenizer_;
  fs::path folder_;
};

TEST_F(Generation, SequencesJoinAndLeaveASessionBetweenSteps) {
  const std::vector<std::string> prompts{"The garden", "a", "once upon"};
  std::vector<TextContext> want;
  for (std::size_t i = 0; i < prompts.size(); ++i) {  // each by itself, with the number it has below
    Session session(*model_, *tokenizer_);
    const SequenceId id = session.add(read_texts(*model_, *tokenizer_, {prompts[i]}), sampled(12), 7 + i).front();
    while (session.going() > 0) session.step();
    want.push_back(session.remove(id).context);
  }
  Session session(*model_, *tokenizer_);
  const auto join = [&](std::size_t i) {
    return session.add(read_texts(*model_, *tokenizer_, {prompts[i]}), sampled(12), 7 + i).front();
  };
  const SequenceId first = join(0);
  session.step(), session.step();
  const SequenceId second = join(1);
  session.step();
  const SequenceId third = join(2);
  session.step();
  Session::Removed gone = session.remove(second);
  EXPECT_EQ(gone.text.ended, EndReason::kInterrupted);
  EXPECT_EQ(gone.text.tokens, 2);
  EXPECT_EQ(session.going(), 2);
  while (session.going() > 0) session.step();
  EXPECT_EQ(session.remove(first).context.tokens, want[0].tokens);
  EXPECT_EQ(session.remove(third).context.tokens, want[2].tokens);
  // One that left goes on in another session.
  Session other(*model_, *tokenizer_);
  const SequenceId again = other.add(std::move(gone.context), sampled(10), 8).front();
  while (other.going() > 0) other.step();
  EXPECT_EQ(other.remove(again).context.tokens, want[1].tokens);
  EXPECT_EQ(message_of([&] { session.remove(first); }), "generate: no sequence 0 is in the session");
}

TEST_F(Generation, GreedyIsWhatOnePassSaysOnAHundredPrompts) {
  const torch::NoGradGuard no_gradient;
  std::vector<std::string> prompts;
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    std::string text;
    for (int j = 0; j < 1 + 2 * i; ++j) text += static_cast<char>('a' + static_cast<int>(random.uniform() * 26));
    prompts.push_back(text);
  }
  GenerateOptions o;
  o.max_tokens = 256, o.sampler.temperature = 0.0, o.end_with_document = false;
  TextContext context = read_texts(*model_, *tokenizer_, prompts, 37);
  const TextContext other = read_texts(*model_, *tokenizer_, prompts);
  const Generated all = write(context, o);
  EXPECT_EQ(all.steps, 256);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::uint32_t>& tokens = context.tokens[i];
    ASSERT_EQ(tokens.size(), 1 + prompts[i].size() + 256);
    ASSERT_EQ(all.texts[i].ended, EndReason::kLength);
    const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
    const torch::Tensor once =
        model_->forward(torch::tensor(wide, torch::kLong).unsqueeze(0)).argmax(-1).squeeze(0);  // [N]
    for (std::size_t t = other.tokens[i].size(); t < tokens.size(); ++t)
      ASSERT_EQ(once[static_cast<std::int64_t>(t) - 1].item<std::int64_t>(), tokens[t]) << "prompt " << i << ", " << t;
  }
}

TEST_F(Generation, CutSavedAndContinuedIsTheSameText) {
  const std::vector<std::string> prompts = {"one", "another prompt", ""};
  TextContext whole = read_texts(*model_, *tokenizer_, prompts);
  const Generated want = write(whole, sampled(60));
  TextContext first = read_texts(*model_, *tokenizer_, prompts, 2);
  const Generated a = write(first, sampled(25), {}, /*goes_on=*/true);
  const fs::path file = folder_ / "state";
  save_context(*model_, *tokenizer_, first, file);
  TextContext second = load_context(*model_, *tokenizer_, file);
  EXPECT_EQ(second.tokens, first.tokens);
  const Generated b = write(second, sampled(35));
  EXPECT_EQ(second.tokens, whole.tokens);
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(a.texts[i].text + b.texts[i].text, want.texts[i].text);
  // A context of one text is forked: each goes on by itself, as if the text had been read at once.
  TextContext one = read_texts(*model_, *tokenizer_, {"root "});
  TextContext forks = read_more(*model_, *tokenizer_, std::move(one), {"left", "right"});
  TextContext apart = read_texts(*model_, *tokenizer_, {"root left", "root right"});
  EXPECT_EQ(forks.tokens, apart.tokens);
  EXPECT_EQ(forks.state.positions(), apart.state.positions());
  EXPECT_EQ(write(forks, sampled(20)).texts[1].text, write(apart, sampled(20)).texts[1].text);
}

// One text ended before, the others are ended where they are; what continues them writes what would have come.
TEST_F(Generation, InterruptedAndContinuedIsTheSameText) {
  const std::vector<std::string> prompts = {"one", "another prompt"};
  TextContext whole = read_texts(*model_, *tokenizer_, prompts);
  const Generated want = write(whole, sampled(40));
  for (const int steps : {0, 1, 17}) {
    TextContext context = read_texts(*model_, *tokenizer_, prompts);
    GenerateOptions o = sampled(40);
    const auto stopped = [left = steps]() mutable { return left-- == 0; };
    const Generated a = write(context, o, {}, /*goes_on=*/true, stopped);
    EXPECT_EQ(a.steps, steps);
    const Generated b = write(context, sampled(40 - steps));
    EXPECT_EQ(context.tokens, whole.tokens);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(a.texts[i].ended, EndReason::kInterrupted);
      EXPECT_EQ(a.texts[i].tokens, steps);
      EXPECT_EQ(a.texts[i].text + b.texts[i].text, want.texts[i].text);
    }
  }
  // Reading stops between two pieces.
  int pieces = 0;
  const auto stop = [&] {
    if (++pieces == 3) throw std::runtime_error("enough");
  };
  EXPECT_THROW(read_texts(*model_, *tokenizer_, {std::string(100, 'x')}, 10, stop), std::runtime_error);
  EXPECT_EQ(pieces, 3);
}

// Bytes, with a space before every text as SentencePiece has it.
class SpacedTokenizer final : public Tokenizer {
 public:
  class Spaced final : public Encoder {
    void encode(std::string_view text, std::vector<std::uint32_t>& ids) override {
      byte_tokenizer()->encoder()->encode(text.empty() ? "" : str(" ", text), ids);
    }
  };
  [[nodiscard]] std::string kind() const override { return "spaced"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return bytes_->vocab_size(); }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }
  [[nodiscard]] const std::vector<SpecialToken>& specials() const override { return bytes_->specials(); }
  [[nodiscard]] const std::vector<std::uint32_t>& opening() const override { return bytes_->opening(); }
  [[nodiscard]] const std::vector<std::uint32_t>& closing() const override { return bytes_->closing(); }
  [[nodiscard]] std::unique_ptr<Encoder> encoder(SpecialText) const override { return std::make_unique<Spaced>(); }
  [[nodiscard]] std::vector<std::uint32_t> encode_more(std::string_view text) const override {
    return bytes_->encode(text);
  }
  void save(const fs::path& path) const override { bytes_->save(path); }
  [[nodiscard]] std::string_view token_text(std::int64_t id) const override { return bytes_->token_text(id); }

 private:
  TokenizerPtr bytes_ = byte_tokenizer();
};

TEST_F(Generation, APromptBehindATextIsNoBeginning) {
  const SpacedTokenizer spaced;
  const auto whole = read_texts(*model_, spaced, {"root left"}).tokens;
  EXPECT_EQ(read_more(*model_, spaced, read_texts(*model_, spaced, {"root "}), {"left"}).tokens, whole);
  // Behind nothing but the opening it is one.
  EXPECT_EQ(read_more(*model_, spaced, read_texts(*model_, spaced, {""}), {"x"}).tokens,
            read_texts(*model_, spaced, {"x"}).tokens);
}

TEST_F(Generation, ATextDoesNotDependOnTheOthers) {
  model_->set_exact(true);
  TextContext all = read_texts(*model_, *tokenizer_, {"first", "the second of them", "3"});
  const Generated want = write(all, sampled(40));
  TextContext alone = read_texts(*model_, *tokenizer_, {"first"});
  EXPECT_EQ(write(alone, sampled(40)).texts[0].text, want.texts[0].text);
}

TEST_F(Generation, StopsAndStreams) {
  GenerateOptions o = sampled(200);
  TextContext context = read_texts(*model_, *tokenizer_, {"a", "b"});
  std::vector<std::string> streamed(2);
  const Generated free = write(context, o, [&](std::int64_t text, const std::string& piece) {
    EXPECT_FALSE(piece.empty());
    streamed[static_cast<std::size_t>(text)] += piece;
  });
  EXPECT_EQ(streamed[0], free.texts[0].text);
  EXPECT_EQ(streamed[1], free.texts[1].text);
  // Something that comes in the first text: it ends there, the other goes on. The stop begins with a whole character.
  std::size_t at = 80;
  while (context.tokens[0][at] >= 128) ++at;
  o.stops = {tokenizer_->decode(std::span(context.tokens[0]).subspan(at, 6))};
  TextContext again = read_texts(*model_, *tokenizer_, {"a", "b"});
  const Generated cut = write(again, o);
  EXPECT_EQ(cut.texts[0].ended, EndReason::kStop);
  EXPECT_EQ(cut.texts[0].text, free.texts[0].text.substr(0, cut.texts[0].text.size()));
  EXPECT_EQ(cut.texts[0].tokens, static_cast<std::int64_t>(at) + 6 - 2);  // behind two tokens of the prompt
  EXPECT_EQ(cut.texts[1].text, free.texts[1].text);
  EXPECT_EQ(again.state.positions()[1], 201);
  EXPECT_EQ(again.state.positions()[0], static_cast<std::int64_t>(at) + 5);
  // The end of a document ends a text.
  o = sampled(200);
  o.end_with_document = true, o.sampler.temperature = 0.0;
  const torch::NoGradGuard no_gradient;
  LanguageModel ends = make(small());
  for (const auto& item : ends->named_parameters())
    if (item.key() == "model.embeddings.weight") item.value()[256].mul_(40);  // <|endoftext|> likely or unlikely
  bool ended = false;
  for (const char* prompt : {"a", "b", "c", "d", "e", "f"}) {
    TextContext one = read_texts(*ends, *tokenizer_, {prompt});
    const Generated got = generate(*ends, *tokenizer_, one, o);
    ended = ended ||
            (got.texts[0].ended == EndReason::kDocument && got.texts[0].text.find("endoftext") == std::string::npos);
  }
  EXPECT_TRUE(ended);
}

// A text that is saved within a stop string, or at one, goes on as the text that was not.
TEST_F(Generation, GoesOnWithinAndBehindAStop) {
  TextContext whole = read_texts(*model_, *tokenizer_, {"a"});
  const Generated free = write(whole, sampled(120));
  std::size_t at = 60;
  while (whole.tokens[0][at] >= 128 || whole.tokens[0][at + 1] >= 128) ++at;
  const std::string stop = tokenizer_->decode(std::span(whole.tokens[0]).subspan(at, 2));
  const fs::path file = folder_ / "state";
  const auto saved = [&](const TextContext& context) {
    save_context(*model_, *tokenizer_, context, file);
    return load_context(*model_, *tokenizer_, file);
  };
  GenerateOptions o = sampled(120);
  o.stops = {stop};
  TextContext stopped = read_texts(*model_, *tokenizer_, {"a"});
  const Generated want = write(stopped, o);
  ASSERT_EQ(want.texts[0].ended, EndReason::kStop);
  const std::int64_t drawn = want.texts[0].tokens;
  for (const std::string& other : {stop, stop.substr(0, 1) + "\x01\x02"}) {  // one that comes, one that does not
    o.stops = {other}, o.max_tokens = drawn - 1;                             // behind the first byte of it
    TextContext first = read_texts(*model_, *tokenizer_, {"a"});
    const Generated a = write(first, o, {}, /*goes_on=*/true);
    ASSERT_EQ(a.texts[0].ended, EndReason::kLength);
    TextContext second = saved(first);
    o.max_tokens = 120 - o.max_tokens;
    const Generated b = write(second, o);
    EXPECT_EQ(a.texts[0].text + b.texts[0].text, other == stop ? want.texts[0].text : free.texts[0].text);
    EXPECT_EQ(second.tokens, other == stop ? stopped.tokens : whole.tokens);
  }
  EXPECT_EQ(stopped.tokens[0].size(), 2 + static_cast<std::size_t>(drawn));  // the stop string is in the context
  TextContext behind = saved(stopped);
  const Generated rest = write(behind, sampled(120 - drawn));
  EXPECT_EQ(want.texts[0].text + stop + rest.texts[0].text, free.texts[0].text);
  EXPECT_EQ(behind.tokens, whole.tokens);
  // A token may hold a stop string and more: that is shown first, and may stop again.
  TextContext more = saved(stopped);
  more.held = {"x" + stop + "y"};
  EXPECT_EQ(write(more, sampled(0)).texts[0].text, "");
  o.stops = {stop}, o.max_tokens = 5;
  const Generated again = write(more, o);
  EXPECT_EQ(again.texts[0].text, "x");
  EXPECT_EQ(again.texts[0].tokens, 0);
  EXPECT_EQ(saved(more).held[0], "y");
  EXPECT_EQ(more.tokens, stopped.tokens);
  EXPECT_EQ(read_more(*model_, *tokenizer_, saved(more), {"z"}).held[0], "");  // a prompt stands between
}

TEST_F(Generation, IdsWithoutTokenAreNeverDrawn) {
  LmConfig c = small();
  c.vocab = 300;
  LanguageModel model = make(c);
  TextContext context = read_texts(*model, *tokenizer_, {"x"});
  generate(*model, *tokenizer_, context, sampled(200));
  for (const std::uint32_t token : context.tokens[0]) EXPECT_LT(token, 257u);
}

TEST_F(Generation, LengthsAreHeldToThePolicy) {
  TextContext context = read_texts(*model_, *tokenizer_, {"abc"});
  EXPECT_NE(message_of([&] { write(context, sampled(509)); }), "nothing was thrown");  // 4 + 509 > 512
  EXPECT_EQ(context.tokens[0].size(), 4u);
  EXPECT_EQ(write(context, sampled(508)).texts[0].tokens, 508);
  LanguageModel further = make(small());
  further->set_length_policy(LengthPolicy::kExtend);
  TextContext longer = read_texts(*further, *tokenizer_, {std::string(700, 'x')});
  EXPECT_EQ(generate(*further, *tokenizer_, longer, sampled(30)).texts[0].tokens, 30);
}

TEST_F(Generation, StatesOfOthersAreRefused) {
  TextContext context = read_texts(*model_, *tokenizer_, {"abc", "d"});
  const fs::path file = folder_ / "state";
  save_context(*model_, *tokenizer_, context, file);
  const auto said = [&](LanguageModel& model, const Tokenizer& tokenizer) {
    return message_of([&] { (void)load_context(*model, tokenizer, file); });
  };
  LanguageModel other = make(small(), 2);
  EXPECT_TRUE(has(said(other, *tokenizer_), "is the state of other weights"));
  LmConfig c = small();
  c.chunk = 32;
  LanguageModel shaped = make(c);
  EXPECT_TRUE(has(said(shaped, *tokenizer_), "is the state of another model"));
  BpeTable table = dynamic_cast<const BpeTokenizer&>(*tokenizer_).table();
  table.opening = {256};
  EXPECT_TRUE(has(said(model_, BpeTokenizer(table)), "is of another tokenizer"));
  LanguageModel further = make(small());
  further->set_length_policy(LengthPolicy::kExtend);
  EXPECT_TRUE(has(said(further, *tokenizer_), "was made with length policy error, expected extend"));
  LanguageModel exact = make(small());
  exact->set_exact(true);
  EXPECT_TRUE(has(said(exact, *tokenizer_), "was made without --exact, expected one made with it"));
  EXPECT_EQ(message_of([&] {
              (void)read_more(*model_, *tokenizer_, load_context(*model_, *tokenizer_, file), {"x", "y", "z"});
            }),
            "generate: 3 prompts after a context of 2 texts, expected as many");
  save_context(*exact, *tokenizer_, read_texts(*exact, *tokenizer_, {"abc"}), file);
  EXPECT_EQ(load_context(*exact, *tokenizer_, file).texts(), 1);
  EXPECT_EQ(load_context(*model_, *tokenizer_, file).texts(), 1);  // no promise is broken
  save_context(*model_, *tokenizer_, context, file);
  // One bit anywhere in the numbers.
  std::string bytes;
  {
    std::ifstream in(file, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (std::size_t at = bytes.size() - 1; at > bytes.size() / 2; at -= bytes.size() / 17) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(file, std::ios::binary) << damaged;
    EXPECT_TRUE(has(said(model_, *tokenizer_), "checksum")) << at;
  }
}

}  // namespace
}  // namespace mhla
