// What the program asks the engine for: one struct a command, its fields listed once. Flags, config files and the
// engine read the same struct. Plain values without LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/engine/encode/encode_request.h"
#include "mhla/io/fields.h"
#include "mhla/language/sampler.h"
#include "mhla/train/runs/open_options.h"

namespace mhla::apps {

// `mhla train TASK`; Options of the task have fields of their own.
template <class Options>
struct TrainRequest {
  std::string out;
  bool resume = false, overwrite = false;
  Options options;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("out", r.out, "folder for the run");
    visit("resume", r.resume,
          "continue from the newest checkpoint in --out with the options saved there; start if there is none");
    visit("overwrite", r.overwrite,
          "start anew if --out has a run; its files are removed once the options and data are accepted");
  }
};

// `mhla train TASK --nproc N`: the same command, N times; `mhla bench scale`, which listens to what they tell.
struct LaunchRequest {
  std::int64_t nproc = 0;
  std::vector<std::string> words;  // the program's name and its arguments, without --nproc
  bool listens = false;            // to JSON lines that the processes write to the descriptor that kTellVariable names
};
inline constexpr const char* kTellVariable = "MHLA_TELL";

struct EvalClassifyRequest {
  train::OpenOptions open;
  std::string data;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train classify`");
    visit("data", r.data, "other images of the same classes (default: the run's test images)");
    visit("batch", r.open.batch, "images at a time (default: as in training)");
    train::OpenOptions::fields(r.open, visit);
  }
};

// `mhla eval diffusion`: how well a denoiser removes noise from held-out images.
struct EvalDiffusionRequest {
  train::OpenOptions open;
  std::string data, against;
  bool each = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train diffusion`");
    visit("data", r.data, "other images of the same classes (default: the run's held-out images)");
    visit("against", r.against, "another run on the same data: the difference, with its paired standard error");
    visit("each", r.each, "with --json: also the loss of every image, to pair runs later");
    visit("batch", r.open.batch, "images at a time (default: as in training)");
    train::OpenOptions::fields(r.open, visit);
  }
};

// `mhla eval images`: how close two sets of images are.
struct EvalImagesRequest {
  std::string samples, reference, features, save_stats, classes, held_out, sheet, device = "cpu";
  std::vector<std::string> metrics, prompts;
  std::int64_t neighbours = 3, batch = 32, threads = 0;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("samples", r.samples,
          "the images to judge: a folder of them (at any depth) or of `mhla sample`, or an .npz with arr_0");
    visit(
        "reference", r.reference,
        "what to compare with: a folder, an .npz with arr_0 or with mu and sigma, a file of --save-stats, or a set as "
        "`mhla train classify` takes it, with @test at the end for its test images");
    visit(
        "features", r.features,
        "the network: inception:FILE, Inception-v3's published weights as safetensors; classifier:RUN, a run of `mhla "
        "train classify`; clip:DIR, CLIP as transformers has it; or pixels");
    visit("metrics", r.metrics, "names joined by commas");
    visit("neighbours", r.neighbours, "k of precision, recall, density and coverage");
    visit("classes", r.classes,
          "with classifier:RUN also the accuracy, the share of samples of the class that was asked for: from-names, as "
          "`mhla sample` writes it into names and arr_1, or a file with a class on every line");
    visit("prompts", r.prompts, "metric clip: what the samples should show, one for each in the order of their names");
    visit("held_out", r.held_out, "metric nearest: images that were not trained on, as --reference");
    visit("sheet", r.sheet, "metric nearest: a PNG of the closest samples, each with its nearest training image");
    visit("save_stats", r.save_stats, "write what metrics need of the samples, to be a --reference later");
    visit("batch", r.batch, "images at a time");
    visit("device", r.device, "cpu, cuda or cuda:N");
    visit("threads", r.threads, "CPU threads; 0: all");
  }
};

struct PredictRequest {
  train::OpenOptions open;
  std::vector<std::string> images;
  std::int64_t top = 5;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train classify` or `mhla convert`");
    visit("images", r.images, "image files, folders of them (at any depth), - for stdin; repeatable");
    visit("top", r.top, "classes to show of each image");
    visit("batch", r.open.batch, "images at a time (default: 32)");
    train::OpenOptions::fields(r.open, visit);
  }
};

struct ExportRequest {
  std::string to = "onnx", run, out, weights = "model";
  bool with_normalize = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("to", r.to, "format: onnx");
    visit("run", r.run, "folder of `mhla train classify` or `mhla convert`");
    visit("out", r.out, "the file to write, *.onnx");
    visit("weights", r.weights,
          "model, ema: the running average of the weights, or best: those of the best evaluation");
    visit("with_normalize", r.with_normalize, "put mean and deviation into the graph: its input is pixels from 0 to 1");
  }
};

struct AnalyzeRequest {
  std::vector<std::string> runs;
  std::int64_t samples = 64, maps = 3, layer = -1, largest = 1024;
  std::vector<std::array<std::int64_t, 2>> queries;  // row, column of the token grid
  std::string data;
  train::OpenOptions open;  // of every run

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("runs", r.runs, "folders of `mhla train classify`; several are compared side by side");
    visit("samples", r.samples, "test images to look at, the same share of every class");
    visit("queries", r.queries, "tokens whose attention is drawn, as ROW,COLUMN (default: two)");
    visit("maps", r.maps, "images to draw the queries on, of different classes");
    visit("layer", r.layer, "layer to draw; -1: the last");
    visit("largest", r.largest, "compute singular values of matrices up to this side");
    visit("data", r.data, "other images of the same classes (default: the run's test images)");
    train::OpenOptions::fields(r.open, visit);
  }
};

// Tasks of `mhla eval lm --task`.
struct LmTasks {
  std::vector<std::string> names;  // NAME or NAME=PATH; empty: perplexity
  std::vector<std::int64_t> lengths;
  std::int64_t items = 0, max_prompt = 0, pairs = 0, needles = 8, mqar_vocab = 0, mqar_skew = 0;
  std::uint64_t seed = 0;
  std::string precision = "f32";

  template <class Self, class Visit>
  static void fields(Self& t, Visit&& visit) {
    visit("task", t.names,
          "score a task instead of perplexity; repeatable. NAME=PATH of piqa, winogrande, arc_easy, arc_challenge, "
          "obqa, boolq, mmlu, choices, lambada, wikitext or longbench (a folder); or mqar, passkey, needle, which need "
          "no file");
    visit("items", t.items, "tasks: use the first so many items (default: all; 32 of mqar, passkey and needle)");
    visit("lengths", t.lengths,
          "tasks mqar, passkey, needle: tokens of a sequence, joined by commas (default: as in training)");
    visit("mqar_pairs", t.pairs, "task mqar: keys and values of a sequence (default: as in training on mqar, else 16)");
    visit("mqar_vocab", t.mqar_vocab, "task mqar: number of ids (default: as in training on mqar, else up to 8192)");
    visit("mqar_skew", t.mqar_skew,
          "task mqar: 1, keys come back anywhere; more, mostly early (default: as in training on mqar, else 1)");
    visit("needles", t.needles, "task needle: numbers hidden in the text");
    visit("max_prompt", t.max_prompt,
          "task longbench: tokens of a prompt; longer ones lose their middle (default: no limit)");
    visit("seed", t.seed, "tasks mqar, passkey, needle: seed of the sequences");
    visit("precision", t.precision, "tasks: precision of the weights, f32 or bf16");
  }
};

struct EvalLmRequest {
  train::OpenOptions open;
  std::string data, tokens, packing, length_policy = "error";
  std::int64_t length = 0, stride = 0, max_tokens = 0, bucket = 0;
  LmTasks tasks;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train lm`, or of a model with its tokenizer.json");
    visit("data", r.data,
          "folder of `mhla data tokenize`, text as `mhla train lm` takes it, or sample: a novel that comes with mhla "
          "(default: the run's held-out part)");
    visit("tokens", r.tokens, "where --data is text: folder to keep its tokens in (default: none are kept)");
    visit("context", r.length, "tokens of a window (default: as in training)");
    visit("stride", r.stride,
          "tokens from one window to the next: below --context, windows overlap and each token sees a longer past "
          "(default: --context)");
    visit("bucket", r.bucket, "positions of a window in one line of the table (default: an eighth)");
    visit("eval_tokens", r.max_tokens, "score this many tokens, rounded up to a whole window (default: all)");
    visit("packing", r.packing,
          "documents: no window crosses two documents; concatenate: windows over all (default: as in training)");
    visit("length_policy", r.length_policy,
          "for windows longer than the rows of the mixing matrix: error, truncate_left, rechunk or extend");
    visit("batch", r.open.batch, "windows at a time (default: as in training)");
    train::OpenOptions::fields(r.open, visit);
    LmTasks::fields(r.tasks, visit);
  }
};

struct GenerateRequest {
  train::OpenOptions open;
  std::vector<std::string> prompts, stops;
  TokenSamplerOptions sampler;
  std::int64_t max_tokens = 128, piece = 2048;
  bool past_end = false, exact = false;
  std::string load_state, save_state, length_policy = "error", precision = "f32";

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.open.run, "folder of `mhla train lm`, or of a model with its tokenizer");
    visit("prompt", r.prompts, "text to continue, - for stdin; repeatable");
    visit("max_tokens", r.max_tokens, "tokens to write for each text; 0: only read the prompts");
    visit("temperature", r.sampler.temperature, "0: always the most likely token");
    visit("top_k", r.sampler.top_k, "draw from this many of the most likely tokens; 0: all");
    visit("top_p", r.sampler.top_p, "draw from the most likely tokens with this total probability");
    visit("min_p", r.sampler.min_p, "drop tokens below this share of the highest probability");
    visit("repetition_penalty", r.sampler.repetition_penalty, "for tokens of the prompt and of the text");
    visit("seed", r.sampler.seed, "seed of the draws");
    visit("stop", r.stops, "string that ends a text and is not printed; repeatable");
    visit("past_end", r.past_end, "continue after the end of a document");
    visit("load_state", r.load_state, "continue from a file of --save-state without reading it again");
    visit("save_state", r.save_state, "file for everything read and written, to continue from; also written on Ctrl-C");
    visit("length_policy", r.length_policy, "for texts longer than the rows of the mixing matrix: error or extend");
    visit("piece", r.piece, "tokens of a prompt to read at once");
    visit("exact", r.exact, "the same bits however a text is split (f32 on the CPU; slower to read)");
    visit("precision", r.precision, "of the weights: f32 or bf16");
    train::OpenOptions::fields(r.open, visit);
  }
};

// `mhla sample`: images from a diffusion or flow model.
struct SampleImagesRequest {
  std::string run, model, out, weights, device, vae, text_encoder, precision = "f32";
  std::vector<std::string> classes, prompts;
  std::int64_t per_class = 1;
  std::string negative;
  double guidance = 1.0;
  std::string guidance_channels = "all";
  std::vector<double> guidance_interval;  // two, or none: always
  std::string sampler, time_grid;
  std::int64_t steps = 0;
  std::optional<double> shift, eta;
  std::uint64_t seed = 0;
  std::optional<std::array<std::int64_t, 2>> size, sheet;  // rows, columns
  std::int64_t batch = 0, preview = 0, threads = 0;
  bool npz = false, tile = false, resume = false, overwrite = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("run", r.run, "folder of `mhla train diffusion`");
    visit("model", r.model, "folder of a model: of `mhla convert`, or SANA as diffusers publishes it");
    visit("out", r.out, "folder for the images");
    visit("classes", r.classes, "classes to generate: numbers or names joined by commas, or all (default: all)");
    visit("per_class", r.per_class, "images of each class or prompt");
    visit("prompts", r.prompts, "what the images should show, for models of captions");
    visit("negative", r.negative, "what guidance leads away from (default: the null class, or an empty prompt)");
    visit("guidance", r.guidance, "strength of classifier-free guidance; 1: none, and half the time");
    visit("guidance_channels", r.guidance_channels,
          "channels that are guided: 3, as the published DiT samples, or all");
    visit("guidance_interval", r.guidance_interval,
          "guide only at times from A to B of the model's 0 (image) to 1000 (noise)");
    visit("sampler", r.sampler,
          "ancestral, ddim or dpm++ for a model that predicts noise (default: ddim); dpm++, unipc or euler for flow "
          "matching (default: dpm++)");
    visit("steps", r.steps, "steps of the sampler (default: ddim and unipc 50, ancestral 250, dpm++ 20, euler 30)");
    visit("shift", r.shift, "flow matching: shift of the times towards noise (default: as in training)");
    visit("time_grid", r.time_grid,
          "flow matching: the times of the steps: wan-unipc, wan-dpm, mhla-dpm, diffusers-unipc, diffusers-euler or "
          "linear (default: diffusers-euler for euler, wan-unipc for the others)");
    visit("eta", r.eta, "ddim: noise added at every step, from 0 for none (default) to 1 as ancestral");
    visit("seed", r.seed, "seed of the noise; an image depends on it and on its number only");
    visit("size", r.size, "rows and columns of an image in pixels (default: the model's)");
    visit("weights", r.weights,
          "model, ema: the running average of the weights, or best: those of the best evaluation (default: ema if the "
          "run has it, otherwise model)");
    visit("batch", r.batch, "images at a time; changes the speed only (default: 32 on a GPU, 1 on the CPU)");
    visit("sheet", r.sheet, "also write sheet.png, the first images side by side in so many rows and columns");
    visit("npz", r.npz, "also write samples.npz for the ADM evaluator: arr_0 has the images, arr_1 the classes");
    visit("preview", r.preview, "also write what the model expects the image to be, every so many steps; 0: never");
    visit("vae", r.vae, "folder of the autoencoder for models of latents (default: as in training)");
    visit("tile", r.tile, "decode latents in overlapping tiles, which takes less memory");
    visit("text_encoder", r.text_encoder, "folder of Gemma-2 and its tokenizer, for --prompts");
    visit("resume", r.resume, "keep the images that are in --out and make the rest; the settings must be the same");
    visit("overwrite", r.overwrite, "replace the images of an earlier `mhla sample` in --out");
    visit("device", r.device, "cpu, cuda or cuda:N (default: as in training)");
    visit("precision", r.precision, "of weights and activations: f32, or bf16, which on a CPU needs AVX-512 BF16");
    visit("threads", r.threads, "CPU threads; 0: all");
  }
};

// One row of `mhla bench model`.
struct BenchModelRequest {
  std::string model = "deit_tiny", attention = "mhla", pass = "fwd", device = "cpu", precision = "f32";
  std::int64_t batch = 8, threads = 0;
  double min_seconds = 2.0;
  bool cuda_graph = false, profile = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("model", r.model, "model to time");
    visit("attention", r.attention, "of the zoo, or plain: MHLA in LibTorch operators");
    visit("pass", r.pass, "fwd; train: a whole step; decode: one token of every sequence (language models)");
    visit("batch", r.batch, "images or sequences");
    visit("device", r.device, "cpu, cuda or cuda:N");
    visit("precision", r.precision, "f32, or bf16: autocast");
    visit("threads", r.threads, "CPU threads; 0: all");
    visit("min_seconds", r.min_seconds, "seconds of timed work");
    visit("cuda_graph", r.cuda_graph, "training: forward and backward as one CUDA graph");
    visit("profile", r.profile, "also where the time goes");
  }
};

struct BenchClassifierRequest {
  BenchModelRequest bench;
  std::int64_t image = 0;                             // a side; 0: the model's
  std::optional<std::array<std::int64_t, 2>> blocks;  // none: the model's

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    BenchModelRequest::fields(r.bench, visit);
    visit("image", r.image, "pixels of a side; 0: the model's");
    visit("blocks", r.blocks, "MHLA's blocks per axis (default: the model's)");
  }
};

struct BenchLmRequest {
  BenchModelRequest bench;
  std::int64_t length = 2048, chunk = 0;
  bool recompute = false, exact = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    BenchModelRequest::fields(r.bench, visit);
    visit("length", r.length, "tokens of a sequence");
    visit("chunk", r.chunk, "tokens of one of MHLA's chunks; 0: the model's");
    visit("recompute", r.recompute, "recompute blocks in the backward pass to save memory");
    visit("exact", r.exact, "results that do not depend on the batch or on how a text is split");
  }
};

// `mhla bench scale` in a process of a team; `threads` are its own.
struct BenchScaleRequest {
  std::string model = "mhla_10m", device = "cpu", precision = "f32";
  std::int64_t batch = 8, accumulate = 1, length = 256, steps = 5, threads = 0;
  bool deterministic_reduce = false, shard_optimizer = false, ema = false;
  std::string op, context_method = "auto";                 // a shape of the operator instead of a model; empty: none
  std::vector<std::int64_t> op_sizes, op_grid, op_blocks;  // a grid, or one number: tokens of a chunk, causal

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("model", r.model, "language model or classifier to train");
    visit("op", r.op, "shape of the operator, instead of a model");
    visit("op_sizes", r.op_sizes, "B, N, H, Hkv, D and E of the shape");
    visit("op_grid", r.op_grid, "tokens of every axis of the shape, or of a chunk in the causal form");
    visit("op_blocks", r.op_blocks, "blocks of every axis of the shape; none in the causal form");
    visit("context_method", r.context_method, "what processes exchange: heads, summaries or auto");
    visit("batch", r.batch, "sequences or images of a pass, of all processes together");
    visit("accumulate", r.accumulate, "passes of a step");
    visit("length", r.length, "language models: tokens of a sequence");
    visit("steps", r.steps, "timed steps");
    visit("device", r.device, "cpu, cuda or cuda:N");
    visit("precision", r.precision, "f32, or bf16: autocast");
    visit("threads", r.threads, "CPU threads; 0: all");
    visit("deterministic_reduce", r.deterministic_reduce, "the same bits for any number of processes");
    visit("shard_optimizer", r.shard_optimizer, "each process keeps its share of AdamW's moments and of the EMA");
    visit("ema", r.ema, "with a running average of the weights");
  }
};

// `mhla convert` of a whole model.
struct ConvertRequest {
  std::string in, out, to = "ours", model, config, attention, layers, variant, mix_init, weights, dtype;
  bool official = false;
  std::int64_t classes = 0;                            // 0: as the model has them
  std::optional<std::array<std::int64_t, 2>> image;    // none: as it is
  std::vector<std::array<std::int64_t, 2>> blocks;     // for each stage; empty: as they are
  std::optional<std::array<std::int64_t, 3>> blocks3;  // of videos: frames, rows, columns

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("in", r.in, "a safetensors file, or the folder of a model, also of one that diffusers published");
    visit("out", r.out, "a folder for a model under our names or those of diffusers, otherwise a file");
    visit("to", r.to, "whose names to write: ours, published, or diffusers (DiT, SANA and Wan)");
    visit("model", r.model, "for a file: the model it holds, by name or as a config.json");
    visit("config", r.config, "older spelling of --model FILE");
    visit("attention", r.attention,
          "for a file of a classifier or language model: attention of --model; otherwise: turn a softmax or linear "
          "model into mhla or linear, a SANA also into softmax");
    visit("layers", r.layers,
          "Wan, with --attention: layers that get it, the others keep softmax: all, every-3rd-kept, or 1,2,4 (default: "
          "all)");
    visit("variant", r.variant, "DiT and Wan, with --attention: what MHLA gets besides: none, cpe, gate or both");
    visit(
        "mix_init", r.mix_init,
        "DiT, SANA and Wan, with --attention mhla: mixing matrix (default: uniform from linear attention, which keeps "
        "the function; linear otherwise)");
    visit("weights", r.weights, "DiT, SANA and Wan, for the folder of a run: model, ema or best (default: model)");
    visit("dtype", r.dtype,
          "DiT, SANA and Wan: type of the weights in the file, f32, f16 or bf16 (default: f32; Wan: as it is)");
    visit("official", r.official, "for a file: --model as in the published code");
    visit("classes", r.classes, "for a file: classes of --model");
    visit("image", r.image, "image size to convert the model to; of a DiT the size of its samples, pixels or latents");
    visit("blocks", r.blocks, "MHLA's blocks per axis to convert the model to, one for each stage");
    visit("blocks3", r.blocks3, "the same for videos: frames, rows, columns");
  }
};

struct ConvertResult {
  std::string out, names, model, attention;
  std::int64_t parameters = 0;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("out", r.out, "what was written"), visit("names", r.names, "ours or published");
    visit("model", r.model, "the model"), visit("attention", r.attention, "its attention");
    visit("parameters", r.parameters, "numbers in it");
  }
};

// `mhla convert` of a file whose model nobody described: its attention layers.
struct ConvertLayersRequest {
  std::string in, out, to = "ours", family, widths, prefix;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("family", r.family, "attention layers: whose names they have, where that is ambiguous");
    visit("widths", r.widths, "attention layers: rows of q, k and v");
    visit("prefix", r.prefix, "attention layers: convert only the one whose names start with this");
  }
};

struct ConvertLayersResult {
  std::string out, family;
  std::int64_t layers = 0, tensors = 0;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("out", r.out, "what was written"), visit("family", r.family, "whose names the layers had or got");
    visit("layers", r.layers, "attention layers"), visit("tensors", r.tensors, "in the file");
  }
};

// The names and shapes of a file, to find its attention layers.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

struct LayerName {
  std::string prefix;
  std::string family, reason;  // one of the two

  [[nodiscard]] JsonValue json() const {
    JsonValue row = JsonValue().set("prefix", prefix);
    return family.empty() ? row.set("reason", reason) : row.set("family", family);
  }
};

}  // namespace mhla::apps
