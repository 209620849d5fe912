# mhla_room(NAME USES room... [PRIVATE_LINKS lib...] [TORCH header | room] [TEST_LINKS lib...] [TESTS_APART test...]):
# the library of one room, from every source of its folder but *_test.cpp, *_bench.cpp and *_fuzz.cpp, and but what lies
# below another CMakeLists.txt: that is a room of its own. Every *_test.cpp becomes one test of its own name (mhla_tests),
# with MHLA_FUZZ every *_fuzz.cpp a libFuzzer program. With MHLA_CUDA the *.cu belong to the library, without it the
# *_off.cpp that stand in for them. TORCH: the room is built over LibTorch, whose part that `header` includes is compiled
# once, for the library, its tests, and the rooms that name this one.
include(GNUInstallDirs)
include(CTest)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
find_package(Threads REQUIRED)

find_program(MHLA_CCACHE ccache)
if(MHLA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MHLA_CCACHE})
endif()
include(python)
include(cuda)
include(deps)
include(torch)
include(nccl)

add_library(mhla_flags INTERFACE)
# No contraction: a*b+c must round the same in main and remainder loops; kernels spell fma where they want it.
set(cxx_flags -Wall -Wextra -Wpedantic -Wshadow -ffp-contract=off $<$<BOOL:${MHLA_WERROR}>:-Werror>)
set(cuda_flags ${MHLA_CUDA_FLAGS} $<$<BOOL:${MHLA_WERROR}>:-Werror=all-warnings>)
if(MHLA_SANITIZE)
  # -O1: an instrumented file of vector code takes minutes with more. Test files of `make asan-quick` have -O0.
  list(APPEND cxx_flags $<IF:$<BOOL:$<TARGET_PROPERTY:MHLA_UNOPTIMISED>>,-O0,-O1> -fsanitize=${MHLA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
       # g++ 12 sees uninitialised members behind its own instrumentation
       $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(mhla_flags INTERFACE -fsanitize=${MHLA_SANITIZE})
endif()
if(MHLA_FUZZ)  # coverage in the libraries, libFuzzer's main in the fuzzers alone
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MHLA_FUZZ needs clang, got ${CMAKE_CXX_COMPILER_ID}: use `cmake --preset fuzz`")
  endif()
  list(APPEND cxx_flags -fsanitize=fuzzer-no-link)
endif()
# Highway compiles the vector kernels once per instruction set. SSSE3 without SSE4 ended in 2007; instrumented code takes
# minutes per set and does the same on each, so sanitizers see the widest ones and the portable one.
# MHLA_NATIVE compiles the one that the program would choose here, in a quarter of the time; AVX3_DL is none of those.
option(MHLA_NATIVE "Compile vector code for the instruction set of this machine only" OFF)
set(no_targets HWY_SSSE3)
if(MHLA_NATIVE)
  set(no_targets "HWY_SSSE3|HWY_AVX3_DL")
elseif(MHLA_SANITIZE)
  set(no_targets "HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL")
endif()
target_compile_definitions(mhla_flags INTERFACE "HWY_DISABLED_TARGETS=(${no_targets})")
target_compile_options(mhla_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${cxx_flags}>"
                       "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")

# For `make asan-quick`: headers of the standard library are compiled once, which saves a second in each file, and
# vector code has ASan alone, because UBSan doubles the time to compile it.
option(MHLA_QUICK "Compile for a short run under sanitizers: the rooms below LibTorch" OFF)
set(std_headers <algorithm> <array> <cmath> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <optional>
    <sstream> <string> <string_view> <unordered_map> <vector>)

# A file over LibTorch costs 4 seconds before its first line, though the header is compiled once: templates that it left
# open. In other rooms the headers of the standard library take most of the time, in the program those of CLI11. So eight
# neighbours are compiled as one, tests likewise, and names in their anonymous namespaces must differ: a neighbour's
# function also hides one of the library with its name. OFF compiles every file alone: quicker after a change.
option(MHLA_UNITY "Compile the files of a room eight at a time" ON)
function(mhla_unity TARGET)
  if(MHLA_UNITY)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON)
    target_compile_options(${TARGET} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # looks at the joint file
  endif()
endfunction()

# A quarter to a third less time to compile, for code without loops that count. g++ then sees less of what is initialised.
set(quick_options "$<$<CONFIG:Release>:-O1>" "$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>")
set(test_options ${quick_options})   # tests themselves, not what they test
set(torch_options ${quick_options})  # calls of LibTorch; the loop of AdamW is an exception (train/)

set(MHLA_PUBLIC_ROOMS core io kernels)  # cmake/install.cmake
set(MHLA_TORCH_ROOMS ops modules models)  # the same, where LibTorch is
add_custom_target(mhla_product)  # what is installed, without the tests
add_custom_target(mhla_fuzzers)

# mhla_targets(LIST): names of rooms into what is linked. Operators register themselves when a program starts: none of
# ops/ may be left out for want of a caller.
function(mhla_targets LIST)
  list(TRANSFORM ${LIST} PREPEND mhla::)
  list(TRANSFORM ${LIST} REPLACE "^mhla::ops$" "$<LINK_LIBRARY:WHOLE_ARCHIVE,mhla::ops>")
  set(${LIST} ${${LIST}} PARENT_SCOPE)
endfunction()

function(mhla_room NAME)
  cmake_parse_arguments(ROOM "" "TORCH" "USES;PRIVATE_LINKS;TEST_LINKS;TESTS_APART" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB_RECURSE inner_rooms CONFIGURE_DEPENDS */CMakeLists.txt)
  foreach(inner ${inner_rooms})
    get_filename_component(inner ${inner} DIRECTORY)
    list(FILTER sources EXCLUDE REGEX "^${inner}/")
  endforeach()
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  if(MHLA_CUDA)
    list(FILTER sources EXCLUDE REGEX "_off\\.cpp$")
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS *.cu)
    mhla_sm90_objects(mhla_${NAME} ${cuda_sources})
  endif()
  set(kind)  # as BUILD_SHARED_LIBS says for what is installed; the other rooms go into the programs
  if(NOT NAME IN_LIST MHLA_PUBLIC_ROOMS)
    set(kind STATIC)
  endif()
  add_library(mhla_${NAME} ${kind} ${sources})
  add_library(mhla::${NAME} ALIAS mhla_${NAME})
  set_target_properties(mhla_${NAME} PROPERTIES EXPORT_NAME ${NAME} VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(mhla_${NAME} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  mhla_targets(ROOM_USES)
  target_link_libraries(mhla_${NAME} PUBLIC ${ROOM_USES} Threads::Threads
                        PRIVATE $<BUILD_INTERFACE:mhla_flags> ${ROOM_PRIVATE_LINKS})
  target_compile_features(mhla_${NAME} PUBLIC cxx_std_20)
  if(MHLA_QUICK AND NAME STREQUAL "core")
    target_precompile_headers(mhla_core PRIVATE ${std_headers})
  elseif(MHLA_QUICK AND NOT ROOM_TORCH)
    target_precompile_headers(mhla_${NAME} REUSE_FROM mhla_core)
  endif()
  if(ROOM_TORCH)
    target_link_libraries(mhla_${NAME} PUBLIC $<BUILD_INTERFACE:mhla_libtorch> $<INSTALL_INTERFACE:mhla::libtorch>)
    if(TARGET mhla_${ROOM_TORCH})
      set(header_of mhla_${ROOM_TORCH})
      target_precompile_headers(mhla_${NAME} REUSE_FROM ${header_of})
    else()
      set(header_of mhla_${NAME})
      target_precompile_headers(mhla_${NAME} PRIVATE ${ROOM_TORCH})
    endif()
    target_compile_options(mhla_${NAME} PRIVATE ${torch_options})
  endif()
  mhla_unity(mhla_${NAME})
  if(cuda_sources)
    target_compile_definitions(mhla_${NAME} PRIVATE MHLA_HAS_CUDA=1)
    mhla_add_cuda(mhla_${NAME} ${cuda_sources})
  endif()
  if(MHLA_TESTS)
    mhla_tests(${NAME}_tests SOURCES ${tests} USES ${NAME} LINKS ${ROOM_TEST_LINKS} APART ${ROOM_TESTS_APART} HEADER_OF ${header_of})
  endif()
  if(MHLA_FUZZ)
    foreach(fuzzer ${fuzzers})
      get_filename_component(fuzzer_name ${fuzzer} NAME_WE)
      add_executable(${fuzzer_name} ${fuzzer})
      target_link_libraries(${fuzzer_name} PRIVATE mhla::${NAME} mhla_flags)
      target_link_options(${fuzzer_name} PRIVATE -fsanitize=fuzzer)
      set_target_properties(${fuzzer_name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
      add_dependencies(mhla_fuzzers ${fuzzer_name})
    endforeach()
  endif()
endfunction()

# mhla_test(NAME SOURCES file... USES room... [LINKS lib...] [HEADER_OF target]): a GoogleTest program, one ctest entry.
# Tests may always use testing/. HEADER_OF: the sources use the precompiled header of that library.
function(mhla_test NAME)
  mhla_test_program(${NAME} ${ARGN})
  target_link_libraries(${NAME} PRIVATE GTest::gtest_main)
  add_test(NAME ${NAME} COMMAND ${NAME})
endfunction()

function(mhla_test_program NAME)
  cmake_parse_arguments(TEST "JOINT" "HEADER_OF" "SOURCES;USES;LINKS" ${ARGN})
  find_package(GTest REQUIRED)
  mhla_targets(TEST_USES)
  set(links ${TEST_USES} mhla::testing mhla_flags GTest::gtest rapidcheck ${TEST_LINKS})
  set(compiled ${NAME})
  if(TEST_HEADER_OF)
    set(compiled ${NAME}_object)  # as position independent as the library: one header for both
    add_library(${compiled} OBJECT ${TEST_SOURCES})
    target_link_libraries(${compiled} PRIVATE ${links})
    target_precompile_headers(${compiled} REUSE_FROM ${TEST_HEADER_OF})
    set(TEST_SOURCES $<TARGET_OBJECTS:${compiled}>)
  endif()
  add_executable(${NAME} ${TEST_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${links})
  target_compile_definitions(${compiled} PRIVATE MHLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_compile_options(${compiled} PRIVATE ${test_options})
  if(TEST_JOINT)
    mhla_unity(${compiled})
    if(NOT TARGET mhla_joint_main)
      add_library(mhla_joint_main OBJECT ${PROJECT_SOURCE_DIR}/tests/joint_main.cpp)
      target_link_libraries(mhla_joint_main PRIVATE mhla_flags GTest::gtest)
    endif()
    target_link_libraries(${NAME} PRIVATE mhla_joint_main)
  endif()
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endfunction()

# mhla_tests(NAME SOURCES file... [APART test...] and as mhla_test): every file is a test of its own name, with a ctest
# entry, a target and tests/<test> in the build. With MHLA_UNITY they are links to one program, which runs the tests of
# the file whose name it is called by (tests/joint_main.cpp). APART: tests that need a program to themselves, or ALL.
function(mhla_tests NAME)
  cmake_parse_arguments(TESTS "" "HEADER_OF" "SOURCES;APART;USES;LINKS" ${ARGN})
  set(options USES ${TESTS_USES} LINKS ${TESTS_LINKS} HEADER_OF ${TESTS_HEADER_OF})
  set(joint)
  foreach(test ${TESTS_SOURCES})
    get_filename_component(test_name ${test} NAME_WE)
    if(MHLA_UNITY AND NOT TESTS_APART STREQUAL "ALL" AND NOT test_name IN_LIST TESTS_APART)
      list(APPEND joint ${test})
    else()
      mhla_test(${test_name} SOURCES ${test} ${options})
    endif()
  endforeach()
  if(joint)
    mhla_test_program(${NAME} JOINT SOURCES ${joint} ${options})
    foreach(test ${joint})
      get_filename_component(test_name ${test} NAME_WE)
      add_custom_command(TARGET ${NAME} POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink ${NAME} ${test_name}
                         WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      add_custom_target(${test_name} DEPENDS ${NAME})
      add_test(NAME ${test_name} COMMAND ${CMAKE_BINARY_DIR}/tests/${test_name})
    endforeach()
  endif()
endfunction()
