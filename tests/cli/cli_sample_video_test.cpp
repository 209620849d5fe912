// mhla sample video, as a user runs it: a small pipeline of recorded and random weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "mhla/io/codecs/image.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/folder.h"
#include "tests/cli/browser.h"
#include "tests/cli/expect.h"
#include "tests/cli/train_fixture.h"
#include "tests/cli/wan_fixture.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

class CliSampleVideo : public testing::Test {
 protected:
  void SetUp() override {
    if (!MHLA_TORCH_BUILT) GTEST_SKIP() << "built without LibTorch";
    write_wan_pipeline(folder.path("wan"));
  }
  [[nodiscard]] std::vector<std::string> words(const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"sample", "video", "--out", folder.path(out)};
    const auto add = [&](const std::string& flag, const std::string& value) {
      if (std::find(more.begin(), more.end(), flag) == more.end()) all = joined(all, {flag, value});
    };
    add("--model", folder.path("wan")), add("--size", "32x48"), add("--frames", "9"), add("--steps", "3"),
        add("--threads", "1");
    if (std::find(more.begin(), more.end(), "--prompts") == more.end()) add("--prompt", "a red ball moves left");
    return joined(all, more);
  }
  ProgramRun expect_done(const std::vector<std::string>& arguments) {
    ProgramRun run = run_program(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    return run;
  }
  std::string video(const std::string& name, const std::vector<std::string>& more = {}) {
    expect_done(words(name, more));
    return file_text(folder.path(name));
  }
  void expect_refused_video(const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    expect_refused(words("refused.y4m", more), parts);
    EXPECT_FALSE(fs::exists(folder.path("refused.y4m")));
  }
  TemporaryFolder folder;
};

#define NEEDS_SENTENCEPIECE()                                                                   \
  if (has(run_program(words("probe.y4m", {"--steps", "1"})).err, "need libmhla_sentencepiece")) \
  GTEST_SKIP() << "built without SentencePiece"

TEST_F(CliSampleVideo, WritesEveryKindOfFile) {
  NEEDS_SENTENCEPIECE();
  const ProgramRun run = expect_done(words("clip.y4m", {"--seed", "7", "--negative", "blurry"}));
  for (const char* part : {"limit ", "text ", "umT5 in bf16", "denoise ", "decode ", "whole frames",
                           "9 frames of 32x48", "unipc in 3 steps, guidance 5"})
    EXPECT_TRUE(has(run.out, part)) << part << " in " << run.out;
  const std::string bytes = file_text(folder.path("clip.y4m")), head = "YUV4MPEG2 W48 H32 F16:1 Ip A1:1 C444\n";
  EXPECT_EQ(bytes.substr(0, head.size()), head);
  EXPECT_EQ(bytes.size(), head.size() + 9 * (6 + 3 * 32 * 48));
  const JsonValue settings = read_json(folder.path("clip.y4m.json"));
  for (const auto& [key, value] : {std::pair("prompt", "a red ball moves left"), std::pair("negative", "blurry"),
                                   std::pair("seed", "7"), std::pair("shift", "3.0"), std::pair("frames", "9")})
    EXPECT_EQ(settings.at(key).as_string(), value) << key;

  expect_done(words("frames", {"--seed", "7", "--negative", "blurry"}));
  const std::vector<std::byte> png = read_file(folder.path("frames/frame-00008.png"));
  const ImageText text = decode_png_text(png, "png");
  EXPECT_TRUE(std::find(text.begin(), text.end(), std::pair<std::string, std::string>("seed", "7")) != text.end());
  expect_done(words("clip.gif"));
  EXPECT_EQ(file_text(folder.path("clip.gif")).substr(0, 6), "GIF89a");
  EXPECT_NE(video("other.y4m", {"--seed", "8", "--negative", "blurry"}), bytes);  // the seed counts
  EXPECT_NE(video("more.y4m", {"--seed", "7"}), bytes);                           // and the negative prompt
}

// Text embeddings and noise of diffusers' pipeline in, its frames out.
TEST_F(CliSampleVideo, MakesTheRecordedVideo) {
  const Safetensors golden = Safetensors::read(kPipelineFile);
  const auto rows = [&](const char* name) {
    ConstView view = golden.view(name);  // [1, 6, 16]
    return ConstView(view.data, view.dtype, {6, 16});
  };
  write_safetensors(folder.path("text.safetensors"),
                    {{"0", rows("pipeline/in.text")}, {"1", rows("pipeline/in.negative")}},
                    {{"mhla.captions", R"({"yes": "0", "no": "1"})"}, {"mhla.text_encoder", "recorded"}});
  write_safetensors(folder.path("noise.safetensors"), {{"noise", golden.view("pipeline/in.noise")}});
  fs::remove_all(folder.path("wan/text_encoder")), fs::remove_all(folder.path("wan/tokenizer"));
  // diffusers gives the model as many places of text as it is called with: here six.
  write_file(folder.path("wan/transformer/config.json"),
             R"({"family": "wan", "model": "wan_1_3b", "attention": "softmax", "channels": 4, "out_channels": 4,
                 "dim": 40, "depth": 1, "heads": 2, "mlp": 48, "time_channels": 16, "text_dim": 16, "text_tokens": 6,
                 "pad_text": false, "wide_time": false})");
  expect_done(words("frames", {"--prompt", "yes", "--negative", "no", "--text-cache", folder.path("text.safetensors"),
                               "--noise", folder.path("noise.safetensors"), "--steps", "4", "--time-grid",
                               "diffusers-unipc", "--guidance", "5"}));
  const ConstView want = golden.view("pipeline/out.video");  // [1, 9, 32, 48, 3] in [0, 1]
  for (int frame = 0; frame < 9; ++frame) {
    const Image image = read_image(folder.path("frames/frame-0000" + std::to_string(frame) + ".png"));
    ASSERT_EQ(image.pixels.size(), 32u * 48u * 3u);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      const double level =
          255.0 * load_f64(want.data, want.dtype,
                           static_cast<std::int64_t>(frame) * 32 * 48 * 3 + static_cast<std::int64_t>(i));
      ASSERT_NEAR(image.pixels[i], level, 1.01) << frame << " " << i;  // truncated
    }
  }
}

TEST_F(CliSampleVideo, GoesOnAfterKillBitForBit) {
  NEEDS_SENTENCEPIECE();
  for (const char* sampler : {"unipc", "dpm++", "euler"}) {
    SCOPED_TRACE(sampler);
    const std::vector<std::string> how{"--steps", "60", "--sampler", sampler};
    const std::string whole = video(std::string("whole_") + sampler + ".y4m", how), state = folder.path("state");
    fs::remove(state);
    const ProgramRun killed =
        run_program(words("killed.y4m", joined(how, {"--save-latents", state})), {state, SIGKILL});
    EXPECT_EQ(killed.code, -1) << killed.err;
    EXPECT_FALSE(fs::exists(folder.path("killed.y4m")));
    EXPECT_EQ(video("killed.y4m", joined(how, {"--resume", state})), whole);
    fs::remove(folder.path("killed.y4m"));
    EXPECT_EQ(video("killed.y4m", joined(how, {"--resume", state})), whole);  // all steps are done: decoded again
    fs::remove(folder.path("killed.y4m"));
  }
  expect_refused_video({"--steps", "60", "--sampler", "euler", "--seed", "1", "--resume", folder.path("state")},
                       {"was begun with seed 0, now it is 1: expected the same settings"});
  expect_refused_video({"--resume", folder.path("wan/vae/diffusion_pytorch_model.safetensors")},
                       {"is no file of --save-latents"});
}

TEST_F(CliSampleVideo, StopsAtASignalAndSaysHowToGoOn) {
  NEEDS_SENTENCEPIECE();
  const std::string state = folder.path("state");
  const ProgramRun run = run_program(words("clip.y4m", {"--steps", "400", "--save-latents", state}), {state, SIGINT});
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_TRUE(has(run.err, "stopped by SIGINT after step ")) << run.err;
  EXPECT_TRUE(has(run.err, "continue with --resume " + state)) << run.err;
}

TEST_F(CliSampleVideo, TextIsEncodedOnce) {
  NEEDS_SENTENCEPIECE();
  const std::string cache = folder.path("text.safetensors");
  const std::string first = video("a.y4m", {"--text-cache", cache});
  fs::remove_all(folder.path("wan/text_encoder")), fs::remove_all(folder.path("wan/tokenizer"));
  const ProgramRun run = expect_done(words("b.y4m", {"--text-cache", cache}));
  EXPECT_TRUE(has(run.out, "no text encoder is loaded")) << run.out;
  EXPECT_EQ(file_text(folder.path("b.y4m")), first);
  EXPECT_EQ(video("c.y4m", {"--text-cache", cache, "--prompt", " a red  ball moves left\n"}), first);  // cleaned
  expect_refused_video({"--text-cache", cache, "--prompt", "another"},
                       {"'another' is not in", "expected text_encoder/ beside the model or --text-encoder PATH"});
}

TEST_F(CliSampleVideo, SeveralPromptsWithOneLoadSkipThoseDone) {
  NEEDS_SENTENCEPIECE();
  write_file(folder.path("all.jsonl"),
             "{\"prompt\": \"a red ball\", \"seed\": 5}\n\n"
             "{\"prompt\": \"a dog\", \"negative\": \"blurry\"}\n{\"prompt\": \"two cats\"}\n");
  const std::vector<std::string> how = words("clips.y4m", {"--prompts", folder.path("all.jsonl")});
  expect_done(how);
  EXPECT_EQ(file_text(folder.path("clips-0000.y4m")), video("one.y4m", {"--prompt", "a red ball", "--seed", "5"}));
  EXPECT_EQ(file_text(folder.path("clips-0001.y4m")),
            video("two.y4m", {"--prompt", "a dog", "--negative", "blurry", "--seed", "1"}));
  fs::remove(folder.path("clips-0002.y4m"));
  const ProgramRun again = expect_done(how);
  EXPECT_TRUE(has(again.out, "1 in ")) << again.out;
  EXPECT_TRUE(has(again.out, "; 2 were there")) << again.out;
  EXPECT_TRUE(fs::exists(folder.path("clips-0002.y4m")));
  expect_refused(joined(how, {"--guidance", "3"}), {"have other prompts or settings"});
  expect_refused(joined(how, {"--save-latents", folder.path("s")}), {"--save-latents is given with 3 prompts"});
}

TEST_F(CliSampleVideo, PreviewsTilesAndMemory) {
  NEEDS_SENTENCEPIECE();
  const std::string plain = video("clip.y4m", {"--preview", "2", "--steps", "5"});
  for (const char* name : {"clip-step-0002.png", "clip-step-0004.png"}) {
    const Image image = read_image(folder.path(name));
    EXPECT_EQ(image.height, 32);
    EXPECT_EQ(image.width, 48);
  }
  EXPECT_EQ(video("tiled.y4m", {"--tile", "--steps", "5"}), plain);  // one tile holds it all
  const ProgramRun run = expect_done(words("less.y4m", {"--max-memory", "500MB"}));
  EXPECT_TRUE(has(run.out, "of memory (--max-memory)")) << run.out;
  // The encoder needs 20 KB, the transformer 134 and 53 more for every latent frame.
  expect_refused_video({"--max-memory", "10e3"}, {"the text encoder needs", "--text-cache"});
  expect_refused_video({"--max-memory", "400e3", "--frames", "81"},
                       {"81 frames of 32x48 need", "(--max-memory): expected --frames "});
  expect_refused_video({"--max-memory", "lots"}, {"--max-memory is 'lots', expected a size such as 8GiB"});
}

TEST_F(CliSampleVideo, InBf16WhereTheCpuHasIt) {
  NEEDS_SENTENCEPIECE();
  const std::vector<std::string> half{"--precision", "bf16", "--seed", "7"};
  if (!cpu_has_bf16()) {
    expect_refused_video(half, {"precision is bf16, expected f32 on cpu: this CPU has no AVX-512 BF16"});
    return;
  }
  const std::string narrow = video("narrow.y4m", half), wide = video("wide.y4m", {"--seed", "7"});
  EXPECT_EQ(read_json(folder.path("narrow.y4m.json")).at("precision").as_string(), "bf16");
  ASSERT_EQ(narrow.size(), wide.size());
  double sum = 0;
  for (std::size_t i = 0; i < wide.size(); ++i)
    sum += std::abs(static_cast<int>(static_cast<unsigned char>(wide[i])) -
                    static_cast<int>(static_cast<unsigned char>(narrow[i])));
  EXPECT_GT(sum, 0);
  EXPECT_LT(sum / static_cast<double>(wide.size()), 2.0);
}

TEST_F(CliSampleVideo, RefusesWhatCannotBeMade) {
  expect_refused_video({"--frames", "80"}, {"--frames is 80, expected one and a multiple of 4: 77 or 81"});
  expect_refused_video({"--size", "32x40"}, {"--size is 32x40, expected multiples of 16", "32 or 48 instead of 40"});
  expect_refused_video({"--size", "8x48"}, {"16 instead of 8"});
  expect_refused(words("clip.avi"), {"ends in .avi, expected .mp4, .webp, .gif, .y4m"});
  expect_refused_video({"--guidance", "1", "--negative", "x"}, {"a negative prompt is given, but --guidance is 1"});
  expect_refused_video({"--time-grid", "linear", "--sampler", "ddim"},
                       {"--sampler is ddim, expected unipc, dpm++ or euler"});
  expect_refused_video({"--model", folder.path("none")}, {"which is not there, expected a folder"});
  expect_refused_video({"--model", folder.path("wan/vae")}, {"is of AutoencoderKLWan, expected a Wan transformer"});
  expect_refused_video({"--vae", folder.path("wan/text_encoder")}, {"config.json"});
  write_file(folder.path("noise.safetensors"), file_text(folder.path("wan/vae/diffusion_pytorch_model.safetensors")));
  expect_refused_video({"--noise", folder.path("noise.safetensors")}, {"tensors, expected one"});
  write_umt5_folder(folder.path("wide"), 24);
  expect_refused_video({"--text-encoder", folder.path("wide")}, {"has states of 24 channels, expected the 16"});
  write_file(folder.path("taken.y4m"), "taken");
  expect_refused(words("taken.y4m"), {"is there already, expected --overwrite or another --out"});
  EXPECT_EQ(file_text(folder.path("taken.y4m")), "taken");
}

TEST_F(CliSampleVideo, RefusesFilesOfAnotherModelAndLongPrompts) {
  NEEDS_SENTENCEPIECE();
  std::string words_of_many;
  for (int i = 0; i < 511; ++i) words_of_many += "x";
  expect_refused_video({"--prompt", words_of_many + "yz"}, {"tokens, expected at most 512: leave out the last "});
  write_file(folder.path("wan/vae/diffusion_pytorch_model.safetensors"),
             file_text(folder.path("wan/transformer/diffusion_pytorch_model.safetensors")));
  expect_refused_video({}, {"wan/vae has ", " numbers, expected the ", "it is of another model"});
  fs::remove_all(folder.path("wan/vae"));
  write_file(folder.path("wan/Wan2.1_VAE.pth"), "pickle");
  expect_refused_video({}, {"Wan2.1_VAE.pth is a pickle, expected Wan2.1_VAE.safetensors beside it"});
}

TEST_F(CliSampleVideo, Mp4OpensInFfprobe) {
  NEEDS_SENTENCEPIECE();
  if (std::system("ffprobe -version >/dev/null 2>&1") != 0) GTEST_SKIP() << "ffmpeg is not installed";
  expect_done(words("clip.mp4", {"--fps", "24"}));
  const std::string report = folder.path("report");
  ASSERT_EQ(std::system(
                ("ffprobe -v error -count_frames -show_streams -show_format " + folder.path("clip.mp4") + " >" + report)
                    .c_str()),
            0);
  const std::string said = file_text(report);
  for (const char* line :
       {"width=48\n", "height=32\n", "r_frame_rate=24/1\n", "nb_read_frames=9\n", "a red ball moves left"})
    EXPECT_TRUE(has(said, line)) << line << " in " << said;
}

// Plays the clip and writes what the browser says of it. A page counts as loading while frames are added to it, and
// --dump-dom waits for pages that load.
constexpr const char* kPlayer = R"(<!doctype html><body><video id=v muted preload=auto></video><pre id=out>waiting</pre>
<script>
let done = false;
const hold = () => {
  if (done) return;
  const f = document.createElement('iframe');
  f.srcdoc = 'x', f.onload = () => { hold(); f.remove(); }, document.body.append(f);
};
hold();
const v = document.getElementById('v');
const end = text => { document.getElementById('out').textContent = text, done = true; };
v.addEventListener('error', () => end('error ' + v.error.message));
v.addEventListener('ended', () => end(`${v.videoWidth}x${v.videoHeight}, ` +
    `${v.getVideoPlaybackQuality().totalVideoFrames} frames, ${v.duration} s`));
v.addEventListener('canplaythrough', () => { v.playbackRate = 0.5, v.play().catch(e => end('play: ' + e)); }, {once: true});
setTimeout(() => end('too slow'), 60000);
v.src = 'clip.mp4';
</script>)";

TEST_F(CliSampleVideo, Mp4PlaysInChromium) {
  NEEDS_SENTENCEPIECE();
  if (std::system("ffmpeg -version >/dev/null 2>&1") != 0) GTEST_SKIP() << "ffmpeg is not installed";
  std::string why;
  const std::string browser = chromium_in(folder.path(), why), log = folder.path("log");
  if (browser.empty()) GTEST_SKIP() << why;
  expect_done(words("clip.mp4", {"--fps", "8"}));
  write_file(folder.path("page.html"), std::string(kPlayer));
  ASSERT_EQ(
      std::system((browser + " --dump-dom file://" + folder.path("page.html") + " >" + log + " 2>/dev/null").c_str()),
      0);
  EXPECT_TRUE(has(file_text(log), ">48x32, 9 frames, 1.125 s<")) << file_text(log);  // 8 frames a second
}

}  // namespace
}  // namespace mhla
