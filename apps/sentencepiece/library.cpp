// The C interface of mhla/io/text/sentencepiece_interface.h over libsentencepiece.
#include <sentencepiece_processor.h>

#include <cstring>
#include <vector>

#include "mhla/io/text/sentencepiece_interface.h"

namespace {

using Processor = sentencepiece::SentencePieceProcessor;

Processor& processor(void* model) { return *static_cast<Processor*>(model); }

void because(const sentencepiece::util::Status& status, char* reason, size_t size) {
  std::strncpy(reason, status.ToString().c_str(), size - 1);
}

}  // namespace

extern "C" {

int mhla_sentencepiece_interface(void) { return MHLA_SENTENCEPIECE_INTERFACE; }

void* mhla_sentencepiece_open(const char* model, size_t size, char* reason, size_t reason_size) {
  auto opened = std::make_unique<Processor>();
  const auto status = opened->LoadFromSerializedProto(absl::string_view(model, size));
  if (status.ok()) return opened.release();
  because(status, reason, reason_size);
  return nullptr;
}

void mhla_sentencepiece_close(void* model) { delete static_cast<Processor*>(model); }

int mhla_sentencepiece_size(void* model) { return processor(model).GetPieceSize(); }

int mhla_sentencepiece_begin(void* model) { return processor(model).bos_id(); }

const char* mhla_sentencepiece_piece(void* model, int id, size_t* size, int* kind) {
  const Processor& p = processor(model);
  const std::string& piece = p.IdToPiece(id);
  *kind = p.IsControl(id) || p.IsUnknown(id) ? MHLA_PIECE_SPECIAL : p.IsByte(id) ? MHLA_PIECE_BYTE : MHLA_PIECE_TEXT;
  *size = piece.size();
  return piece.data();
}

int mhla_sentencepiece_encode(void* model, const char* text, size_t size,
                              void (*take)(void* context, const int* ids, size_t count), void* context, char* reason,
                              size_t reason_size) {
  std::vector<int> ids;
  const auto status = processor(model).Encode(absl::string_view(text, size), &ids);
  if (!status.ok()) {
    because(status, reason, reason_size);
    return 1;
  }
  take(context, ids.data(), ids.size());
  return 0;
}
}
