/* What libmhla_sentencepiece.so offers: SentencePiece models through libsentencepiece. It is opened when a .model is
 * read, apart from everything else: libsentencepiece brings a protobuf of its own whose names are those of LibTorch's.
 */
#pragma once

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): this is C */

#define MHLA_SENTENCEPIECE_INTERFACE 1

#ifdef __cplusplus
extern "C" {
#endif

enum mhla_piece_kind { MHLA_PIECE_TEXT = 0, MHLA_PIECE_SPECIAL = 1, MHLA_PIECE_BYTE = 2 };

int mhla_sentencepiece_interface(void);
void* mhla_sentencepiece_open(const char* model, size_t size, char* reason, size_t reason_size); /* null: `reason` */
void mhla_sentencepiece_close(void* model);
int mhla_sentencepiece_size(void* model);
int mhla_sentencepiece_begin(void* model); /* the id that opens a text, or -1 */
const char* mhla_sentencepiece_piece(void* model, int id, size_t* size, int* kind);
/* Gives the ids of a text to `take`, once. 0, or not, with `reason`. */
int mhla_sentencepiece_encode(void* model, const char* text, size_t size,
                              void (*take)(void* context, const int* ids, size_t count), void* context, char* reason,
                              size_t reason_size);

#ifdef __cplusplus
}
#endif
