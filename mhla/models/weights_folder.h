// Weights as other projects publish them: one safetensors file, or shards beside an index (NAME.safetensors.index.json,
// whose "weight_map" says which file holds a tensor). Nothing is unpickled.
#pragma once

#include "mhla/io/folder.h"
#include "mhla/models/weights_file.h"

namespace mhla {

// Reads tensors straight from the mapped file, for models as large as the memory: do not write to them. They keep the
// file open. `path` is a safetensors file, an index, or a folder with one of these; in a folder `model` and
// `diffusion_pytorch_model` come first, anything else must be the only one.
Weights mapped_weights(const std::filesystem::path& path);

// NAME.safetensors, or with more than `shard_bytes` of data NAME-00001-of-0000N.safetensors and the index. A tensor is
// never cut.
void write_weights_folder(OutputFolder& folder, const std::string& name, const Weights& weights,
                          double shard_bytes = 5e9, const Metadata& metadata = {{"format", "pt"}});

}  // namespace mhla
