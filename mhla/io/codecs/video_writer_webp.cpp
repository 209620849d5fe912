// Animated WebP through libwebpmux, lossy at quality 90, repeated for ever; the settings are its XMP description.
#include "mhla/core/error.h"
#include "mhla/io/codecs/video_writer.h"
#include "mhla/io/file.h"

#ifdef MHLA_WEBPMUX
#include <webp/encode.h>
#include <webp/mux.h>

#include <cmath>
#include <span>
#endif

namespace mhla {

#ifdef MHLA_WEBPMUX

namespace {

std::string xml_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string xmp_of(const ImageText& text) {
  return R"(<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF )"
         R"(xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description )"
         R"(xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:description><rdf:Alt><rdf:li xml:lang="x-default">)" +
         xml_text(text_json(text)) +
         R"(</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>)";
}

struct FreeWebp {
  void operator()(WebPAnimEncoder* encoder) const { WebPAnimEncoderDelete(encoder); }
  void operator()(WebPMux* mux) const { WebPMuxDelete(mux); }
};

class WebpWriter final : public VideoWriter {
 public:
  WebpWriter(const std::filesystem::path& path, const VideoSettings& settings)
      : path_(path), settings_(settings), file_(path) {
    WebPAnimEncoderOptions options{};
    if (WebPAnimEncoderOptionsInit(&options) == 0 || WebPConfigInit(&config_) == 0)
      fail(path.string(), ": libwebp could not start: it is of another version");
    options.anim_params.loop_count = 0;
    config_.quality = 90.0F;
    encoder_.reset(WebPAnimEncoderNew(settings.width, settings.height, &options));
    if (!encoder_) fail(path.string(), ": libwebp could not start");
  }
  void frame(const Image& image) override {
    expect_frame(image, settings_);
    WebPPicture picture;
    if (WebPPictureInit(&picture) == 0) fail(path_.string(), ": libwebp could not start: it is of another version");
    picture.use_argb = 1, picture.width = image.width, picture.height = image.height;
    const bool good = WebPPictureImportRGB(&picture, image.pixels.data(), 3 * image.width) != 0 &&
                      WebPAnimEncoderAdd(encoder_.get(), &picture, at(number_++), &config_) != 0;
    WebPPictureFree(&picture);
    if (!good) fail(path_.string(), ": libwebp: ", WebPAnimEncoderGetError(encoder_.get()));
  }
  void end() override {
    WebPData data;
    WebPDataInit(&data);
    const bool assembled = WebPAnimEncoderAdd(encoder_.get(), nullptr, at(number_), nullptr) != 0 &&
                           WebPAnimEncoderAssemble(encoder_.get(), &data) != 0;
    if (!assembled) fail(path_.string(), ": libwebp: ", WebPAnimEncoderGetError(encoder_.get()));
    const std::unique_ptr<WebPMux, FreeWebp> mux(WebPMuxCreate(&data, /*copy_data=*/1));
    WebPDataClear(&data);
    const std::string xmp = xmp_of(settings_.text);
    const WebPData chunk{reinterpret_cast<const std::uint8_t*>(xmp.data()), xmp.size()};
    if (!mux || WebPMuxSetChunk(mux.get(), "XMP ", &chunk, /*copy_data=*/1) != WEBP_MUX_OK ||
        WebPMuxAssemble(mux.get(), &data) != WEBP_MUX_OK)
      fail(path_.string(), ": libwebp could not add the settings");
    file_.write(std::as_bytes(std::span(data.bytes, data.size)));
    WebPDataClear(&data);
    file_.commit();
  }

 private:
  [[nodiscard]] int at(std::int64_t number) const {  // milliseconds
    return static_cast<int>(std::lround(1000.0 * static_cast<double>(number) / settings_.fps));
  }
  std::filesystem::path path_;
  VideoSettings settings_;
  AtomicFile file_;
  WebPConfig config_{};
  std::unique_ptr<WebPAnimEncoder, FreeWebp> encoder_;
  std::int64_t number_ = 0;
};

}  // namespace

bool has_webp_writer() { return true; }

std::unique_ptr<VideoWriter> open_webp_writer(const std::filesystem::path& path, const VideoSettings& settings) {
  return std::make_unique<WebpWriter>(path, settings);
}

#else

bool has_webp_writer() { return false; }

std::unique_ptr<VideoWriter> open_webp_writer(const std::filesystem::path& path, const VideoSettings& /*settings*/) {
  fail(path.string(), ": this build has no libwebpmux (Debian: libwebp-dev)");
}

#endif

}  // namespace mhla
