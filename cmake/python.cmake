# A build by pip (pyproject.toml): for the torch of the Python that runs it, with CUDA kernels where that torch has CUDA.
if(NOT SKBUILD OR MHLA_TORCH_DIR)
  return()
endif()
execute_process(COMMAND ${Python_EXECUTABLE} -c
                "import os, torch; print(os.path.dirname(torch.__file__), 'OFF' if torch.version.cuda is None else 'ON')"
                OUTPUT_VARIABLE torch_found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE torch_says)
if(NOT torch_found MATCHES "^(.*) (ON|OFF)$")
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch, which mhla is built for: install it, then "
                      "`pip install --no-build-isolation .`\n${torch_says}")
endif()
set(torch_folder ${CMAKE_MATCH_1})
if(CMAKE_MATCH_2 STREQUAL "OFF" AND NOT DEFINED MHLA_CUDA)
  set(MHLA_CUDA OFF)
endif()
if(EXISTS ${torch_folder}/include/ATen/ATen.h)  # Debian's has its headers in libtorch-dev
  set(MHLA_TORCH_DIR ${torch_folder})
endif()
