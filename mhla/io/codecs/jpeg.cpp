// JPEG through libjpeg-turbo.
#include <cstdio>
#include <cstdlib>
#include <tuple>
// After <cstdio>: jpeglib.h uses its types without including it.
#include <jerror.h>
#include <jpeglib.h>

#include "mhla/core/error.h"
#include "mhla/io/codecs/attempt.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

// A progressive file may hold any number of scans, each a pass over all coefficients: real ones have about ten.
constexpr int kMaxScans = 200;

struct Manager {
  jpeg_error_mgr base{};  // first: libjpeg hands back a pointer to it
  Trouble trouble{};
};
static_assert(std::tuple_size_v<decltype(Trouble::message)> >= JMSG_LENGTH_MAX);

Trouble& trouble_of(j_common_ptr info) { return reinterpret_cast<Manager*>(info->err)->trouble; }

void give_up(j_common_ptr info) {
  (*info->err->format_message)(info, trouble_of(info).message.data());
  trouble_of(info).jump();
}

// libjpeg fills what is missing with grey and goes on. Only oddities that lose no pixel are let pass.
void weigh_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR: return;
    default: give_up(info);
  }
}

jpeg_error_mgr* prepared(Manager& manager) {
  jpeg_std_error(&manager.base);
  manager.base.error_exit = give_up;
  manager.base.emit_message = weigh_message;
  manager.base.output_message = [](j_common_ptr) {};
  return &manager.base;
}

struct CountScans {
  jpeg_progress_mgr manager{};  // first, as above
  static void look(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
    std::snprintf(trouble_of(info).message.data(), JMSG_LENGTH_MAX, "more than %d scans", kMaxScans);
    trouble_of(info).jump();
  }
};

class JpegDecompress {
 public:
  explicit JpegDecompress(const std::string& label) : label_(label) {
    info_.err = prepared(manager_);
    scans_.manager.progress_monitor = CountScans::look;
    run([this] {
      jpeg_create_decompress(&info_);
      info_.progress = &scans_.manager;
    });
  }
  ~JpegDecompress() { jpeg_destroy_decompress(&info_); }
  JpegDecompress(const JpegDecompress&) = delete;
  JpegDecompress& operator=(const JpegDecompress&) = delete;

  template <class Work>
  void run(const Work& work) {
    if (!attempt(manager_.trouble, work)) fail(label_, ": damaged JPEG: ", manager_.trouble.message.data());
  }
  jpeg_decompress_struct& info() { return info_; }

 private:
  const std::string& label_;
  Manager manager_;
  CountScans scans_;
  jpeg_decompress_struct info_{};
};

// Four inks to RGB: r = (1 - c) (1 - k). Adobe writes them inverted, and is who writes nearly all of them.
void from_cmyk(const std::uint8_t* cmyk, int width, bool inverted, std::uint8_t* rgb) {
  const int flip = inverted ? 0 : 255;
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int light = cmyk[3] ^ flip;
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<std::uint8_t>(((cmyk[c] ^ flip) * light + 127) / 255);
  }
}

}  // namespace

void decode_jpeg(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  JpegDecompress decompress(label);
  jpeg_decompress_struct& info = decompress.info();
  decompress.run([&] {
    info.mem->max_memory_to_use = static_cast<long>(limits.max_memory);
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
  });
  check_image_size(info.image_height, info.image_width, label, limits);
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  const bool grey = info.jpeg_color_space == JCS_GRAYSCALE;
  if (info.jpeg_color_space == JCS_UNKNOWN)
    fail(label, ": JPEG with ", info.num_components, " components of unknown meaning, expected grey, colour or CMYK");
  info.out_color_space = inks ? JCS_CMYK : grey ? JCS_GRAYSCALE : JCS_RGB;
  image.resize(static_cast<int>(info.image_height), static_cast<int>(info.image_width), grey ? 1 : 3);
  std::vector<std::uint8_t> ink_row(inks ? std::size_t{4} * info.image_width : 0);
  decompress.run([&] {
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      const int y = static_cast<int>(info.output_scanline);
      JSAMPROW row = inks ? ink_row.data() : image.row(y);
      jpeg_read_scanlines(&info, &row, 1);
      if (inks) from_cmyk(ink_row.data(), image.width, info.saw_Adobe_marker != 0, image.row(y));
    }
    jpeg_finish_decompress(&info);
  });
}

std::vector<std::byte> encode_jpeg(const Image& image, int quality) {
  check_encodable(image, "encode_jpeg");
  if (quality < 1 || quality > 100) fail("encode_jpeg: quality is ", quality, ", expected 1 to 100");
  struct Compress {
    Manager manager;
    jpeg_compress_struct info{};
    unsigned char* data = nullptr;
    unsigned long size = 0;
    ~Compress() {
      jpeg_destroy_compress(&info);
      std::free(data);
    }
  } job;
  job.info.err = prepared(job.manager);
  const bool written = attempt(job.manager.trouble, [&] {
    jpeg_compress_struct& info = job.info;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &job.data, &job.size);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.input_components = image.channels;
    info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPROW>(image.row(static_cast<int>(info.next_scanline)));
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  });
  if (!written) fail("encode_jpeg: ", job.manager.trouble.message.data());
  const auto* begin = reinterpret_cast<const std::byte*>(job.data);
  return {begin, begin + job.size};
}

}  // namespace mhla
