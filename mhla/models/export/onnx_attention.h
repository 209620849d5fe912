// Attention layers as ONNX operators: MHLA with its options, softmax attention, and VLT's gate around softmax
// attention. Tokens [B, N, C] in and out; `name` is that of the layer.
#pragma once

#include "mhla/models/export/onnx_parts.h"
#include "mhla/modules/mhla_attention.h"

namespace mhla {

OnnxGraph::Value onnx_mhla(OnnxParts& parts, const OnnxGraph::Value& x, const std::string& name,
                           const MhlaAttentionOptions& options);
OnnxGraph::Value onnx_softmax(OnnxParts& parts, const OnnxGraph::Value& x, const std::string& name, std::int64_t dim,
                              std::int64_t heads, const Layout& layout);
OnnxGraph::Value onnx_gated_softmax(OnnxParts& parts, const OnnxGraph::Value& x, const std::string& name,
                                    std::int64_t dim, std::int64_t heads, const Layout& layout);

}  // namespace mhla
