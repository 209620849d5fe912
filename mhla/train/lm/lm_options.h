// What `mhla train lm` can be told: the model, the text and how it is cut, then everything of TrainOptions. Plain
// values, as there.
#pragma once

#include <set>

#include "mhla/io/fields.h"
#include "mhla/models/names.h"
#include "mhla/train/options.h"

namespace mhla::train {

struct LmOptions {
  static constexpr const char* kTask = "lm";  // in train.json, and after `mhla train`
  std::string model = "mhla_30m";
  std::optional<std::string> attention;  // none: mhla, or what the file of the model says
  bool official = false;
  JsonValue network = JsonValue::object();
  std::string data = "default";
  std::string tokenizer;
  std::string tokens;
  std::optional<double> valid;  // of text without tokens: 0.01
  bool check_tokens = true;
  std::string packing = "documents";
  std::int64_t context = 0;
  std::int64_t eval_tokens = 1 << 18;
  std::int64_t mqar_pairs = 16, mqar_vocab = 8192, mqar_skew = 1, mqar_items = 100000;
  bool recompute = false;
  TrainOptions train = defaults();
  JsonValue origin = JsonValue::object();  // of paths(), absolute (origin.h)

  static std::set<std::string> paths() { return {"data", "tokenizer", "tokens", "init"}; }

  // The published recipe, but for what a machine must hold: batch, and steps by epochs.
  static TrainOptions defaults() {
    TrainOptions t;
    t.epochs = 1, t.batch = 8, t.lr = 3e-4, t.min_lr = 3e-5, t.weight_decay = 0.01, t.beta2 = 0.95;
    t.usual_warmup = 100;
    return t;
  }

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("model", o.model, model_help<LmOptions>());
    visit("attention", o.attention,
          "mhla, softmax, linear, gla, mamba, mamba2 or gdn, causal (default: mhla, or as in the config.json)");
    visit("official", o.official, "compute as the published code does (mhla)");
    visit("network", o.network, "fields of the model that differ from the named one");
    visit("data", o.data,
          "folder of `mhla data tokenize`, a text file, .jsonl (field text), a folder of these, sample: a novel that "
          "comes "
          "with mhla, default: Debian's dict-gcide, or mqar: associative recall, made on the fly");
    visit("tokenizer", o.tokenizer,
          "for text: bytes, a tokenizer.json, a SentencePiece .model, or train:SIZE (default: train one of the model's "
          "vocabulary, or the tokenizer of existing tokens)");
    visit("tokens", o.tokens, "for text: folder for its tokens, made on first use (default: tokens in the run)");
    visit("valid", o.valid,
          "for text: share of the documents to hold out, 0 to 0.5; at least one document, or the end of a single one "
          "(default: 0.01, or as in existing tokens)");
    visit("check_tokens", o.check_tokens, "read all tokens and check their checksums before the first step");
    visit("packing", o.packing,
          "documents: no document sees another; concatenate: windows over all of them, as published");
    visit("context", o.context, "tokens of a sequence; 0: the model's");
    visit("eval_tokens", o.eval_tokens, "held-out tokens to evaluate on; 0: all, or for mqar one epoch");
    visit("mqar_pairs", o.mqar_pairs, "for mqar: keys and values of a sequence, at most a quarter of context");
    visit("mqar_vocab", o.mqar_vocab, "for mqar: number of ids, half of them keys, half values");
    visit("mqar_skew", o.mqar_skew,
          "for mqar: 1, keys come back anywhere; more, mostly early (at u^n of the rest, u uniform)");
    visit("mqar_items", o.mqar_items, "for mqar: sequences per epoch, new ones in each");
    visit("recompute", o.recompute, "keep only the input of every block and recompute the block in the backward pass");
    TrainOptions::fields(o.train, visit);
    visit("origin", o.origin, "where the files above were when the run began");
  }
};

}  // namespace mhla::train
