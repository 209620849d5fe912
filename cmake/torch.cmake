# LibTorch is optional: MHLA_TORCH is ON where it is found, and rooms from ops/ on are built. Debian's libtorch-dev is
# found by itself; MHLA_TORCH_DIR names the folder of another, such as the torch package of a Python. Only g++: the
# headers of 1.13 refuse clang 14. Under sanitizers, which LibTorch was not built for, only where it is asked for.
set(MHLA_TORCH_DIR "" CACHE PATH "A LibTorch folder (with include/ and lib/) instead of the system's")
set(torch_found OFF)
set(torch_wanted OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  include(libtorch)
  set(torch_found ${mhla_libtorch_found})
  if(NOT torch_found AND MHLA_TORCH_DIR)
    message(FATAL_ERROR "MHLA_TORCH_DIR is ${MHLA_TORCH_DIR}, expected a folder with include/ATen and lib/libtorch.so")
  endif()
  if(NOT MHLA_SANITIZE)
    set(torch_wanted ${torch_found})
  endif()
endif()
option(MHLA_TORCH "Build the rooms over LibTorch: ops and above" ${torch_wanted})

if(NOT MHLA_TORCH)
  message(STATUS "LibTorch is off (MHLA_TORCH): no ops, and `mhla bench op --rivals` will say so")
  return()
endif()
if(NOT torch_found)
  message(FATAL_ERROR "MHLA_TORCH is ON, but LibTorch was not found (g++; Debian package libtorch-dev)")
endif()

if(MHLA_TORCH_OLD_ABI)
  if(MHLA_APPS OR MHLA_TESTS)
    message(FATAL_ERROR "LibTorch ${MHLA_TORCH_VERSION} in ${MHLA_TORCH_INCLUDE} has the old C++ ABI, which the system's libraries "
                        "do not: expected another LibTorch, or -DMHLA_APPS=OFF -DMHLA_TESTS=OFF for the Python package")
  endif()
  add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=0)
endif()
set(torch_cuda "")
if(MHLA_CUDA AND MHLA_LIB_c10_cuda AND MHLA_LIB_torch_cuda)
  set(MHLA_TORCH_CUDA ON)
  set(torch_cuda " with CUDA")
endif()
add_library(mhla_libtorch INTERFACE)
mhla_describe_libtorch(mhla_libtorch SYSTEM)
message(STATUS "LibTorch ${MHLA_TORCH_VERSION}${torch_cuda}: ${MHLA_TORCH_INCLUDE}")

# The library that the program opens when a command needs LibTorch (apps/cli/engine.h): every source of the folder, the
# precompiled header of `header_of`, and what it links. Its file is called after the target.
function(mhla_plugin target header_of)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  add_library(${target} SHARED ${sources})
  target_precompile_headers(${target} REUSE_FROM ${header_of})  # the same header, compiled once
  mhla_unity(${target})
  target_link_libraries(${target} PRIVATE ${base} ${ARGN} mhla_flags ${CMAKE_DL_LIBS})  # base: of apps/, core and kernels
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib INSTALL_RPATH "$ORIGIN")
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # no loops of its own: a third less time to compile
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)  # other rooms are in the program, too
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
