// Bytes of tokens as they come, out as text that can be shown: whole characters alone, nothing that may yet turn out to
// be the beginning of a stop string. What is no UTF-8 is shown as U+FFFD, one for each longest broken beginning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mhla {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops = {});  // none of them empty

  std::string put(std::string_view bytes);  // what can be shown now; nothing after a stop
  std::string finish();                     // what was held back; half a character as U+FFFD
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] std::size_t which() const { return which_; }  // the stop string that ended it
  // Bytes that were not shown: half a character, the beginning of a stop string, or what came behind one.
  [[nodiscard]] std::string_view held() const { return held_; }

 private:
  std::string show(std::size_t bytes, bool last);
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
  std::size_t which_ = 0;
};

// Length of the UTF-8 character that `text` opens with. 0: it may become one when more bytes come; -n: n bytes that
// never will.
int character_length(std::string_view text);

}  // namespace mhla
