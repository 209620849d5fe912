// The files of a run: where it begins or goes on, its checkpoints, what is left at the end.
#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/models/transformers_config.h"
#include "mhla/train/distributed/team.h"
#include "mhla/train/trainer_loop.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

torch::Tensor generator_state(const torch::Device& device) {
  const at::Generator generator = at::globalContext().defaultGenerator(device);
  return generator.get_state();
}

bool has_average(const Safetensors& file) {
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (file.entry(i).name.rfind("ema.", 0) == 0) return true;
  }
  return false;
}

void restore_generator(const Safetensors& file, const char* name, const torch::Device& of) {
  at::Generator generator = at::globalContext().defaultGenerator(of);
  torch::Tensor state = torch::empty_like(generator.get_state());
  read_tensors(file, "", {{name, state}}, /*all=*/false);
  generator.set_state(state);
}

}  // namespace

void Trainer::Loop::open_here(const RunStart& how) {
  expect_room(folder, how);
  OutputFolder output(folder);  // a run that cannot begin leaves nothing in it
  for (const std::string& name : files_of_start()) output.claim(name);
  lock.emplace(folder);
  checkpoints.sweep();
  remove_partial_files(folder);
  expect_room(folder, how);  // again: another process may have been here
  if (how.overwrite) remove_run(folder);
  std::vector<std::string> complaints;
  const std::vector<Checkpoint> all = checkpoints.list();
  const std::optional<Checkpoint> start = checkpoints.newest(complaints);
  if (!start && !all.empty()) fail(complaints.front(), "; no other checkpoint is sound");
  std::uint64_t keep_bytes = 0;
  if (start) keep_bytes = restore(*start);
  try {
    begin(how, start, keep_bytes, complaints);
  } catch (const std::exception& error) {
    if (log) output.own(log->events());
    if (dynamic_cast<const Error*>(&error) == nullptr) throw;
    throw RunFailed(str("train: ", error.what()));  // the folder can be written to: the disk is full, or gone
  }
  output.keep();
}

void Trainer::Loop::begin(const RunStart& how, const std::optional<Checkpoint>& start, std::uint64_t keep_bytes,
                          const std::vector<std::string>& complaints) {
  if (start && step < total) {  // the run goes on beyond an earlier end, whose weights are in the checkpoint
    fs::remove(folder / "model.safetensors"), fs::remove(folder / "ema.safetensors");
  }
  task.write_companions(folder);
  if (how.resume) best = read_best(folder / kBestFile, task.main_metric().name);
  write_file(folder / "train.json", write_json(run_config, 2) + "\n");
  write_file(folder / "config.json", write_json(for_transformers(task.model_config()), 2) + "\n");
  log.emplace(folder, step, keep_bytes);
  for (const std::string& complaint : complaints) warn(complaint);
  JsonValue row = JsonValue()
                      .set("kind", "start")
                      .set("step", step)
                      .set("of", total)
                      .set("samples", task.samples())
                      .set("device", options.device);
  if (place.ranks > 1) row.set("ranks", place.ranks);
  if (const std::string test = task.tested_on(); !test.empty()) row.set("tested_on", test);
  if (start) row.set("resumed", start->path.string());
  if (!start) {
    for (const JsonValue::Member& member : how.said.members()) row.set(member.key, member.value);
  }
  note(row);
  for (const std::string& text : task.take_warnings()) warn(text);
}

namespace {

// The folder could be written to when the run began: what fails now is no mistake of the caller.
template <class Work>
auto to_folder(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw RunFailed(error.what());
  }
}

}  // namespace

void Trainer::Loop::save() {
  if (last_saved == step) return;
  const JsonValue cursor = shared_cursor();
  NamedTensors state;
  for (const auto& [name, tensor] : optimizer.state()) state.emplace_back("adamw." + name, tensor);
  if (ema) {
    for (const auto& [name, tensor] : ema->state()) state.emplace_back("ema." + name, tensor);
  }
  state.emplace_back("rng.cpu", generator_state(torch::kCPU));
  if (device.is_cuda()) state.emplace_back("rng.cuda", generator_state(device));
  const auto write = [&](const fs::path& to) {
    write_tensors(to / "model.safetensors", tensors_of(task.model()));
    if (rows().empty()) write_tensors(to / kStateFile, state);
    write_file(to / "config.json", write_json(for_transformers(task.model_config()), 2) + "\n");
    write_file(to / "train.json", write_json(run_config, 2) + "\n");
    write_file(to / "state.json", write_json(JsonValue()
                                                 .set("step", step)
                                                 .set("cursor", cursor)
                                                 .set("window", window.to_json())
                                                 .set("evaluated", evaluated_at == step)
                                                 .set("log_bytes", static_cast<std::int64_t>(log->bytes())),
                                             2) +
                                      "\n");
  };
  const auto save_with = [&](const auto& how) {
    last_good = to_folder([&] { return checkpoints.save(step, how); }).path.string();
  };
  if (rows().empty()) {
    only_first([&] { save_with(write); }, "a checkpoint");
  } else {  // rank 0 alone, then all ranks for what they keep together, then rank 0 alone
    const auto write_together = [&](const fs::path& to) {
      only_first([&] { to_folder([&] { write(to); }); }, "a checkpoint");
      write_with_rows(*team, to / kStateFile, state, rows());
    };
    place.leads() ? save_with(write_together) : write_together({});
    only_first([] {}, "a checkpoint");
  }
  if (team != nullptr) last_good = team->text_from_first(last_good, "a checkpoint");
  last_saved = step, saved_at = Clock::now();
  note(JsonValue().set("kind", "checkpoint").set("step", step).set("path", last_good));
}

std::uint64_t Trainer::Loop::restore(const Checkpoint& checkpoint) {
  const fs::path network = checkpoint.path / "config.json";
  if (!(without_transformers(read_json(network), network.string()) == task.model_config()))
    fail(checkpoint.path.string(), ": is a checkpoint of another model");
  const Safetensors trainer = Safetensors::read(checkpoint.path / kStateFile);
  if (ema.has_value() != (trainer.size() > 0 && has_average(trainer)))
    fail(checkpoint.path.string(), ": ema is ", options.ema, ", but the checkpoint has ",
         ema ? "no average" : "an average");
  read_tensors(Safetensors::read(checkpoint.path / "model.safetensors"), "", tensors_of(task.model()));
  expect_tensors(trainer, "adamw.", optimizer.shapes());
  if (ema) expect_tensors(trainer, "ema.", ema->shapes());
  read_tensors(trainer, "adamw.", optimizer.state(), /*all=*/false);
  if (ema) read_tensors(trainer, "ema.", ema->state(), /*all=*/false);
  restore_generator(trainer, "rng.cpu", torch::kCPU);
  if (device.is_cuda() && trainer.contains("rng.cuda")) restore_generator(trainer, "rng.cuda", device);
  const fs::path file = checkpoint.path / "state.json";
  const JsonValue state = read_json_object(file);
  step = checkpoint.step;
  if (step > total)
    fail(checkpoint.path.string(), ": is at step ", step, ", expected at most the ", total, " of the run");
  optimizer.set_steps(step);
  last_saved = step;
  last_good = checkpoint.path.string();
  return labelled(file.string(), [&] {
    task.seek(state.at("cursor"));
    window = Window::from_json(state.at("window"));
    if (const JsonValue* evaluated = state.find("evaluated"); evaluated == nullptr || evaluated->as_bool())
      evaluated_at = step;
    return state.at("log_bytes").as_uint();
  });
}

void Trainer::Loop::finish() {
  only_first([&] { to_folder([&] { write_tensors(folder / "model.safetensors", tensors_of(task.model())); }); },
             "the weights");
  if (ema) write_average(folder / "ema.safetensors");
}

void Trainer::Loop::write_average(const fs::path& file, const Metadata& metadata) {
  to_folder([&] {
    if (ema->shared())
      write_with_rows(*team, file, ema->state(), ema->rows(), metadata);
    else if (place.leads())
      write_tensors(file, ema->state(), metadata);
  });
}

void Trainer::Loop::keep_best(const Metrics& now, const Metrics& average) {
  std::optional<Best> found;  // by rank 0, which knows the best so far
  if (place.leads()) found = best_of(task.main_metric(), step, now, average);
  if (found && best && !is_better(task.main_metric(), *found, *best)) found.reset();
  const fs::path file = folder / kBestFile;
  const bool is_average = found && found->weights == "ema";
  const bool shared = ema && ema->shared() && team->gather({is_average ? 1.0 : 0.0}, "the best weights")[0][0] != 0.0;
  if (is_average || shared) write_average(file, found ? metadata_of(*found) : Metadata());
  if (!found) return;
  if (!is_average) to_folder([&] { write_tensors(file, tensors_of(task.model()), metadata_of(*found)); });
  best = found;
  note(JsonValue()
           .set("kind", "best")
           .set("step", step)
           .set("metric", found->metric)
           .set("value", found->value)
           .set("weights", found->weights)
           .set("path", file.string()));
}

fs::path Trainer::Loop::picture_file() const {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld.png", static_cast<long long>(step));
  return folder / kPictures / name;
}

void Trainer::Loop::keep_picture(const Image& picture, double seconds) {
  const fs::path file = picture_file();
  const std::vector<std::byte> png = encode_png(picture);
  to_folder([&] {
    std::error_code error;
    fs::create_directory(folder / kPictures, error);  // what is wrong with it is said by the next line
    write_file(file, png);
    log->image(kPictures, step, picture, png);
  });
  note(JsonValue().set("kind", kPictures).set("step", step).set("path", file.string()).set("seconds", seconds));
}

void Trainer::Loop::note(const JsonValue& row) {
  if (!place.leads()) return;
  to_folder([&] { log->write(row); });
  observer.row(row);
}

void Trainer::Loop::warn(const std::string& text) {
  note(JsonValue().set("kind", "warning").set("step", step).set("text", text));
}

}  // namespace mhla::train
