# MHLA_DEPS: a folder made by scripts/gpu_headers.sh instead of the system's packages. find_package() looks into
# CMAKE_FIND_PACKAGE_REDIRECTS_DIR first: a file there answers for a package whose targets are defined here.
if(NOT MHLA_DEPS)
  return()
endif()
get_filename_component(deps "${MHLA_DEPS}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
if(NOT EXISTS ${deps}/include/hwy/highway.h)
  message(FATAL_ERROR "MHLA_DEPS is ${deps}, expected a folder made by scripts/gpu_headers.sh")
endif()
message(STATUS "libraries of ${deps} instead of the system's")

function(mhla_dep PACKAGE TARGET)
  string(TOLOWER ${PACKAGE} package)
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/${package}-config.cmake "")
  if(NOT TARGET ${TARGET})
    add_library(${TARGET} INTERFACE IMPORTED GLOBAL)
  endif()
  target_include_directories(${TARGET} SYSTEM INTERFACE ${deps}/include)
endfunction()

mhla_dep(CLI11 CLI11::CLI11)
mhla_dep(nlohmann_json nlohmann_json::nlohmann_json)
mhla_dep(fmt fmt::fmt)
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)

add_library(hwy::hwy SHARED IMPORTED GLOBAL)
set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION ${deps}/lib/libhwy.so.1)
mhla_dep(hwy hwy::hwy)

foreach(codec JPEG:libjpeg.so.62 PNG:libpng16.so.16 ZLIB:libz.so.1)
  string(REPLACE ":" ";" codec ${codec})
  list(GET codec 0 package)
  list(GET codec 1 library)
  add_library(${package}::${package} SHARED IMPORTED GLOBAL)
  set_target_properties(${package}::${package} PROPERTIES IMPORTED_LOCATION ${deps}/lib/${library})
  mhla_dep(${package} ${package}::${package})
endforeach()

# LAPACK and what it needs: each is named, so that all are found where they lie.
add_library(LAPACK::LAPACK SHARED IMPORTED GLOBAL)
set_target_properties(LAPACK::LAPACK PROPERTIES IMPORTED_LOCATION ${deps}/lib/liblapack.so.3)
target_link_libraries(LAPACK::LAPACK INTERFACE -Wl,--no-as-needed ${deps}/lib/libblas.so.3 ${deps}/lib/libgfortran.so.5
                      ${deps}/lib/libquadmath.so.0 -Wl,--as-needed)
mhla_dep(LAPACK LAPACK::LAPACK)

add_library(rapidcheck STATIC IMPORTED GLOBAL)
set_target_properties(rapidcheck PROPERTIES IMPORTED_LOCATION ${deps}/lib/librapidcheck.a)
mhla_dep(rapidcheck rapidcheck)

add_library(mhla_gtest STATIC EXCLUDE_FROM_ALL ${deps}/googletest/src/gtest-all.cc ${deps}/googletest/src/gtest_main.cc)
target_include_directories(mhla_gtest SYSTEM PUBLIC ${deps}/googletest/include PRIVATE ${deps}/googletest)
target_link_libraries(mhla_gtest PUBLIC Threads::Threads)
mhla_dep(GTest GTest::gtest)
target_link_libraries(GTest::gtest INTERFACE mhla_gtest)
add_library(GTest::gtest_main ALIAS GTest::gtest)
