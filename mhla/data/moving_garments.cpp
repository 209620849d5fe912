#include "mhla/data/moving_garments.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"

namespace mhla {
namespace {

constexpr double kHalfSide = 0.22;          // of a garment, as a share of the shorter side
constexpr double kSlow = 1.0, kFast = 2.5;  // pixels a frame, of 16 frames of 64 x 64

constexpr std::array<std::array<double, 3>, 6> kColours{
    {{1, .15, .15}, {.15, 1, .15}, {.25, .35, 1}, {1, 1, .2}, {1, .25, 1}, {.2, 1, 1}}};
constexpr std::array<std::array<double, 3>, 4> kGrounds{{{0, 0, 0}, {.35, .35, .35}, {.05, .05, .35}, {.3, .3, .05}}};
constexpr std::array<std::array<double, 2>, 8> kDirections{
    {{0, -1}, {0, 1}, {-1, 0}, {1, 0}, {-.7071, -.7071}, {-.7071, .7071}, {.7071, -.7071}, {.7071, .7071}}};  // rows,
                                                                                                              // columns

std::size_t index_of(std::int64_t value) { return static_cast<std::size_t>(value); }

double shorter_side(const ClipShape& shape) { return static_cast<double>(std::min(shape.rows, shape.columns)); }

class MovingGarments final : public VideoSet {
 public:
  MovingGarments(const std::string& images, Split split, const ClipShape& shape, std::uint64_t seed)
      : images_(open_images(images, split)), split_(split), shape_(shape), seed_(seed) {
    if (images_->channels() != 1 || images_->height() != images_->width() || images_->height() < 2 ||
        images_->classes() != 10)
      fail("moving-garments: ", images_->name(), " has images of ", images_->height(), "x", images_->width(), " in ",
           images_->classes(), " classes, expected square grey ones in 10");
  }
  [[nodiscard]] std::string name() const override { return str("moving-garments, ", name_of(split_)); }
  [[nodiscard]] std::int64_t size() const override { return kGarmentClips; }
  [[nodiscard]] const ClipShape& shape() const override { return shape_; }
  [[nodiscard]] std::string caption(std::int64_t item) const override { return scene(item).attributes.caption(); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return str(name(), ", clip ", item); }
  [[nodiscard]] bool is_made() const override { return true; }
  [[nodiscard]] std::uint32_t checksum() const override { return labels_checksum(*images_); }
  void clip(std::int64_t item, float* out) const override {
    const GarmentScene made = scene(item);
    Image garment;
    images_->decode(made.garment, garment);
    paint_garment(made, garment, shape_, out);
  }

 private:
  [[nodiscard]] GarmentScene scene(std::int64_t item) const {
    Philox random(seed_, Philox::kClip, split_ == Split::kTrain ? 0 : 1, item);
    GarmentScene scene;
    scene.garment = random.below(images_->size());
    scene.attributes.values[0] = images_->label(scene.garment);
    for (std::size_t i = 1; i < GarmentAttributes::kCount; ++i)
      scene.attributes.values[i] = random.below(GarmentAttributes::kValues[i]);
    const double half = kHalfSide * shorter_side(shape_);
    const double rows = static_cast<double>(shape_.rows), columns = static_cast<double>(shape_.columns);
    scene.start = {half + random.uniform() * (rows - 2 * half), half + random.uniform() * (columns - 2 * half)};
    return scene;
  }

  ImageSetPtr images_;
  Split split_;
  ClipShape shape_;
  std::uint64_t seed_;
};

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

std::string GarmentAttributes::caption() const {
  return str("a color", values[1], " class", values[0], " moves dir", values[2], values[3] == 0 ? " slow" : " fast",
             " on a ground", values[4]);
}

std::optional<GarmentAttributes> garment_attributes(const std::string& caption) {
  const std::vector<std::string> words = words_of(caption);
  if (words.size() != 9) return {};
  GarmentAttributes a;
  const auto number = [&](std::size_t word, const std::string& head, std::size_t which) {
    const std::string& text = words[word];
    if (text.size() != head.size() + 1 || text.rfind(head, 0) != 0) return false;
    a.values[which] = text.back() - '0';
    return a.values[which] >= 0 && a.values[which] < GarmentAttributes::kValues[which];
  };
  const bool good = number(1, "color", 1) && number(2, "class", 0) && number(4, "dir", 2) && number(8, "ground", 4);
  a.values[3] = words[5] == "fast" ? 1 : 0;
  if (!good || a.caption() != caption) return {};
  return a;
}

std::vector<std::string> garment_words() {
  std::vector<std::string> words{"<empty>", "a", "moves", "on", "ground"};
  const auto add = [&](const char* head, int count) {
    for (int i = 0; i < count; ++i) words.push_back(str(head, i));
  };
  add("color", 6), add("class", 10), add("dir", 8);
  words.insert(words.end(), {"slow", "fast"});
  add("ground", 4);
  return words;
}

std::array<double, 3> garment_ground(std::int64_t ground) { return kGrounds.at(index_of(ground)); }

std::vector<std::array<double, 2>> garment_track(const GarmentScene& scene, const ClipShape& shape) {
  const double side = shorter_side(shape), half = kHalfSide * side;
  const double speed =
      (scene.attributes.values[3] == 0 ? kSlow : kFast) * side / 64.0 * 16.0 / static_cast<double>(shape.frames);
  const std::array<double, 2> sides{static_cast<double>(shape.rows), static_cast<double>(shape.columns)};
  std::vector<std::array<double, 2>> track;
  for (std::int64_t frame = 0; frame < shape.frames; ++frame) {
    std::array<double, 2> centre{};
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const double room = sides[axis] - 2 * half;  // there and back is one period
      const double way = kDirections.at(index_of(scene.attributes.values[2]))[axis] * speed;
      double q = std::fmod(scene.start[axis] - half + way * static_cast<double>(frame), 2 * room);
      if (q < 0) q += 2 * room;
      centre[axis] = (q > room ? 2 * room - q : q) + half;
    }
    track.push_back(centre);
  }
  return track;
}

void paint_garment(const GarmentScene& scene, const Image& garment, const ClipShape& shape, float* out) {
  const double half = kHalfSide * shorter_side(shape);
  const std::array<double, 3>& colour = kColours.at(index_of(scene.attributes.values[1]));
  const std::array<double, 3>& ground = kGrounds.at(index_of(scene.attributes.values[4]));
  const std::int64_t rows = shape.rows, columns = shape.columns, plane = rows * columns;
  for (std::int64_t c = 0; c < 3; ++c)
    std::fill(out + c * shape.frames * plane, out + (c + 1) * shape.frames * plane,
              static_cast<float>(2 * ground[index_of(c)] - 1));
  const int side = garment.height;
  const auto pixel = [&](int y, int x) {
    return y < 0 || x < 0 || y >= side || x >= side ? 0.0 : garment.row(y)[x] / 255.0;
  };
  // Where the image is at the centre `at` of a pixel: its sides are at at - half and at + half.
  const auto place = [&](std::int64_t at, double centre) {
    return ((static_cast<double>(at) + 0.5 - centre) / half + 1) * side / 2 - 0.5;
  };
  const std::vector<std::array<double, 2>> track = garment_track(scene, shape);
  for (std::int64_t frame = 0; frame < shape.frames; ++frame) {
    const auto [row, column] = track[index_of(frame)];
    const auto range = [half, side](double centre, std::int64_t count) {
      const double reach = half * (1 + 1.0 / side) + 1;  // bilinear weights reach half a pixel of the image further
      return std::pair{std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(centre - reach))),
                       std::min(count, static_cast<std::int64_t>(std::ceil(centre + reach)))};
    };
    const auto [top, bottom] = range(row, rows);
    const auto [left, right] = range(column, columns);
    for (std::int64_t y = top; y < bottom; ++y)
      for (std::int64_t x = left; x < right; ++x) {
        const double v = place(y, row), u = place(x, column);
        if (v <= -1 || u <= -1 || v >= side || u >= side) continue;
        const int y0 = static_cast<int>(std::floor(v)), x0 = static_cast<int>(std::floor(u));
        const double dy = v - y0, dx = u - x0;
        const double cover = (1 - dy) * ((1 - dx) * pixel(y0, x0) + dx * pixel(y0, x0 + 1)) +
                             dy * ((1 - dx) * pixel(y0 + 1, x0) + dx * pixel(y0 + 1, x0 + 1));
        for (std::int64_t c = 0; c < 3; ++c) {
          const double value = cover * colour[index_of(c)] + (1 - cover) * ground[index_of(c)];
          out[(c * shape.frames + frame) * plane + y * columns + x] = static_cast<float>(2 * value - 1);
        }
      }
  }
}

VideoSetPtr moving_garments(const std::string& images, Split split, const ClipShape& shape, std::uint64_t seed) {
  check(shape);
  return std::make_shared<MovingGarments>(images, split, shape, seed);
}

}  // namespace mhla
