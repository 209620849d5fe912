// Libraries that are opened when a command asks for them: LibTorch takes most of a second to start, mhla a few
// milliseconds. They lie beside the program, in ../lib next to it, or where an environment variable points.
#pragma once

#include <string>

namespace mhla::apps {

// Where the library lies, or an empty string with `reason` filled. Opens nothing.
std::string find_plugin(const char* name, const char* variable, std::string& reason);
// Its handle, or null with `reason` filled.
void* open_plugin(const char* name, const char* variable, std::string& reason);

}  // namespace mhla::apps
