# A build by pip (pyproject.toml): for the torch of the Python that runs it. CUDA kernels are compiled where that torch has
# CUDA and there is a GPU, or where MHLA_CUDA=on in the environment asks for them: they take half of the time.
if(NOT SKBUILD OR MHLA_TORCH_DIR)
  return()
endif()
execute_process(COMMAND ${Python_EXECUTABLE} -c
                "import os, torch; print(os.path.dirname(torch.__file__), 'OFF' if torch.version.cuda is None else 'ON')"
                OUTPUT_VARIABLE torch_found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE torch_says)
if(NOT torch_found MATCHES "^(.*) (ON|OFF)$")
  message(FATAL_ERROR "${Python_EXECUTABLE} could not import torch, which mhla is built for:\n${torch_says}")
endif()
set(torch_folder ${CMAKE_MATCH_1})
set(torch_has_cuda ${CMAKE_MATCH_2})
if(NOT DEFINED MHLA_CUDA)
  if(DEFINED ENV{MHLA_CUDA})
    set(MHLA_CUDA $ENV{MHLA_CUDA})
  elseif(torch_has_cuda STREQUAL "ON" AND EXISTS /dev/nvidia0)
    # as found: cuda.cmake
  else()
    set(MHLA_CUDA OFF)
    if(torch_has_cuda STREQUAL "ON")
      message(STATUS "no GPU here: CUDA kernels are left out; MHLA_CUDA=on builds them all the same")
    endif()
  endif()
endif()
if(EXISTS ${torch_folder}/include/ATen/ATen.h)  # Debian's has its headers in libtorch-dev
  set(MHLA_TORCH_DIR ${torch_folder})
endif()
