// The recorded numbers of diffusers' AutoencoderKL and AutoencoderDC: outputs and every gradient.
#include "mhla/models/autoencoder/autoencoder_recorded.h"
#include "mhla/models/recorded_fixture.h"

namespace mhla {
namespace {

TEST(AutoencoderGolden, Kl) { expect_recorded_cases("vae_kl", 1, autoencoder_recorded()); }

TEST(AutoencoderGolden, Dc) { expect_recorded_cases("vae_dc", 2, autoencoder_recorded()); }

}  // namespace
}  // namespace mhla
