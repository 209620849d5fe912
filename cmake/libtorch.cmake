# Where LibTorch is, and what a target over it needs: for this build (torch.cmake), and for users of the installed package,
# which brings this file along. Debian's libtorch-dev is found by itself; MHLA_TORCH_DIR names the folder of another.
set(hints)
if(MHLA_TORCH_DIR)
  set(hints HINTS ${MHLA_TORCH_DIR}/include ${MHLA_TORCH_DIR}/lib NO_DEFAULT_PATH)
endif()
find_path(MHLA_TORCH_INCLUDE ATen/ATen.h ${hints})
foreach(library torch torch_cpu c10 c10_cuda torch_cuda)
  find_library(MHLA_LIB_${library} ${library} ${hints})
  mark_as_advanced(MHLA_LIB_${library})
endforeach()
mark_as_advanced(MHLA_TORCH_INCLUDE)

set(mhla_libtorch_found OFF)
set(MHLA_TORCH_VERSION "")
if(MHLA_TORCH_INCLUDE AND MHLA_LIB_torch AND MHLA_LIB_torch_cpu AND MHLA_LIB_c10)
  set(mhla_libtorch_found ON)
  set(torch_api ${MHLA_TORCH_INCLUDE}/torch/csrc/api/include)
  foreach(header ${torch_api}/torch/version.h ${MHLA_TORCH_INCLUDE}/torch/headeronly/version.h)  # 2.x moved the numbers
    if(EXISTS ${header} AND NOT MHLA_TORCH_VERSION)
      file(STRINGS ${header} numbers REGEX "define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" numbers "${numbers}")
      string(REPLACE ";" "." MHLA_TORCH_VERSION "${numbers}")
    endif()
  endforeach()
  # PyPI's torch has the old std::string up to 2.6 and says so in its CMake file; code over it must be compiled alike.
  set(MHLA_TORCH_OLD_ABI OFF)
  set(torch_config ${MHLA_TORCH_INCLUDE}/../share/cmake/Torch/TorchConfig.cmake)
  if(EXISTS ${torch_config})
    file(STRINGS ${torch_config} old_abi REGEX "^[^#]*_GLIBCXX_USE_CXX11_ABI=0")
    if(old_abi)
      set(MHLA_TORCH_OLD_ABI ON)
    endif()
  endif()
endif()

# Its headers are not written for our warnings: they come in as system headers. With MHLA_TORCH_CUDA its CUDA side, too:
# no symbol of torch_cuda is used by name, it registers itself when it is loaded. libstdc++ comes first: PyTorch's own
# libraries export a std::filesystem of another layout, which a program must not be given.
function(mhla_describe_libtorch TARGET)
  target_include_directories(${TARGET} ${ARGN} INTERFACE ${MHLA_TORCH_INCLUDE} ${torch_api})
  target_link_libraries(${TARGET} INTERFACE stdc++ ${MHLA_LIB_torch} ${MHLA_LIB_torch_cpu} ${MHLA_LIB_c10})
  if(MHLA_TORCH_CUDA)
    target_compile_definitions(${TARGET} INTERFACE MHLA_TORCH_CUDA=1)
    target_include_directories(${TARGET} ${ARGN} INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(${TARGET} INTERFACE ${MHLA_LIB_c10_cuda}
                          -Wl,--no-as-needed,${MHLA_LIB_torch_cuda},--as-needed)
  endif()
endfunction()
