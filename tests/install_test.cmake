# cmake -D SOURCE=... -D BUILD=... -D WORK=... -D SHARED=ON|OFF -P install_test.cmake
# Installs into an empty prefix, moves it, and builds the consumers and the examples against it: with find_package, with
# pkg-config and plain g++, as C, and where the build has LibTorch with the modules over it. SHARED first builds the libraries as
# shared ones, unoptimised, for one instruction set, without CUDA and LibTorch: this is about linking.
cmake_minimum_required(VERSION 3.25)

function(run)
  string(REPLACE ";" " " line "${ARGN}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${line}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/moved ${WORK}/consumer ${WORK}/examples ${WORK}/tokens)
file(MAKE_DIRECTORY ${WORK})
if(SHARED)
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -D BUILD_SHARED_LIBS=ON -D CMAKE_BUILD_TYPE=None
      "-DCMAKE_CXX_FLAGS=-O0 -DHWY_COMPILE_ONLY_STATIC" -D CMAKE_CXX_COMPILER=${CXX} -D MHLA_TESTS=OFF -D MHLA_APPS=OFF
      -D MHLA_CUDA=OFF -D MHLA_TORCH=OFF)
  run(${CMAKE_COMMAND} --build ${WORK}/build --target mhla_product)
  set(BUILD ${WORK}/build)
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(RENAME ${WORK}/prefix ${WORK}/moved)  # nothing in the tree may remember where it was installed
set(prefix ${WORK}/moved)

run(${CMAKE_COMMAND} -S ${SOURCE}/tests/consumer -B ${WORK}/consumer -G Ninja -D CMAKE_PREFIX_PATH=${prefix}
    -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_C_COMPILER=${CC})
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer)
message("find_package, C++: ${output}")
run(${WORK}/consumer/consumer_c)
message("find_package, C: ${output}")
if(EXISTS ${WORK}/consumer/consumer_torch)
  run(${WORK}/consumer/consumer_torch)
  message("find_package, LibTorch: ${output}")
elseif(TORCH AND NOT SHARED)
  message(FATAL_ERROR "the installed package has no component torch")
endif()

# A component that is not there is refused by name.
file(WRITE ${WORK}/unknown/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(unknown CXX)
find_package(mhla REQUIRED COMPONENTS foo)
")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK}/unknown -B ${WORK}/unknown/build -G Ninja -D CMAKE_PREFIX_PATH=${prefix}
                -D CMAKE_CXX_COMPILER=${CXX} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(status EQUAL 0 OR NOT output MATCHES "mhla has no component 'foo'")
  message(FATAL_ERROR "find_package(mhla COMPONENTS foo) ended with ${status}, expected a message about foo:\n${output}")
endif()

# The examples, as a project of a user's own.
run(${CMAKE_COMMAND} -S ${SOURCE}/examples -B ${WORK}/examples -G Ninja -D CMAKE_PREFIX_PATH=${prefix}
    -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_C_COMPILER=${CC} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror")
run(${CMAKE_COMMAND} --build ${WORK}/examples)
set(examples grid_attention learn_mix streaming_decode c_attention)
if(TORCH AND NOT SHARED)
  list(APPEND examples torch_model)
endif()
foreach(example ${examples})
  run(${WORK}/examples/example_${example})
  message("example ${example}: ${output}")
endforeach()

file(GLOB_RECURSE pc ${prefix}/*/mhla.pc)
get_filename_component(pc_dir ${pc} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
run(pkg-config --cflags --libs mhla)
separate_arguments(flags UNIX_COMMAND "${output}")
run(pkg-config --variable=libdir mhla)
list(APPEND flags -Wl,-rpath,${output})
run(${CXX} -std=c++20 -Wall -Wextra -Wpedantic -Werror ${SOURCE}/tests/consumer/consumer.cpp ${flags} -o ${WORK}/plain)
run(${WORK}/plain)
message("pkg-config, C++: ${output}")
run(${CC} -std=c99 -Wall -Wextra -Wpedantic -Werror ${SOURCE}/tests/consumer/consumer.c ${flags} -o ${WORK}/plain_c)
run(${WORK}/plain_c)
message("pkg-config, C: ${output}")

if(EXISTS ${prefix}/bin/mhla)
  run(${prefix}/bin/mhla --version)
  message("program: ${output}")
  run(${prefix}/bin/mhla data tokenize --data sample --out ${WORK}/tokens)
  message("sample: ${output}")
  run(${prefix}/bin/mhla verify --quick --dtype f32)  # with libmhla_base.so of the installed tree
endif()
