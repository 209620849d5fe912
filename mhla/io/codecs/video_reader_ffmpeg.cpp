// Files that only ffmpeg reads: a process of it writes Y4M into a pipe. It turns every colour matrix into ITU-R 601,
// which is what Y4mReader expects, and applies rotation tags.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/video_reader_y4m.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

std::string ffmpeg_program() {
  const char* paths = std::getenv("PATH");
  std::string_view left = paths == nullptr ? "" : paths;
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(':'), left.size());
    const fs::path program = fs::path(std::string(left.substr(0, end))) / "ffmpeg";
    if (end > 0 && ::access(program.c_str(), X_OK) == 0) return program.string();
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return {};
}

class FfmpegVideo final : public VideoReader {
 public:
  FfmpegVideo(const fs::path& path, const ImageLimits& limits) : label_(path.string()) {
    const std::string program = ffmpeg_program();
    if (program.empty())
      fail(label_,
           ": reading it needs the program ffmpeg, which is not on the PATH: install it, or give .y4m or .gif "
           "files or folders of images");
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(label_, ": no pipe to ffmpeg: ", std::strerror(errno));
    said_.reset(std::tmpfile());
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (said_) posix_spawn_file_actions_adddup2(&actions, ::fileno(said_.get()), STDERR_FILENO);
    const std::string input = "file:" + fs::absolute(path).string();  // never an address or an option
    std::array<std::string, 15> words{program,        "-v",      "error",
                                      "-nostdin",     "-i",      input,
                                      "-an",          "-vf",     "scale=out_color_matrix=bt601:out_range=limited",
                                      "-pix_fmt",     "yuv444p", "-f",
                                      "yuv4mpegpipe", "-",       ""};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.empty() ? nullptr : word.data());
    const int error = ::posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    stream_.reset(::fdopen(ends[0], "rb"));
    if (error != 0) {
      process_ = -1;
      fail(label_, ": ffmpeg could not be started: ", std::strerror(error));
    }
    const int first = std::fgetc(stream_.get());
    if (first == EOF) expect_success();
    std::ungetc(first, stream_.get());
    reader_ = std::make_unique<Y4mReader>(stream_.get(), label_, limits);
  }
  ~FfmpegVideo() override {
    reader_.reset();
    stream_.reset();  // a process that still writes ends by this
    if (process_ > 0) (void)wait();
  }
  bool next(Image& frame, double& seconds) override {
    if (reader_->next(frame, seconds)) return true;
    expect_success();
    return false;
  }

 private:
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return status;
  }
  // After the end of the stream: an Error with what ffmpeg said, where it failed.
  void expect_success() {
    if (process_ < 0) return;
    const int status = wait();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    std::string text;
    if (said_) {
      std::rewind(said_.get());
      for (int byte = 0; text.size() < 400 && (byte = std::fgetc(said_.get())) != EOF && byte != '\n';)
        text.push_back(static_cast<char>(byte));
    }
    fail(label_, ": ffmpeg could not read it", text.empty() ? "" : ": ", text);
  }

  std::string label_;
  pid_t process_ = -1;
  std::unique_ptr<std::FILE, CloseFile> stream_, said_;
  std::unique_ptr<Y4mReader> reader_;
};

}  // namespace

std::unique_ptr<VideoReader> open_with_ffmpeg(const fs::path& path, const ImageLimits& limits) {
  return std::make_unique<FfmpegVideo>(path, limits);
}

}  // namespace mhla
