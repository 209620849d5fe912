// How the tensors of a model are called in a file of another project. One list serves reading, writing, gradients and
// error messages, which have the names of the file.
#pragma once

#include <functional>

#include "mhla/modules/weight_names.h"

namespace mhla {

// Ours, one after the other along axis 0, are the published ones, one after the other: a rename, a fused qkv that is
// published in thirds, or thirds that are published as one. `ones`: axes of length 1 at the end of the published
// tensors, which are 1x1 convolutions.
struct PublishedName {
  std::vector<std::string> ours, published;
  int ones = 0;
};
using PublishedNames = std::vector<PublishedName>;

// One name at a time where nothing is fused: `rename` of every name in `ours`.
PublishedNames renamed(const Weights& ours, const std::function<std::string(const std::string&)>& rename);

// Tensors of `ours` that the list does not have, and lists of which a tensor is missing or undefined (a gradient that
// is not there), are left out.
Weights to_published(const PublishedNames& names, const Weights& ours);
// `like` has our tensors: what is missing, left over or of another shape in `published` is refused by its own name.
Weights from_published(const PublishedNames& names, const Weights& like, const Weights& published, const char* entry);

// Of several lists the one with the most names in `published`, the first of equals.
const PublishedNames& nearest_names(const std::vector<PublishedNames>& lists, const Weights& published);

bool starts_with(const std::string& text, const std::string& head);
// Where `text` starts with `head`: `other` instead.
bool replace_head(std::string& text, const std::string& head, const std::string& other);
// Every `part` in `text` becomes `other`.
std::string replaced(std::string text, const std::string& part, const std::string& other);

}  // namespace mhla
