// A language model that starts from the weights of another one.
#pragma once

#include "mhla/io/text/tokenizer.h"
#include "mhla/models/lm/lm.h"
#include "mhla/train/init_source.h"

namespace mhla::train {

// Gives `model` the weights of the source; another context cuts or extends the mixing matrices (extend_mix). Returns
// what was changed, a line each. What does not fit is refused by the name of the field or the tensor.
std::vector<std::string> start_from(LanguageModelImpl& model, const InitSource& source);

// An Error where the source was trained with another tokenizer than the data has; where it says nothing of one, its
// vocabulary decides. `maybe_tokenizer`: of the data.
void expect_tokenizer_of(const InitSource& source, const TokenizerPtr& maybe_tokenizer);
// The same for one that is named as in the options; an empty name is none.
void expect_tokenizer_of(const InitSource& source, const std::string& tokenizer);

}  // namespace mhla::train
