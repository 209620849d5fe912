// Weights of whole files: attention layers by their published names, image models in folders.
#pragma once

#include <filesystem>
#include <functional>

#include "apps/engine/requests.h"
#include "mhla/models/model_size.h"
#include "mhla/models/weights_file.h"

namespace mhla::weights {

// For the table of apps/engine/engine.h. Every attention layer under our names or back under those of its family; all
// other tensors as they are. Which family and how wide q, k and v are is kept in the metadata of the file.
void convert_layers(const apps::ConvertLayersRequest& request, apps::ConvertLayersResult& result);
void convert_model(const apps::ConvertRequest& request, apps::ConvertResult& result);
// Which attention layers these names are.
void name_layers(const std::vector<apps::NamedShape>& names, std::vector<apps::LayerName>& layers);

// Where the attention layers of a file are: everything up to a part called attn or self_attn ("blocks.0.attn."), or the
// whole file ("") when nothing is called so.
std::vector<std::string> layer_prefixes(const Weights& weights);

// The folder of a model: `write` fills the folder it is given, whose files then replace those in `out` together
// (StagedFolder). A place that cannot be written to is the caller's mistake, an Error; what fails there all the same,
// such as a disk that is full, is a std::runtime_error.
void write_to(const std::filesystem::path& out, const std::function<void(const std::filesystem::path&)>& write);

// Models that generate images (convert_generator.cpp): whether the request is of one, and its conversion.
bool is_generator(const apps::ConvertRequest& request);
void convert_generator(const apps::ConvertRequest& request, apps::ConvertResult& result);
torch::ScalarType dtype_of(const apps::ConvertRequest& request);  // of --dtype, f32 without it
// Wan transformers (convert_wan.cpp).
bool is_wan(const apps::ConvertRequest& request);
void convert_wan(const apps::ConvertRequest& request, apps::ConvertResult& result);
// Before a model is made: memory for `models` of this size at once, and for the file they come from.
void expect_room(const ModelSize& size, double models, const std::filesystem::path& in);

}  // namespace mhla::weights
