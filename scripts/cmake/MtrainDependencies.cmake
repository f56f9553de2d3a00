# Third-party packages. If one is missing, the configuration stops with one line that names the Debian package to
# install.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# mtrain_need(<package> <Debian package>): find_package whose error names the Debian package.
function(mtrain_need package debian)
  find_package(${package} QUIET GLOBAL)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "mtrain needs ${package}: install it with  apt-get install ${debian}")
  endif()
endfunction()

mtrain_need(fmt libfmt-dev)
mtrain_need(spdlog libspdlog-dev)
mtrain_need(yaml-cpp libyaml-cpp-dev)
mtrain_need(CLI11 libcli11-dev)
mtrain_need(nlohmann_json nlohmann-json3-dev)
mtrain_need(Gloo libgloo-dev)
mtrain_need(Protobuf libprotobuf-dev)

# mtrain_need_program(<variable> <program> <Debian package>): sets the variable to the program's path.
function(mtrain_need_program variable program debian)
  find_program(${variable} ${program})
  if(NOT ${variable})
    message(FATAL_ERROR "mtrain needs ${program}: install it with  apt-get install ${debian}")
  endif()
endfunction()

mtrain_need_program(MTRAIN_PROTOC protoc protobuf-compiler)

# mtrain_need_file(<variable> <file> <folder> <Debian package>): sets the variable to the file's path.
function(mtrain_need_file variable file folder debian)
  find_file(${variable} ${file} PATHS ${folder})
  if(NOT ${variable})
    message(FATAL_ERROR "mtrain needs ${folder}/${file}: install it with  apt-get install ${debian}")
  endif()
endfunction()

mtrain_need_file(MTRAIN_CHART_JS chart.min.js /usr/share/javascript/chart.js libjs-chart.js)
# Tests: AUTO turns them on if Catch2 is installed (scripts/install-deps.sh --tests).
set(MTRAIN_HAS_TESTS ${MTRAIN_TESTS})
if(MTRAIN_TESTS STREQUAL "AUTO")
  find_package(Catch2 2 QUIET GLOBAL)
  set(MTRAIN_HAS_TESTS OFF)
  if(Catch2_FOUND)
    set(MTRAIN_HAS_TESTS ON)
  endif()
elseif(MTRAIN_TESTS)
  mtrain_need(Catch2 catch2)
endif()

# mtrain_need_pc(<target> <pkg-config module> <Debian package>)
function(mtrain_need_pc target module debian)
  pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "mtrain needs ${module}: install it with  apt-get install ${debian}")
  endif()
endfunction()

mtrain_need_pc(PCRE2 libpcre2-8 libpcre2-dev)
mtrain_need_pc(HTTPLIB cpp-httplib libcpp-httplib-dev)

# CUDA: AUTO turns it on if nvcc is installed.
set(MTRAIN_HAS_CUDA OFF)
if(NOT MTRAIN_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(MTRAIN_HAS_CUDA ON)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90a)
      set(MTRAIN_CUDA_TUNED ON)   # the architectures for which the kernels' registers were counted
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    # CMake 3.25 does not know nvcc 13's C++20 flag.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    # Blackwell (B200) is the newest of them; earlier versions of nvcc lack it.
    if(MTRAIN_CUDA_TUNED AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100a-real)
    endif()
    find_package(CUDAToolkit REQUIRED)
    find_library(MTRAIN_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  elseif(MTRAIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "MTRAIN_CUDA=ON, but nvcc was not found: install the CUDA Toolkit or configure with -DMTRAIN_CUDA=OFF")
  endif()
endif()

# NCCL is loaded at run time, not linked: the build needs only its header, and the programs also start without the
# library.
set(MTRAIN_HAS_NCCL OFF)
if(MTRAIN_HAS_CUDA)
  find_path(MTRAIN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(MTRAIN_NCCL_INCLUDE)
    set(MTRAIN_HAS_NCCL ON)
  endif()
endif()

# cuDNN's C++ frontend builds the graphs of attention. It is a set of headers, and includes those of cuDNN; the library
# itself is loaded at run time. scripts/install-deps.sh --cudnn-frontend fetches the frontend.
set(MTRAIN_HAS_CUDNN_FRONTEND OFF)
if(MTRAIN_HAS_CUDA)
  find_path(MTRAIN_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(MTRAIN_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
    HINTS $ENV{XDG_CACHE_HOME}/mtrain/cudnn-frontend/include $ENV{HOME}/.cache/mtrain/cudnn-frontend/include)
  if(NOT MTRAIN_CUDNN_INCLUDE OR NOT MTRAIN_CUDNN_FRONTEND_INCLUDE)
    message(WARNING "mtrain: found no cudnn.h or no cudnn_frontend.h: attention will not use cuDNN, but "
      "mtrain's own kernels, which are slower. Install cuDNN's headers and run  scripts/install-deps.sh --cudnn-frontend")
  else()
    file(STRINGS ${MTRAIN_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h version REGEX "define CUDNN_FRONTEND_(MAJOR|MINOR)_VERSION")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2" version "${version}")
    if(version VERSION_LESS 1.32)
      message(WARNING "mtrain: attention will not use cuDNN: ${MTRAIN_CUDNN_FRONTEND_INCLUDE} has version ${version} of "
        "cudnn-frontend, and 1.32 is needed: run  scripts/install-deps.sh --cudnn-frontend")
    else()
      set(MTRAIN_HAS_CUDNN_FRONTEND ON)
    endif()
  endif()
endif()

# CUTLASS is a set of headers too. Its kernels are for Hopper. scripts/install-deps.sh --cutlass fetches it.
set(MTRAIN_HAS_CUTLASS OFF)
if(MTRAIN_HAS_CUDA AND CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  find_path(MTRAIN_CUTLASS_INCLUDE cutlass/version.h
    HINTS $ENV{XDG_CACHE_HOME}/mtrain/cutlass/include $ENV{HOME}/.cache/mtrain/cutlass/include)
  if(NOT MTRAIN_CUTLASS_INCLUDE)
    message(WARNING "mtrain: found no cutlass/version.h: on Hopper, the GEMMs of experts will use mtrain's own kernels, "
      "which are slower. Run  scripts/install-deps.sh --cutlass")
  else()
    file(STRINGS ${MTRAIN_CUTLASS_INCLUDE}/cutlass/version.h version REGEX "define CUTLASS_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2" version "${version}")
    if(version VERSION_LESS 4.2)
      message(WARNING "mtrain: the GEMMs of experts will use mtrain's own kernels: ${MTRAIN_CUTLASS_INCLUDE} has version "
        "${version} of CUTLASS, and 4.2 is needed: run  scripts/install-deps.sh --cutlass")
    else()
      set(MTRAIN_HAS_CUTLASS ON)
    endif()
  endif()
endif()
# Apache Arrow reads Parquet. PyArrow's wheel has its headers and libraries: pip install pyarrow, for the Python that
# CMake finds (-DPython3_EXECUTABLE=...). The programs then need that folder.
set(MTRAIN_HAS_ARROW OFF)
if(NOT MTRAIN_ARROW STREQUAL "OFF")
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(folders)
  if(Python3_FOUND)
    execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import pyarrow; print(pyarrow.get_include() + ';' + pyarrow.get_library_dirs()[0])"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(folders)
    list(GET folders 0 arrow_include)
    list(GET folders 1 arrow_libraries)
    file(GLOB arrow_files ${arrow_libraries}/libarrow.so.* ${arrow_libraries}/libparquet.so.*)
    list(LENGTH arrow_files arrow_count)
    if(EXISTS ${arrow_include}/parquet/arrow/reader.h AND arrow_count EQUAL 2)
      set(MTRAIN_HAS_ARROW ON)
      add_library(mtrain_arrow INTERFACE)
      target_include_directories(mtrain_arrow SYSTEM INTERFACE ${arrow_include})
      target_link_libraries(mtrain_arrow INTERFACE ${arrow_files})
    endif()
  endif()
  if(NOT MTRAIN_HAS_ARROW AND MTRAIN_ARROW STREQUAL "ON")
    message(FATAL_ERROR "MTRAIN_ARROW=ON, but ${Python3_EXECUTABLE} has no pyarrow: install it with  pip install pyarrow")
  endif()
endif()
message(STATUS "mtrain: CUDA ${MTRAIN_HAS_CUDA}, CUTLASS ${MTRAIN_HAS_CUTLASS}, cuDNN's frontend ${MTRAIN_HAS_CUDNN_FRONTEND}, NCCL ${MTRAIN_HAS_NCCL}, Arrow ${MTRAIN_HAS_ARROW}, tests ${MTRAIN_HAS_TESTS}")
