// The attention of one stage of an image model, as its configuration says.
#pragma once

#include "mhla/models/classify/classifier_config.h"
#include "mhla/modules/attention.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/mhla_attention.h"

namespace mhla {

// Tokens of a grid, and MHLA's blocks where the configuration's attention is MHLA: one block otherwise. Throws when the
// blocks do not fit, naming the nearest that do.
Layout stage_layout(const ClassifierConfig& config, std::size_t stage, std::int64_t rows, std::int64_t columns);

// deit: any attention of the zoo, with the options of the configuration where it has them.
AnyAttention make_deit_attention(const ClassifierConfig& config, const Layout& layout);
// vlt: the attention inside the gate of a stage, (core + LePE(v)) * o, with 2D RoPE. mhla, linear, softmax, mala and
// rala are such cores; the others replace the whole.
AnyAttention make_vlt_attention(const ClassifierConfig& config, std::string_view name, std::size_t stage,
                                const Layout& layout);

// How large these are, before they are made.
AttentionSize deit_attention_size(const ClassifierConfig& config, const Layout& layout);
AttentionSize vlt_attention_size(const ClassifierConfig& config, std::string_view name, std::size_t stage,
                                 const Layout& layout);

}  // namespace mhla
