# CUDA is optional: MHLA_CUDA is ON where nvcc is found. The runtime is linked statically, so that a program built here
# starts on a machine without CUDA and says so. Rooms pick up *.cu by themselves (cmake/rooms.cmake).
find_program(MHLA_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
mark_as_advanced(MHLA_NVCC)
if(MHLA_NVCC)
  set(nvcc_found ON)
else()
  set(nvcc_found OFF)
endif()
option(MHLA_CUDA "Build the CUDA kernels (needs nvcc)" ${nvcc_found})
# 90a has Hopper's own instructions and runs on nothing else; newer cards take the PTX of 90.
set(MHLA_CUDA_ARCHITECTURES "80-real;89-real;90a-real;90-virtual" CACHE STRING "CUDA architectures to compile for")
option(MHLA_CUDA_RACECHECK "Kernels whose order compute-sanitizer's racecheck can follow, somewhat slower" OFF)
option(MHLA_CUDA_LINES "Tell a profiler the source line of each instruction of a kernel (-lineinfo)" OFF)

if(MHLA_CUDA)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND MHLA_NVCC)
    set(CMAKE_CUDA_COMPILER ${MHLA_NVCC})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${MHLA_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # CUDA::cudart_static is linked by name: exports and consumers see it
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  if(MHLA_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${MHLA_CCACHE})
  endif()
  if(TARGET CUDA::cudart_static)
    set(MHLA_CUDART CUDA::cudart_static)
  else()
    message(WARNING "the CUDA toolkit has no libcudart_static.a: programs will need libcudart.so to start")
    set(MHLA_CUDART CUDA::cudart)
  endif()
  message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${MHLA_CUDA_ARCHITECTURES}")
else()
  message(STATUS "CUDA kernels are off (MHLA_CUDA; nvcc: ${MHLA_NVCC})")
endif()

# No contraction to fma, as on the CPU; --expt-relaxed-constexpr lets kernels call the constexpr functions of core.
# The host compiler sees nvcc's rewriting of a source, in which designated initialisers look incomplete.
set(MHLA_CUDA_FLAGS -fmad=false --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-missing-field-initializers,-ffp-contract=off)

# Source lines for a profiler cost a tenth of the compile time and three fifths of an object; instructions are the same.
if(MHLA_CUDA_LINES)
  list(APPEND MHLA_CUDA_FLAGS -lineinfo)
endif()

if(MHLA_CUDA_RACECHECK)
  list(APPEND MHLA_CUDA_FLAGS -DMHLA_RACECHECK)
endif()

# A seventh of the size: 0.29 instead of 2.0 MB for rope_cuda.cu and the default architectures. The drivers that CUDA 13
# needs all read it; older toolkits also serve drivers that do not.
if(MHLA_CUDA AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND MHLA_CUDA_FLAGS --compress-mode=size)
endif()

# mhla_sm90_objects(TARGET source...): the *_sm90.cu of a room, which use instructions that only 90a has: compiled for it
# alone. Call it before TARGET exists. ninja starts files in the order of targets, and the longest are among these (29 s;
# most take 2 to 10): at the end one of them would keep a single core busy.
function(mhla_sm90_objects TARGET)
  set(sm90 ${ARGN})
  list(FILTER sm90 INCLUDE REGEX "_sm90\\.cu$")
  if(sm90)
    add_library(${TARGET}_sm90 OBJECT ${sm90})
    set_target_properties(${TARGET}_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_include_directories(${TARGET}_sm90 PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${TARGET}_sm90 PRIVATE mhla_flags)
  endif()
endfunction()

# mhla_add_cuda(TARGET source...): *.cu into a room's library, with what mhla_sm90_objects() made of them. Those that
# neither have kernels nor include any are plain C++: half a second instead of 1.2 to 2.
function(mhla_add_cuda TARGET)
  set(any ${ARGN})
  list(FILTER any EXCLUDE REGEX "_sm90\\.cu$")
  foreach(source ${any})
    file(STRINGS ${source} kernels REGEX "__global__|#include .*\\.cuh\"")
    if(NOT kernels)
      set_source_files_properties(${source} PROPERTIES LANGUAGE CXX
                                  COMPILE_OPTIONS "-x;c++;-Wno-missing-field-initializers")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})  # looked into: it may get a kernel
    endif()
  endforeach()
  target_sources(${TARGET} PRIVATE ${any})
  target_link_libraries(${TARGET} PRIVATE ${MHLA_CUDART})
  if(TARGET ${TARGET}_sm90)
    target_sources(${TARGET} PRIVATE $<TARGET_OBJECTS:${TARGET}_sm90>)
  endif()
endfunction()
