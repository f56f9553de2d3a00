# Targets. A library names the house's folders it may include (DEPS); scripts/check_layers.py holds every #include
# against these lists and refuses a circle.

add_library(mtrain_options INTERFACE)
target_compile_features(mtrain_options INTERFACE cxx_std_20)
target_include_directories(mtrain_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/lib)
target_compile_options(mtrain_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>)
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

# mtrain_lib(comm SOURCES a.cpp b.cpp DEPS base device [EXTERNAL fmt::fmt] [PRIVATE_EXTERNAL dnnl])
# EXTERNAL libraries appear in the public headers; PRIVATE_EXTERNAL only in the sources.
function(mtrain_lib name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;EXTERNAL;PRIVATE_EXTERNAL" ${ARGN})
  add_library(mtrain_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(mtrain_${name} PUBLIC mtrain_options ${ARG_DEPS} ${ARG_EXTERNAL} PRIVATE ${ARG_PRIVATE_EXTERNAL})
endfunction()

# mtrain_test(unit_device SOURCES ... DEPS device): one Catch2 program, one ctest entry.
function(mtrain_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND mtrain_)
  target_link_libraries(test_${name} PRIVATE mtrain_options ${ARG_DEPS} Catch2::Catch2WithMain)
  target_compile_definitions(test_${name} PRIVATE MTRAIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND test_${name})
  # Under ThreadSanitizer a program takes up to ten times as long.
  set(seconds 900)
  if(MTRAIN_SANITIZE)
    set(seconds 9000)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds}
    ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1;UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endfunction()
