# Functions that make targets. A library names in DEPS the folders that it may include; scripts/check_layers.py checks
# every #include by these lists, and refuses circles.

add_library(mtrain_options INTERFACE)
target_compile_features(mtrain_options INTERFACE cxx_std_20)
target_include_directories(mtrain_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/lib)
target_compile_options(mtrain_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Werror;-Wno-missing-field-initializers>)
target_link_libraries(mtrain_options INTERFACE Threads::Threads)
# GCC 12 sees an overlapping memcpy in every `const char* + std::string` (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(MTRAIN_SANITIZE)
  target_compile_options(mtrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MTRAIN_SANITIZE};-fno-omit-frame-pointer>)
  target_link_options(mtrain_options INTERFACE -fsanitize=${MTRAIN_SANITIZE})
endif()

find_program(MTRAIN_CCACHE ccache)
if(MTRAIN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MTRAIN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MTRAIN_CCACHE})
endif()

# mtrain_lib(comm SOURCES a.cpp b.cpp DEPS base device [EXTERNAL fmt::fmt] [PRIVATE_EXTERNAL yaml-cpp])
# EXTERNAL libraries appear in the public headers; PRIVATE_EXTERNAL only in the sources.
function(mtrain_lib name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;EXTERNAL;PRIVATE_EXTERNAL" ${ARGN})
  add_library(mtrain_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(mtrain_${name} PUBLIC mtrain_options ${ARG_DEPS} ${ARG_EXTERNAL} PRIVATE ${ARG_PRIVATE_EXTERNAL})
endfunction()

# mtrain_test(unit_device SOURCES ... DEPS device [LABELS ...] [BY_FILE]): one Catch2 program, and one ctest entry or,
# BY_FILE, one for each of the sources that is named *_test.cpp: mtrain_test(parity ... BY_FILE) has parity_tensor.
function(mtrain_test name)
  cmake_parse_arguments(ARG "BY_FILE" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(test_${name} PRIVATE mtrain_options ${ARG_DEPS} Catch2::Catch2WithMain)
  target_compile_definitions(test_${name} PRIVATE MTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
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
  # Under ThreadSanitizer a program takes up to ten times as long.
  set(seconds 900)
  if(MTRAIN_SANITIZE)
    set(seconds 9000)
  endif()
  set_tests_properties(${entries} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${seconds}
    ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1;UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endfunction()
