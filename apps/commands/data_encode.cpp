// mhla data encode: images, videos and captions to cached latents, for training over latents.
#include "apps/commands/data_encode.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "apps/cli/axes.h"
#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "mhla/core/memory.h"
#include "mhla/data/latent_set.h"

namespace mhla::apps {
namespace {

void describe(const std::string& folder, const LatentSetConfig& c, const Output& out) {
  out.line(fmt::format("{}: {} items of {}", folder, c.count, c.source));
  if (c.has_latents())
    out.line(fmt::format("  latents   {} {} of images of {}{}, scale {}{}", fmt::join(c.shape, " x "), c.dtype,
                         fmt::join(c.image, " x "), c.flipped ? ", plain and flipped" : "", c.scale,
                         c.posterior == "sample" ? fmt::format(", sampled with seed {}", c.seed) : ""));
  if (c.has_labels()) out.line(fmt::format("  classes   {}", c.classes.size()));
  if (c.has_captions())
    out.line(fmt::format("  captions  {} tokens of {} channels, {}", c.captions[0], c.captions[1], c.dtype));
  out.line(fmt::format("  shards    {} of up to {} items", c.sha256.size(), c.shard_items));
}

int run_encode(const EncodeRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        if (said_warning(row)) return;
        out.row(row);
        if (row.at("kind").as_string() == "start") {
          if (const std::int64_t kept = row.at("kept").as_int(); kept > 0)
            out.line(fmt::format("{} of {} shards are there already", kept, row.at("shards").as_int()));
          return;
        }
        out.progress_done();
        describe(request.out, LatentSet::open(request.out).config(), out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(&Engine::encode_data, request, rows);
}

}  // namespace

int run_latent_info(const std::string& folder, bool json) {
  const Output out(json);
  const LatentSet set = LatentSet::open(folder);
  set.verify();
  describe(folder, set.config(), out);
  out.line("  damaged   none: checksums, labels and numbers are right");
  out.row(fields_to_json(set.config()).set("kind", "latents").set("data", folder));
  return kDone;
}

void add_data_encode(CLI::App& data, Job& job) {
  CLI::App* command =
      data.add_subcommand("encode", "turn images or videos into latents and captions into states, once, for training");
  static EncodeRequest request;
  static bool json = false;
  static std::string size;
  const RequestFlags flags(*command, request);
  flags["data"].type_name("NAME|DIR");
  flags.shown("split").check(one_of({"train", "test"}));
  flags["vae"].type_name("DIR");
  flags["image"].check(within(limits::kImage));
  flags.shown("posterior").check(one_of({"sample", "mean"}));
  flags.shown("seed").check(whole_number(0, std::int64_t{1} << 53));
  flags["text_encoder"].type_name("DIR");
  flags["captions"].type_name("FILE");
  flags["caption_tokens"].check(whole_number(2, 4096));
  flags.shown("frames").check(whole_number(1, 100000));
  command
      ->add_option(
          "--size", size,
          "videos: rows and columns of a frame; frames are scaled, and the middle is cut out (default: 480x832)")
      ->type_name("RxC");
  flags.shown("fps").check(CLI::NonNegativeNumber);
  flags.shown("dtype").check(one_of({"bf16", "f16", "f32"}));
  flags["out"].required()->type_name("DIR");
  flags["shard_items"].check(whole_number(1, std::int64_t{1} << 32));
  flags.shown("batch").check(within(limits::kBatch));
  flags.shown("device").type_name("NAME");
  flags.shown("threads").check(whole_number(0, 1024));
  add_json(*command, json);
  command->footer(
      "A run that was interrupted is continued by the same command; the result has the same bytes. Damaged or missing\n"
      "files of a finished folder are made again. Every file has a SHA-256 in latents.json, compared when it is read.");
  command->callback([&job] {
    job = [] {
      if (request.data.empty() && !request.vae.empty())
        fail("data encode: --data is missing, expected images or videos");
      if (!size.empty()) request.size = parse_plane(size, "data encode: --size");
      return run_encode(request, json);
    };
  });
}

}  // namespace mhla::apps
