#include "mhla/diffusion/metrics/metrics_recorded.h"

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/frechet.h"
#include "mhla/diffusion/metrics/inception_score.h"
#include "mhla/diffusion/metrics/kernel_distance.h"
#include "mhla/diffusion/metrics/neighbours.h"

namespace mhla {
namespace {

// Features of a set; maps are flattened per image.
ConstView rows_of(const RecordedArraysCase& c, const char* name, std::size_t axes, const char* letters) {
  const RecordedArray& array = c.array(name, axes, letters);
  const auto numbers = static_cast<std::int64_t>(array.values.size());
  if (numbers == 0) fail(name, " has shape ", shape_text(array.shape), ": nothing to compute");
  return {array.values.data(), DType::kF64, {array.shape[0], numbers / array.shape[0]}};
}

FeatureStats stats_of(const ConstView& rows, const char* name) {
  FeatureStats stats(rows.shape[1]);
  stats.add(rows, name);
  return stats;
}

RecordedArrays frechet(const RecordedArraysCase& c, std::size_t axes, const char* letters) {
  return {{"out.fid", recorded_scalar(frechet_distance(stats_of(rows_of(c, "in.sample", axes, letters), "in.sample"),
                                                       stats_of(rows_of(c, "in.ref", axes, letters), "in.ref")))}};
}

RecordedArrays fid(const RecordedArraysCase& c) {
  c.expect_keys({"dim", "n_ref", "n_sample"});
  return frechet(c, 2, "[N, dim]");
}

RecordedArrays sfid(const RecordedArraysCase& c) {
  c.expect_keys({"layout"});
  return frechet(c, 4, "[N, rows, columns, channels]");
}

RecordedArrays score(const RecordedArraysCase& c) {
  c.expect_keys({"split_size"});
  const InceptionScore got =
      inception_score(rows_of(c, "in.logits", 2, "[N, classes]"), {.part = c.integer("split_size")});
  return {{"out.mean", recorded_scalar(got.mean)}, {"out.std", recorded_scalar(got.deviation)}};
}

RecordedArrays kid(const RecordedArraysCase& c) {
  c.expect_keys({"kernel", "estimate"});
  return {{"out.kid", recorded_scalar(kernel_distance(rows_of(c, "in.sample", 2, "[N, dim]"),
                                                      rows_of(c, "in.ref", 2, "[N, dim]")))}};
}

RecordedArrays neighbours(const RecordedArraysCase& c) {
  c.expect_keys({"k"});
  const NeighbourMetrics got =
      neighbour_metrics(rows_of(c, "in.sample", 2, "[N, dim]"), rows_of(c, "in.ref", 2, "[N, dim]"), c.integer("k"));
  return {{"out.precision", recorded_scalar(got.precision)},
          {"out.recall", recorded_scalar(got.recall)},
          {"out.density", recorded_scalar(got.density)},
          {"out.coverage", recorded_scalar(got.coverage)}};
}

}  // namespace

RecordedArraysFamilies metrics_recorded() {
  return {{"fid", fid}, {"sfid", sfid}, {"inception_score", score}, {"kid", kid}, {"precision_recall", neighbours}};
}

}  // namespace mhla
