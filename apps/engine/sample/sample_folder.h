// The folder of `mhla sample`:
//   sample.json        the settings, written first
//   images/000012.png  one file an image, complete or not there; classes are in the name: 000012-class7.png
//   previews/          what the model expected the image to be on the way: 000012-step-0030.png
//   sheet.png, samples.npz   made of the images at the end
// An interrupted run leaves whole images, and the rest can be made later.
#pragma once

#include <memory>

#include "apps/engine/sample/sample_plan.h"
#include "mhla/io/codecs/image.h"
#include "mhla/train/run_lock.h"

namespace mhla::apps {

class SampleFolder {
 public:
  // Refuses a folder with other files, with images and neither `resume` nor `overwrite`, or with other settings to
  // resume. Changes nothing.
  SampleFolder(const SamplePlan& plan, const SampleImagesRequest& request);

  // Takes the folder for this process: makes it, removes what `overwrite` replaces, writes sample.json.
  void begin();
  [[nodiscard]] std::vector<std::int64_t> missing() const;  // numbers of the images that are not there
  [[nodiscard]] std::filesystem::path image_path(std::int64_t number) const;
  void write_image(std::int64_t number, const Image& image) const;  // from any thread
  void end() const;                                                 // all images are on the disk when it returns
  void write_preview(std::int64_t number, std::int64_t step, const Image& image) const;

  // Of the images on the disk, one at a time.
  std::filesystem::path write_sheet(Plane sheet) const;
  std::filesystem::path write_npz() const;

 private:
  void expect_same_settings(const JsonValue& there) const;
  void clear() const;
  [[nodiscard]] bool is_whole(std::int64_t number) const;

  const SamplePlan& plan_;
  std::filesystem::path folder_;
  bool resumes_ = false, replaces_ = false;
  std::unique_ptr<train::RunLock> lock_;
};

}  // namespace mhla::apps
