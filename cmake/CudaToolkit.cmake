# Finds nvcc (CUDA_HOME, PATH, then pip's nvidia packages), the static CUDA runtime that belongs to it, and the headers
# of the libraries that are opened at run time. Sets CMAKE_CUDA_COMPILER, CUVIL_CUDA_INCLUDES and CUVIL_CUDART.

execute_process(
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/pip_nvidia.py
  OUTPUT_VARIABLE PIP_NVIDIA OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS $ENV{CUDA_HOME}/bin PATHS ${PIP_NVIDIA} PATH_SUFFIXES cu13/bin)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "nvcc was not found: install a CUDA 13.0 toolkit or pip's nvidia-cuda-nvcc~=13.0.0, or set CUVIL_BUILD_EP=0")
endif()

# The wrapper scripts that some systems put on PATH hide the toolkit's place; nvcc itself knows it.
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --dryrun -c x.cu ERROR_VARIABLE CUVIL_DRYRUN OUTPUT_QUIET)
string(REGEX MATCH "#\\$ TOP=([^\n]+)" _ "${CUVIL_DRYRUN}")
string(STRIP "${CMAKE_MATCH_1}" CUVIL_CUDA_ROOT)

find_library(CUVIL_CUDART cudart_static PATHS ${CUVIL_CUDA_ROOT} ${PIP_NVIDIA}
             PATH_SUFFIXES lib64 lib cu13/lib NO_DEFAULT_PATH REQUIRED)
get_filename_component(CUVIL_CUDART_DIR ${CUVIL_CUDART} DIRECTORY)
# nvcc links its own test program while CMake probes it, and pip's layout has lib where nvcc looks in lib64.
set(CMAKE_CUDA_FLAGS_INIT "-L${CUVIL_CUDART_DIR}")

# The compiler's own headers go first: pip's runtime package may lie beside them without the crt headers it needs.
set(CUVIL_CUDA_INCLUDES "")
foreach(header cuda_runtime_api.h cublasLt.h cudnn.h)
  string(MAKE_C_IDENTIFIER "CUVIL_DIR_${header}" variable)
  find_path(${variable} ${header} HINTS $ENV{CUVIL_CUDA_HEADERS} ${CUVIL_CUDA_ROOT} ${PIP_NVIDIA}
            PATH_SUFFIXES include cu13/include cudnn/include NO_DEFAULT_PATH REQUIRED)
  list(APPEND CUVIL_CUDA_INCLUDES ${${variable}})
endforeach()
list(REMOVE_DUPLICATES CUVIL_CUDA_INCLUDES)
