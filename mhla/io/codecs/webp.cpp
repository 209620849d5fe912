// WebP through libwebp. Of an animation the first frame is taken, on a black canvas. Alpha is dropped: colours come as
// they are stored.
#ifdef MHLA_WEBP
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <memory>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

const char* reason_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY: return "out of memory";
    case VP8_STATUS_BITSTREAM_ERROR: return "its data make no image";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "a feature that libwebp does not know";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file ends too early";
    default: return "libwebp could not read it";
  }
}

const std::uint8_t* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

WebPBitstreamFeatures features_of(std::span<const std::byte> bytes, const std::string& label) {
  WebPBitstreamFeatures features{};
  const VP8StatusCode status = WebPGetFeatures(data_of(bytes), bytes.size(), &features);
  if (status != VP8_STATUS_OK) fail(label, ": damaged WebP: ", reason_of(status));
  return features;
}

// One image of height x width, its first pixel at `out`.
void decode_into(std::span<const std::byte> bytes, const std::string& label, std::uint8_t* out, int stride,
                 int height) {
  WebPDecoderConfig config{};
  if (WebPInitDecoderConfig(&config) == 0) fail(label, ": libwebp could not start: it is of another version");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = out;
  config.output.u.RGBA.stride = stride;
  config.output.u.RGBA.size = static_cast<std::size_t>(stride) * static_cast<std::size_t>(height);
  const VP8StatusCode status = WebPDecode(data_of(bytes), bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) fail(label, ": damaged WebP: ", reason_of(status));
}

void decode_first_frame(std::span<const std::byte> bytes, const std::string& label, Image& image) {
  const WebPData data{data_of(bytes), bytes.size()};
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&data), WebPDemuxDelete);
  WebPIterator frame{};
  if (!demuxer || WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0)
    fail(label, ": damaged WebP: an animation without a frame");
  const std::unique_ptr<WebPIterator, void (*)(WebPIterator*)> released(&frame, WebPDemuxReleaseIterator);
  const auto fragment = std::as_bytes(std::span(frame.fragment.bytes, frame.fragment.size));
  const WebPBitstreamFeatures inside = features_of(fragment, label);
  if (inside.width > image.width || inside.height > image.height || frame.x_offset < 0 || frame.y_offset < 0 ||
      frame.x_offset > image.width - inside.width || frame.y_offset > image.height - inside.height)
    fail(label, ": damaged WebP: its first frame does not lie on its canvas");
  std::fill(image.pixels.begin(), image.pixels.end(), std::uint8_t{0});
  std::vector<std::uint8_t> pixels(3 * static_cast<std::size_t>(inside.width) *
                                   static_cast<std::size_t>(inside.height));
  decode_into(fragment, label, pixels.data(), 3 * inside.width, inside.height);
  for (int y = 0; y < inside.height; ++y) {
    const auto row = pixels.begin() + std::ptrdiff_t{3} * inside.width * y;
    std::copy(row, row + std::ptrdiff_t{3} * inside.width, image.row(frame.y_offset + y) + 3 * frame.x_offset);
  }
}

}  // namespace

void decode_webp(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  const WebPBitstreamFeatures features = features_of(bytes, label);
  check_image_size(static_cast<std::uint64_t>(features.height), static_cast<std::uint64_t>(features.width), label,
                   limits);
  image.resize(features.height, features.width, 3);
  if (features.has_animation != 0) return decode_first_frame(bytes, label, image);
  decode_into(bytes, label, image.row(0), 3 * image.width, image.height);
}

}  // namespace mhla
#endif
