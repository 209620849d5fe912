// Every name that `--model` takes, once: helps and tests are made from this table. Plain C++, so that the program can
// print it without LibTorch. What a name stands for is in the config.cpp of its family; names_test.cpp holds the two
// together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mhla {

struct ModelName {
  std::string_view name;
  std::string_view task;   // of `mhla train`
  std::string_view about;  // one line
};

inline constexpr ModelName kModelNames[] = {
    {"deit_tiny", "classify", "DeiT: 192 channels, 12 layers, 224 px"},
    {"deit_small", "classify", "DeiT: 384 channels, 12 layers, 224 px"},
    {"deit_base", "classify", "DeiT: 768 channels, 12 layers, 224 px"},
    {"vlt_tiny", "classify", "VLT: four stages, 64 to 512 channels, 224 px"},
    {"vlt_small", "classify", "VLT: four stages, 64 to 512 channels, deeper, 224 px"},
    {"vit_demo", "classify", "ViT of the demo: 96 channels, 3 layers, 28 px"},
    {"vit_256", "classify", "ViT: 192 channels, 6 layers, 256 tokens of 32 px"},
    {"mhla_10m", "lm", "256 channels, 10 layers, vocabulary of 8,192"},
    {"mhla_30m", "lm", "384 channels, 12 layers, vocabulary of 16,384"},
    {"mhla_130m", "lm", "768 channels, 15 layers, vocabulary of 32,000"},
    {"mhla_340m", "lm", "1,024 channels, 24 layers, vocabulary of 32,000; the published one"},
    {"dit_d32", "diffusion", "DiT of the demo: 128 channels, 8 layers, 32 px"},
    {"dit_t32", "diffusion", "DiT: 192 channels, 8 layers, 32 px"},
    {"dit_s32", "diffusion", "DiT: 256 channels, 10 layers, 32 px"},
    {"dit_s_2", "diffusion", "DiT-S/2 on latents of 256 px"},
    {"dit_b_2", "diffusion", "DiT-B/2 on latents of 256 px"},
    {"dit_l_2", "diffusion", "DiT-L/2 on latents of 256 px"},
    {"dit_xl_2", "diffusion", "DiT-XL/2 on latents of 256 px"},
    {"dit_s_4", "diffusion", "DiT-S/4 on latents of 256 px"},
    {"dit_b_4", "diffusion", "DiT-B/4 on latents of 256 px"},
    {"dit_l_4", "diffusion", "DiT-L/4 on latents of 256 px"},
    {"dit_xl_4", "diffusion", "DiT-XL/4 on latents of 256 px"},
    {"dit_s_8", "diffusion", "DiT-S/8 on latents of 256 px"},
    {"dit_b_8", "diffusion", "DiT-B/8 on latents of 256 px"},
    {"dit_l_8", "diffusion", "DiT-L/8 on latents of 256 px"},
    {"dit_xl_8", "diffusion", "DiT-XL/8 on latents of 256 px"},
    {"dig_s_2", "diffusion", "DiG-S/2: DiT-S/2 with a depth-wise convolution"},
    {"wan_d64", "video", "Wan: 128 channels, 8 layers, clips of 64 px with words of its own"},
    {"wan_s64", "video", "Wan: 384 channels, 12 layers, clips of 64 px with words of its own"},
    {"wan_1_3b", "video", "Wan2.1 1.3B, text to video, on latents"},
    {"wan_14b", "video", "Wan2.1 14B, text to video, on latents"},
    {"sana_600m", "diffusion", "SANA 0.6B, text to image"},
    {"sana_1600m", "diffusion", "SANA 1.6B, text to image"},
};

inline std::vector<std::string> model_names(std::string_view task) {
  std::vector<std::string> names;
  for (const ModelName& model : kModelNames)
    if (model.task == task) names.emplace_back(model.name);
  return names;
}

// "deit_tiny, deit_small, ..."
inline std::string model_list(std::string_view task) {
  std::string list;
  for (const std::string& name : model_names(task)) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// The help of --model for the options of a task.
template <class Options>
const char* model_help() {
  static const std::string help = model_list(Options::kTask) + " or a config.json";
  return help.c_str();
}

}  // namespace mhla
