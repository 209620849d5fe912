// What a run does where several processes train together: a step whose microbatches are shared, and what all must have
// the same mind about. Files and lines are rank 0's.
#include <algorithm>
#include <cmath>
#include <set>

#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/json_object.h"
#include "mhla/train/distributed/team.h"
#include "mhla/train/trainer_loop.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

// A seed for what a model draws in one microbatch (dropout), so that it does not depend on who computes it.
// Processes that share sequences draw for different tokens.
std::uint64_t microbatch_seed(std::int64_t seed, std::int64_t step, std::int64_t pass, std::int64_t part,
                              std::int64_t context_rank = 0) {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::int64_t number : {seed + (context_rank << 48), step, pass, part}) {  // splitmix64
    hash += static_cast<std::uint64_t>(number) + 0x9e3779b97f4a7c15;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

std::uint32_t checksum_of(const NamedTensors& tensors) {
  std::uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const torch::Tensor host = tensor.detach().cpu().contiguous();
    sum = crc32c({static_cast<const std::byte*>(host.data_ptr()), host.nbytes()}, sum);
  }
  return sum;
}

// "batch is 32 on rank 2 and 64 on rank 0": the first member in which two objects differ.
std::string difference(const JsonValue& first, const JsonValue& other, int rank) {
  const auto text = [](const JsonValue* value) { return value == nullptr ? "missing" : write_json(*value); };
  for (const JsonValue::Member& member : first.members()) {
    const JsonValue* theirs = other.find(member.key);
    if (theirs != nullptr && *theirs == member.value) continue;
    return str(member.key, " is ", text(theirs), " on rank ", rank, " and ", text(&member.value), " on rank 0");
  }
  return str("rank ", rank, " has more of them than rank 0");
}

constexpr std::size_t kHead = 4;  // of the numbers of a rank: signal, time to save, warnings, numbers of a leaf

}  // namespace

int Trainer::Loop::stopped_by() const {
  return team != nullptr ? agreed_signal : signal == nullptr ? 0 : signal->number();
}

void Trainer::Loop::only_first(const std::function<void()>& work, const char* what) {
  team == nullptr ? work() : team->on_first(work, what);
}

Launched Trainer::Loop::launch_shared() {
  Launched now = next_step();
  const Share share = share_of(options);
  std::vector<torch::Tensor> leaves(static_cast<std::size_t>(share.count));  // weight, loss, sums; undefined: no sample
  gradient_sum->begin(options.accumulate);
  for (std::int64_t i = 0; i < options.accumulate * share.count; ++i) {
    const std::int64_t leaf = i % share.count;
    const TrainBatch batch = task.next_batch();
    gradient_sum->before_microbatch();
    if (batch.weight > 0) {
      torch::manual_seed(
          microbatch_seed(options.seed, step, i / share.count, share.first + leaf, place.context_rank()));
      const BatchResult result = pass(batch);
      const auto weight = static_cast<double>(batch.weight);
      std::vector<torch::Tensor> values{torch::full_like(result.loss, weight, torch::kDouble),
                                        result.loss.to(torch::kDouble) * weight};
      std::vector<std::string> names;
      for (const auto& [name, value] : result.sums) names.push_back(name), values.push_back(value.to(torch::kDouble));
      torch::Tensor& sum = leaves[static_cast<std::size_t>(leaf)];
      sum = sum.defined() ? sum + torch::stack(values) : torch::stack(values);
      sum_names = names;
    }
    gradient_sum->after_microbatch();
  }
  gradient_sum->finish();
  if (team != nullptr && device.is_cuda()) now.own_norm = gradient_sum->own_norm();  // judged a step later
  torch::manual_seed(microbatch_seed(options.seed, step, -1, -1));  // what a checkpoint keeps, whoever writes it
  exchange(now, leaves);
  return now;
}

void Trainer::Loop::exchange(Launched& now, const std::vector<torch::Tensor>& leaves) {
  const std::vector<std::string> warnings = task.take_warnings();
  const bool due = options.checkpoint_minutes > 0 && seconds_since(saved_at) >= 60.0 * options.checkpoint_minutes;
  std::vector<double> mine{static_cast<double>(signal == nullptr ? 0 : signal->number()), due ? 1.0 : 0.0,
                           static_cast<double>(warnings.size()), 0.0};
  for (const torch::Tensor& leaf : leaves) {
    if (!leaf.defined()) continue;
    const torch::Tensor host = leaf.cpu();
    mine.insert(mine.end(), host.data_ptr<double>(), host.data_ptr<double>() + host.numel());
    mine[kHead - 1] = static_cast<double>(host.numel());
  }
  const std::vector<std::vector<double>> all =
      team == nullptr ? std::vector<std::vector<double>>{mine} : team->gather(mine, "the numbers of a step");
  std::vector<double> numbers;  // over all leaves, in their order: the same bits whoever computed them
  bool warned = false;
  const auto context = static_cast<std::size_t>(place.context);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t groups = all.size() / context, rank = i % groups * context + i / groups;  // as in GradientSum
    const std::vector<double>& part = all[rank];
    if (part[0] != 0.0) agreed_signal = static_cast<int>(part[0]);
    warned = warned || part[2] > 0.0;
    const auto size = static_cast<std::size_t>(part[kHead - 1]);
    bool finite = true;
    for (std::size_t begin = kHead; size > 0 && begin + size <= part.size(); begin += size) {
      numbers.resize(std::max(numbers.size(), size), 0.0);
      for (std::size_t j = 0; j < size; ++j) numbers[j] += part[begin + j];
      finite = finite && std::isfinite(part[begin + 1]);
    }
    if (!finite && team != nullptr) now.where += str(now.where.empty() ? " on rank " : ", ", rank);
  }
  time_to_save = all[0][1] != 0.0;
  if (warned && team == nullptr)
    for (const std::string& text : warnings) warn(text);
  if (warned && team != nullptr) {
    std::string lines;
    for (const std::string& text : warnings) lines += text + '\n';
    for (std::string text : team->gather_text(lines, "warnings"))
      for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
        warn(text.substr(0, end));
  }
  if (numbers.empty()) throw RunFailed("no sample of the batch can be read");
  now.weight = numbers[0];
  const torch::TensorOptions where(device);
  std::vector<torch::Tensor> sums;
  if (sum_names.size() + 2 == numbers.size()) now.sum_names = sum_names;
  for (std::size_t i = 0; i < now.sum_names.size(); ++i) sums.push_back(torch::full({}, numbers[i + 2], where));
  update(now, torch::full({}, numbers[1], where), sums, now.weight);
}

std::string Trainer::Loop::ranks_to_blame(const Launched& done) {
  const torch::Tensor own = done.own_norm.defined() ? done.own_norm : gradient_sum->own_norm();
  const std::vector<std::vector<double>> norms = team->gather({own.item<double>()}, "the norms of gradients");
  std::string where;
  for (std::size_t rank = 0; rank < norms.size(); ++rank)
    if (!std::isfinite(norms[rank][0])) where += str(where.empty() ? " on rank " : ", ", rank);
  return where;
}

void Trainer::Loop::open(const RunStart& how) {
  if (team != nullptr) expect_agreement();
  only_first([&] { open_here(how); }, "the folder of the run");
  if (team != nullptr) share_start();
}

void Trainer::Loop::expect_agreement() {
  JsonValue mine = JsonValue::object();
  for (const JsonValue::Member& member : run_config.members())
    if (member.key != "threads" && member.key != "device" && member.key != "origin") mine.set(member.key, member.value);
  const JsonValue data = task.cursor();  // with the checksum of the data
  const std::string text =
      write_json(JsonValue().set("options", mine).set("network", task.model_config()).set("data", data));
  const std::vector<std::string> all = team->gather_text(text, "options");
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const JsonValue a = parse_json(all[0], "rank 0"), b = parse_json(all[rank], "another rank");
    for (const char* what : {"options", "network", "data"}) {
      if (a.at(what) == b.at(what)) continue;
      fail("train: ranks differ in their ", what, ": ", difference(a.at(what), b.at(what), static_cast<int>(rank)),
           ", expected the same");
    }
  }
}

void Trainer::Loop::share_start() {
  const JsonValue mine = JsonValue()
                             .set("step", step)
                             .set("last_saved", last_saved)
                             .set("evaluated_at", evaluated_at)
                             .set("last_good", last_good)
                             .set("cursor", task.cursor())
                             .set("window", window.to_json());
  const JsonValue start = parse_json(team->text_from_first(write_json(mine), "the start"), "rank 0");
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const NamedTensors& named) {
    for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  };
  add(tensors_of(task.model())), add(optimizer.state());
  if (ema) add(ema->state());
  team->copy_from_first(tensors, "weights");
  if (!rows().empty()) {
    const std::string saved = start.at("last_good").as_string();
    if (!saved.empty()) read_rows(Safetensors::read(std::filesystem::path(saved) / kStateFile), rows());
    if (saved.empty() && ema) ema->restart();
  }
  if (place.leads()) return;
  step = start.at("step").as_int(), last_saved = start.at("last_saved").as_int();
  evaluated_at = start.at("evaluated_at").as_int(), last_good = start.at("last_good").as_string();
  window = Window::from_json(start.at("window"));
  optimizer.set_steps(step);
  if (last_saved >= 0) task.seek(start.at("cursor"));
}

PrefixedRows Trainer::Loop::rows() const {
  PrefixedRows all;
  for (const auto& [prefix, row] : optimizer.rows()) all.emplace_back("adamw." + prefix, row);
  if (ema)
    for (const auto& [prefix, row] : ema->rows()) all.emplace_back("ema." + prefix, row);
  return all;
}

JsonValue Trainer::Loop::shared_cursor() {
  JsonValue cursor = task.cursor();
  if (team == nullptr) return cursor;
  const std::vector<std::vector<double>> sums =
      team->gather({static_cast<double>(checksum_of(tensors_of(task.model())))}, "checksums");
  for (std::size_t rank = 1; rank < sums.size(); ++rank)
    if (sums[rank] != sums[0]) throw RunFailed(str("rank ", rank, " has other weights than rank 0"));
  // Each rank knows the damaged images that it met.
  std::set<std::int64_t> damaged;
  for (const std::string& text : team->gather_text(write_json(cursor), "the place in the data")) {
    const JsonValue theirs = parse_json(text, "another rank");
    if (const JsonValue* items = theirs.find("damaged"))
      for (const JsonValue& item : items->items()) damaged.insert(item.as_int());
  }
  if (cursor.find("damaged") == nullptr) return cursor;
  JsonValue items = JsonValue::array();
  for (const std::int64_t item : damaged) items.push(item);
  return cursor.set("damaged", items);
}

bool Trainer::Loop::draw(bool unless_there) {
  bool done = true;
  const bool swaps = ema && ema->shared();
  if (swaps) ema->swap();
  only_first([&] { done = (unless_there && std::filesystem::exists(picture_file())) || draw_here(); }, "a picture");
  if (swaps) ema->swap();
  if (team == nullptr) return done;
  const double by = done || signal == nullptr ? 0.0 : static_cast<double>(signal->number());
  if (const double first = team->gather({by}, "a picture")[0][0]; first != 0.0) agreed_signal = static_cast<int>(first);
  return agreed_signal == 0;
}

}  // namespace mhla::train
