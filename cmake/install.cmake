# What `cmake --install` leaves: the public rooms as libraries with their headers, a CMake package, a pkg-config
# file, and the program. Headers that only kernels include stay at home; tests/install_test.cmake compiles each
# installed header on its own.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mhla)
foreach(room ${MHLA_PUBLIC_ROOMS})
  install(TARGETS mhla_${room} EXPORT mhla)
  set_target_properties(mhla_${room} PROPERTIES INSTALL_RPATH "$ORIGIN")  # the rooms lie side by side
endforeach()
install(EXPORT mhla NAMESPACE mhla:: FILE mhla-targets.cmake DESTINATION ${package_dir})

# The rooms over LibTorch are archives of their own package component: find_package(mhla COMPONENTS torch).
if(MHLA_TORCH)
  foreach(room ${MHLA_TORCH_ROOMS})
    install(TARGETS mhla_${room} EXPORT mhla-torch)
  endforeach()
  install(EXPORT mhla-torch NAMESPACE mhla:: FILE mhla-torch-targets.cmake DESTINATION ${package_dir})
  install(FILES cmake/libtorch.cmake DESTINATION ${package_dir} RENAME mhla-libtorch.cmake)
  set(torch_headers ops/ops.h ops/phases.h ops/context_parallel.h models/classify/classifier_config.h models/classify/classifier.h models/weights_file.h
      models/parts.h models/recompute.h models/lm/head_loss.h models/lm/lm.h models/lm/lm_config.h)
  foreach(header attention attention_size attention_state context_share convolutions feature_maps mhla_attention norms param_roles rope scans scores torch weight_names
          zoo/attention_config zoo/zoo zoo/zoo_parts zoo/focused zoo/gated_image zoo/gdn zoo/gla zoo/inline_attention zoo/mamba zoo/mamba2
          zoo/softmax)
    list(APPEND torch_headers modules/${header}.h)
  endforeach()
endif()

# Of core every header but the one that needs CUDA's own, of io and kernels those meant for others and what they mention.
install(DIRECTORY mhla/core DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mhla FILES_MATCHING PATTERN *.h
        PATTERN cuda_check.h EXCLUDE)
foreach(header io/fields.h io/file.h io/json.h io/safetensors.h kernels/bidirectional/bidirectional.h kernels/chunkwise/chunkwise.h
        kernels/streaming/streaming.h kernels/phases/phases.h kernels/linear/linear_rows.h kernels/mixing/mixing.h kernels/common/layout.h
        kernels/common/part.h
        kernels/common/feature_map.h kernels/common/options.h kernels/common/support.h
        ${torch_headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES mhla/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mhla/${folder})
endforeach()
install(FILES mhla/c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mhla)

configure_package_config_file(cmake/mhla-config.cmake.in mhla-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(mhla-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mhla-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/mhla-config-version.cmake
        DESTINATION ${package_dir})

# A static archive names its own needs only here: Highway, threads, the C++ library for programs linked as C, and the
# CUDA runtime, which is inside the shared libraries.
set(needs "-lhwy -lstdc++ -lm -pthread")
if(MHLA_CUDA AND NOT BUILD_SHARED_LIBS)
  set(needs "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl ${needs}")
endif()
if(BUILD_SHARED_LIBS)
  set(pc_libs "")
  set(pc_libs_private ${needs})
else()
  set(pc_libs ${needs})
  set(pc_libs_private "")
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # the tree may be moved
configure_file(cmake/mhla.pc.in mhla.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mhla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET mhla)
  file(RELATIVE_PATH libraries_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(mhla PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_bin}")  # apps/ installs it
endif()
