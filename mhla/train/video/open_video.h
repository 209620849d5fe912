// The model of a run of `mhla train video`, finished or not, opened to be evaluated or to teach.
#pragma once

#include <filesystem>

#include "mhla/train/observer.h"
#include "mhla/train/runs/open_options.h"
#include "mhla/train/video/video_task.h"

namespace mhla::train {

// A run with its held-out clips: those of `data`, or where it is empty its own.
struct VideoRun {
  VideoOptions options;  // of train.json, with what OpenOptions change
  WanConfig network;
  std::filesystem::path weights;
  VideoSource source;
  Wan model{nullptr};
};
VideoRun open_video_run(const std::string& command, const OpenOptions& open, const std::string& data,
                        Observer& observer);

// The teacher of the options, for a student: it must read the same clips and captions.
Wan open_teacher(const VideoOptions& options, const WanConfig& student, const VideoSource& source, Observer& observer);

}  // namespace mhla::train
