#include "mhla/models/published_names.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla {
namespace {

torch::Tensor with_ones(const torch::Tensor& x, int ones) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.insert(shape.end(), static_cast<std::size_t>(ones), 1);
  return x.reshape(shape);
}

torch::Tensor joined(const std::vector<torch::Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : torch::cat(parts);
}

// `x` cut along axis 0 into parts of `rows`.
std::vector<torch::Tensor> cut(const torch::Tensor& x, const std::vector<std::int64_t>& rows) {
  return rows.size() == 1 ? std::vector<torch::Tensor>{x} : x.split_with_sizes(rows);
}

}  // namespace

PublishedNames renamed(const Weights& ours, const std::function<std::string(const std::string&)>& rename) {
  PublishedNames names;
  for (const auto& [name, value] : ours) names.push_back({{name}, {rename(name)}, 0});
  return names;
}

Weights to_published(const PublishedNames& names, const Weights& ours) {
  Weights published;
  for (const PublishedName& entry : names) {
    std::vector<torch::Tensor> parts;
    for (const std::string& name : entry.ours)
      if (const auto found = ours.find(name); found != ours.end() && found->second.defined())
        parts.push_back(found->second);
    if (parts.size() != entry.ours.size()) continue;
    const torch::Tensor whole = joined(parts);
    const auto count = static_cast<std::int64_t>(entry.published.size());
    const std::vector<torch::Tensor> theirs =
        cut(whole, std::vector<std::int64_t>(entry.published.size(), count == 1 ? 0 : whole.size(0) / count));
    for (std::size_t i = 0; i < theirs.size(); ++i) published[entry.published[i]] = with_ones(theirs[i], entry.ones);
  }
  return published;
}

Weights from_published(const PublishedNames& names, const Weights& like, const Weights& published, const char* entry) {
  expect_weights(to_published(names, like), published, entry);
  Weights ours;
  for (const PublishedName& one : names) {
    std::vector<torch::Tensor> parts;
    std::vector<std::int64_t> rows;
    for (const std::string& name : one.published) {
      const torch::Tensor& value = published.at(name);
      parts.push_back(one.ones == 0 ? value : value.reshape(value.sizes().slice(0, value.dim() - one.ones)));
    }
    for (const std::string& name : one.ours) rows.push_back(like.at(name).dim() == 0 ? 0 : like.at(name).size(0));
    const std::vector<torch::Tensor> own = cut(joined(parts), rows);
    for (std::size_t i = 0; i < own.size(); ++i) ours[one.ours[i]] = own[i];
  }
  return ours;
}

const PublishedNames& nearest_names(const std::vector<PublishedNames>& lists, const Weights& published) {
  const PublishedNames* best = nullptr;
  std::size_t most = 0;
  for (const PublishedNames& list : lists) {
    std::size_t count = 0;
    for (const PublishedName& entry : list)
      for (const std::string& name : entry.published) count += published.count(name);
    if (best == nullptr || count > most) best = &list, most = count;
  }
  return *best;
}

bool starts_with(const std::string& text, const std::string& head) { return text.compare(0, head.size(), head) == 0; }

bool replace_head(std::string& text, const std::string& head, const std::string& other) {
  if (!starts_with(text, head)) return false;
  text.replace(0, head.size(), other);
  return true;
}

std::string replaced(std::string text, const std::string& part, const std::string& other) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + other.size()))
    text.replace(at, part.size(), other);
  return text;
}

}  // namespace mhla
