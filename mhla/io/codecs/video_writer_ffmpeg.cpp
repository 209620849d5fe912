// MP4 through an `ffmpeg` process: frames go to it as RGB, it writes beside the target, which is renamed at the end. A
// process of its own, because Debian's libraries of ffmpeg are GPL. The settings are the comment of the file.
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"
#include "mhla/io/codecs/video_writer.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

fs::path find_ffmpeg() {
  if (const char* chosen = std::getenv("MHLA_FFMPEG"); chosen != nullptr && *chosen != 0) return chosen;
  const char* all = std::getenv("PATH");
  std::string rest = all == nullptr ? "" : all;
  while (!rest.empty()) {
    const std::string folder = rest.substr(0, rest.find(':'));
    rest.erase(0, folder.size() + 1);
    const fs::path program = fs::path(folder.empty() ? "." : folder) / "ffmpeg";
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return number_; }
  void reset(int number) { close(), number_ = number; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

// A program with its standard input and its messages in our hands. Its input is a socket, so that a program that died
// is an error and not a signal.
class Process {
 public:
  Process(const fs::path& program, const std::vector<std::string>& arguments, bool keep_output) : program_(program) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) failed(std::strerror(errno));
    ours_.reset(ends[0]);
    const Descriptor theirs(ends[1]);
    char name[] = "/tmp/mhla_ffmpeg_XXXXXX";
    said_.reset(::mkostemp(name, O_CLOEXEC));
    if (said_.get() < 0) failed(std::strerror(errno));
    ::unlink(name);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDIN_FILENO);
    if (keep_output) {
      posix_spawn_file_actions_adddup2(&actions, said_.get(), STDOUT_FILENO);
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    } else {
      posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
      posix_spawn_file_actions_adddup2(&actions, said_.get(), STDERR_FILENO);
    }
    std::vector<std::string> words{program.string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int error = ::posix_spawn(&id_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) id_ = -1, failed(std::strerror(error));
  }
  ~Process() {
    ours_.close();
    if (id_ > 0) ::kill(id_, SIGTERM), ::waitpid(id_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(ours_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) end(), failed("it ended too early");
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  // Closes its input and waits; what it said. RunFailed with its last line where it failed.
  std::string end() {
    ours_.close();
    int status = 0;
    while (::waitpid(std::exchange(id_, -1), &status, 0) < 0 && errno == EINTR) {
    }
    std::string said(65536, '\0');
    const ssize_t size = ::pread(said_.get(), said.data(), said.size(), 0);
    said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      const std::size_t stop = said.find_last_not_of("\r\n");
      said.resize(stop == std::string::npos ? 0 : stop + 1);
      const std::size_t line = said.find_last_of("\r\n");
      failed(said.empty() ? "no message" : said.substr(line == std::string::npos ? 0 : line + 1));
    }
    return said;
  }

 private:
  [[noreturn]] void failed(const std::string& why) const { throw RunFailed(str(program_.string(), ": ", why)); }
  fs::path program_;
  Descriptor ours_, said_;
  pid_t id_ = -1;
};

class FfmpegWriter final : public VideoWriter {
 public:
  FfmpegWriter(const fs::path& path, const VideoSettings& settings)
      : settings_(settings),
        path_(path),
        partial_(path.parent_path() / str(".", path.stem().string(), ".partial-", ::getpid(), ".mp4")) {
    { const AtomicFile place(path); }  // whether it can be written
    const std::string encoder = ffmpeg_encoder("video");
    const FrameRate rate = frame_rate(settings.fps);
    std::vector<std::string> words{"-hide_banner",
                                   "-loglevel",
                                   "error",
                                   "-nostdin",
                                   "-y",
                                   "-f",
                                   "rawvideo",
                                   "-pixel_format",
                                   "rgb24",
                                   "-video_size",
                                   str(settings.width, "x", settings.height),
                                   "-framerate",
                                   str(rate.num, "/", rate.den),
                                   "-i",
                                   "pipe:0",
                                   "-an",
                                   "-vf",
                                   "scale=out_color_matrix=bt709:out_range=tv",
                                   "-pix_fmt",
                                   "yuv420p",
                                   "-colorspace",
                                   "bt709",
                                   "-color_primaries",
                                   "bt709",
                                   "-color_trc",
                                   "bt709",
                                   "-c:v",
                                   encoder};
    for (const char* word : encoder == "libx264" ? std::array{"-crf", "10"} : std::array{"-q:v", "2"})
      words.emplace_back(word);
    words.insert(words.end(), {"-metadata", "comment=" + text_json(settings.text), "-movflags", "+faststart"});
    words.push_back("file:" + fs::absolute(partial_).string());
    process_ = std::make_unique<Process>(find_ffmpeg(), words, /*keep_output=*/false);
  }
  ~FfmpegWriter() override {
    process_.reset();
    std::error_code none;
    fs::remove(partial_, none);
  }
  void frame(const Image& image) override {
    expect_frame(image, settings_);
    process_->write(std::as_bytes(std::span(image.pixels)));
  }
  void end() override {
    process_->end();
    Descriptor file(::open(partial_.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0 || ::fsync(file.get()) != 0) fail_to_write(path_, errno);
    fs::rename(partial_, path_);
    sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
  }

 private:
  VideoSettings settings_;
  fs::path path_, partial_;
  std::unique_ptr<Process> process_;
};

}  // namespace

std::string ffmpeg_encoder(const std::string& label) {
  const fs::path program = find_ffmpeg();
  if (program.empty())
    fail(label, ": .mp4 needs the program ffmpeg (Debian: ffmpeg), which is not on the PATH: expected it, or .webp, ",
         ".gif, .y4m or a folder");
  static std::map<fs::path, std::string> lists;  // asked once
  std::string& all = lists[program];
  if (all.empty()) all = Process(program, {"-hide_banner", "-encoders"}, /*keep_output=*/true).end();
  for (const char* name : {"libx264", "mpeg4"})
    if (all.find(str(" ", name, " ")) != std::string::npos) return name;
  fail(label, ": ", program.string(), " has neither of the encoders libx264 and mpeg4, expected another ffmpeg, or ",
       ".webp, .gif, .y4m or a folder");
}

std::unique_ptr<VideoWriter> open_ffmpeg_writer(const fs::path& path, const VideoSettings& settings) {
  return std::make_unique<FfmpegWriter>(path, settings);
}

}  // namespace mhla
