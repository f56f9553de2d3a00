# Functions that make targets. A library names in DEPS the folders that it may include; scripts/check_layers.py checks
# every #include by these lists, and refuses circles.

add_library(mtrain_options INTERFACE)
target_compile_features(mtrain_options INTERFACE cxx_std_20)
target_include_directories(mtrain_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/lib)
target_compile_options(mtrain_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Werror;-Wno-missing-field-initializers>)
target_link_libraries(mtrain_options INTERFACE Threads::Threads)
# GCC 12 sees an overlapping memcpy in every `const char* + std::string` (its bug 105651), in precompiled headers copies
# beyond the end of strings, and in grouped sources vectors of uninitialized size.
option(MTRAIN_UNITY "compile the sources of a target in groups" ON)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overflow;-Wno-array-bounds;$<$<BOOL:${MTRAIN_UNITY}>:-Wno-maybe-uninitialized>>)
endif()
if(MTRAIN_SANITIZE)
  # With a sanitizer's checks in the code, GCC warns of impossible cases; builds without a sanitizer find the real
  # mistakes.
  target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MTRAIN_SANITIZE};-fno-omit-frame-pointer;-Wno-error>)
  target_link_options(mtrain_options INTERFACE -fsanitize=${MTRAIN_SANITIZE})
endif()

# Sources that take over a GB to compile are in this pool: Ninja compiles one of them at a time.
set_property(GLOBAL PROPERTY JOB_POOLS mtrain_heavy=1)

find_program(MTRAIN_CCACHE ccache)
if(MTRAIN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MTRAIN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MTRAIN_CCACHE})
endif()

# Headers that most sources include are parsed once: a third of the compiler's time for the programs, and more for
# tests. All sources must also compile without precompiled headers (-DMTRAIN_PCH=OFF): each includes what it uses.
option(MTRAIN_PCH "precompile the headers that most sources include" ON)
set(MTRAIN_PCH_STANDARD <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem> <functional>
  <limits> <map> <memory> <mutex> <numeric> <optional> <set> <string> <string_view> <tuple> <utility> <vector>
  <fmt/core.h>)
# The schema of settings takes a second to parse: 60 fields of a section are one tuple.
set(MTRAIN_PCH_SETTINGS ${MTRAIN_PCH_STANDARD} ${CMAKE_SOURCE_DIR}/lib/recipe/recipe.h)
if(MTRAIN_PCH)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache requires this flag
  endif()
  if(MTRAIN_CCACHE)
    # ccache caches a source with a precompiled header only if it does not compare these; none of them is used here.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${MTRAIN_CCACHE})
  endif()
endif()

# mtrain_precompile(<target> <name> <header>...): the target takes these headers from the target mtrain_pch_<name>, which
# precompiles them for all targets of that name. A source with other options that matter to GCC would not compile.
function(mtrain_precompile target name)
  if(NOT MTRAIN_PCH)
    return()
  endif()
  if(NOT TARGET mtrain_pch_${name})
    set(empty ${CMAKE_BINARY_DIR}/pch/${name}.cpp)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")
    add_library(mtrain_pch_${name} OBJECT ${empty})
    target_link_libraries(mtrain_pch_${name} PRIVATE mtrain_options fmt::fmt)
    target_precompile_headers(mtrain_pch_${name} PRIVATE ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM mtrain_pch_${name})
endfunction()

# Sources of a target are compiled in groups: headers, and what templates generate, are compiled once per group, which
# makes full builds much shorter. MTRAIN_UNITY=OFF compiles each source alone, which is quicker after a change of one
# source. Names in unnamed namespaces must be unique in a target.
set(CMAKE_UNITY_BUILD ${MTRAIN_UNITY})
if(MTRAIN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes a grouped source for a header, in which types of unnamed namespaces would be suspicious.
  target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# For libraries and sources in which a run spends no time, since they only read settings, write records or launch
# kernels. Release builds compile them with -O1, in two thirds of the time. No number depends on it.
set(MTRAIN_QUICK_TO_COMPILE $<$<CONFIG:Release>:-O1>)
# mtrain_optimize(<source>...): sources of a QUICK target in which a run does spend time.
function(mtrain_optimize)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
endfunction()

# mtrain_lib(comm [SETTINGS] [QUICK] SOURCES a.cpp b.cpp DEPS base device [EXTERNAL fmt::fmt] [PRIVATE_EXTERNAL yaml-cpp])
# EXTERNAL libraries appear in the public headers; PRIVATE_EXTERNAL only in the sources. SETTINGS: most sources include the
# schema of settings. QUICK: a run spends no time in most sources.
function(mtrain_lib name)
  cmake_parse_arguments(ARG "SETTINGS;QUICK" "" "SOURCES;DEPS;EXTERNAL;PRIVATE_EXTERNAL" ${ARGN})
  add_library(mtrain_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(mtrain_${name} PUBLIC mtrain_options ${ARG_DEPS} ${ARG_EXTERNAL} PRIVATE ${ARG_PRIVATE_EXTERNAL})
  if(ARG_SETTINGS)
    mtrain_precompile(mtrain_${name} settings ${MTRAIN_PCH_SETTINGS})
  else()
    mtrain_precompile(mtrain_${name} lib ${MTRAIN_PCH_STANDARD})
  endif()
  if(ARG_QUICK)
    target_compile_options(mtrain_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${MTRAIN_QUICK_TO_COMPILE}>)
  endif()
endfunction()

# mtrain_test(unit_device SOURCES ... DEPS device [LABELS ...] [BY_FILE]): one Catch2 program, and one ctest entry.
# BY_FILE makes an entry for each source named *_test.cpp: mtrain_test(parity ... BY_FILE) has parity_tensor.
function(mtrain_test name)
  cmake_parse_arguments(ARG "BY_FILE" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(test_${name} PRIVATE mtrain_options ${ARG_DEPS} Catch2::Catch2WithMain)
  target_compile_definitions(test_${name} PRIVATE MTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(ARG_LABELS MATCHES "emulator")
    add_dependencies(emulator_tests test_${name})
  else()
    add_dependencies(tests test_${name})
  endif()
  if(NOT name MATCHES "^cuda_emulator")  # their time goes to kernels that are compiled into the test
    target_compile_options(test_${name} PRIVATE ${MTRAIN_QUICK_TO_COMPILE})
  endif()
  if(name MATCHES "^(unit_(recipe|plan|interchange)|parity)$")
    mtrain_precompile(test_${name} test_settings ${MTRAIN_PCH_SETTINGS} <catch2/catch.hpp>)
  else()
    mtrain_precompile(test_${name} test ${MTRAIN_PCH_STANDARD} <catch2/catch.hpp>)
  endif()
  if(ARG_BY_FILE)
    set(entries)
    foreach(source ${ARG_SOURCES})
      get_filename_component(file ${source} NAME_WE)
      if(file MATCHES "_test$")
        string(REGEX REPLACE "_test$" "" entry ${name}_${file})
        add_test(NAME ${entry} COMMAND test_${name} --filenames-as-tags "[#${file}]")
        list(APPEND entries ${entry})
      endif()
    endforeach()
  else()
    add_test(NAME ${name} COMMAND test_${name})
    set(entries ${name})
  endif()
  # The longest test takes seven minutes of an idle machine with two cores. Under ThreadSanitizer a program takes up to
  # ten times as long.
  set(seconds 1800)
  if(MTRAIN_SANITIZE)
    set(seconds 9000)
  endif()
  # Threads of a training that wait for each other leave cores idle: ctest --parallel runs several tests at once. Those
  # that measure times run alone.
  set(alone OFF)
  if(name MATCHES "^(unit_(comm|device|observe|launch|storage|interchange)|overlap_steps)$")
    set(alone ON)
  endif()
  set_tests_properties(${entries} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${seconds} RUN_SERIAL ${alone}
    ENVIRONMENT "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache;TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1;UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endfunction()
