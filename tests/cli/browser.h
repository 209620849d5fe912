// Headless Chromium, with everything it writes in a folder.
#pragma once

#include <cstdlib>
#include <string>

namespace mhla {

// The command up to the page, or "" with the reason in `why`: it is not installed, or it does not start here.
inline std::string chromium_in(const std::string& folder, std::string& why) {
  why = "there is no chromium";
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) return "";
  std::string command = "cd " + folder + " && HOME=" + folder +
                        " timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
                        "--disable-background-networking --no-first-run --enable-logging=stderr "
                        "--autoplay-policy=no-user-gesture-required --user-data-dir=" +
                        folder + "/profile";
  why = "chromium does not start here";
  if (std::system((command + " --dump-dom about:blank >/dev/null 2>&1").c_str()) != 0) return "";
  return command;
}

}  // namespace mhla
