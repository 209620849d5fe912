// A converted model in a C++ program: runs a .pt2 file that AOTInductor made of it
// (python/tests/packages/test_aoti.py).
//   aoti_run MODEL.pt2 INPUT.bin OUTPUT.bin BATCH ROWS COLUMNS [libmhla_torch.so]
// INPUT.bin has float32 images [BATCH, 3, ROWS, COLUMNS]; the logits are written to OUTPUT.bin. A model with
// backend="kernels" calls the operators of libmhla_torch.so, which is opened first; one with backend="torch" needs
// nothing.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: %s MODEL.pt2 INPUT.bin OUTPUT.bin BATCH ROWS COLUMNS [libmhla_torch.so]\n", argv[0]);
    return 2;
  }
  if (argc > 7 && dlopen(argv[7], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const c10::InferenceMode no_gradients;
  const at::Tensor images = at::empty({std::atoll(argv[4]), 3, std::atoll(argv[5]), std::atoll(argv[6])});
  std::ifstream(argv[2], std::ios::binary)
      .read(static_cast<char*>(images.data_ptr()), std::streamsize(images.nbytes()));
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const at::Tensor logits = model.run({images})[0].contiguous();
  std::ofstream(argv[3], std::ios::binary)
      .write(static_cast<const char*>(logits.const_data_ptr()), std::streamsize(logits.nbytes()));
  return 0;
}
