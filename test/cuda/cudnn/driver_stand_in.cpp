// A CUDA driver without a GPU. cuDNN loads its engines only if there is a driver, and loads the
// kernels that it has compiled into the driver. No kernel can be run.
#define MT_FAILING(F)                            \
  F(cuCtxGetCurrent)                             \
  F(cuCtxGetDevice)                              \
  F(cuCtxGetLimit)                               \
  F(cuCtxPopCurrent)                             \
  F(cuCtxPushCurrent)                            \
  F(cuDeviceGet)                                 \
  F(cuDeviceGetAttribute)                        \
  F(cuDeviceGetCount)                            \
  F(cuDevicePrimaryCtxRelease)                   \
  F(cuDevicePrimaryCtxReset)                     \
  F(cuDevicePrimaryCtxRetain)                    \
  F(cuDriverGetVersion)                          \
  F(cuGetErrorName)                              \
  F(cuGetErrorString)                            \
  F(cuGetProcAddress_v2)                         \
  F(cuInit)                                      \
  F(cuLaunchCooperativeKernel)                   \
  F(cuLaunchKernel)                              \
  F(cuLaunchKernelEx)                            \
  F(cuLibraryLoadFromFile)                       \
  F(cuLinkAddData)                               \
  F(cuLinkAddData_v2)                            \
  F(cuLinkAddFile_v2)                            \
  F(cuLinkComplete)                              \
  F(cuLinkCreate)                                \
  F(cuLinkCreate_v2)                             \
  F(cuLinkDestroy)                               \
  F(cuMemcpyDtoH_v2)                             \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  F(cuOccupancyMaxPotentialClusterSize)          \
  F(cuStreamGetCtx)                              \
  F(cuStreamSynchronize)                         \
  F(cuTensorMapEncodeIm2col)                     \
  F(cuTensorMapEncodeTiled)
#define MT_DOING_NOTHING(F) \
  F(cuFuncGetAttribute)     \
  F(cuFuncSetAttribute)     \
  F(cuKernelGetAttribute)   \
  F(cuKernelSetAttribute)   \
  F(cuLibraryUnload)        \
  F(cuModuleUnload)
// Handles of modules, libraries and kernels, which need only be different from null.
#define MT_GIVING(F)      \
  F(cuLibraryGetKernel)   \
  F(cuLibraryLoadData)    \
  F(cuKernelGetFunction)  \
  F(cuModuleGetFunction)  \
  F(cuModuleGetGlobal_v2) \
  F(cuModuleLoadData)     \
  F(cuModuleLoadDataEx)   \
  F(cuModuleLoadFatBinary)

extern "C" {
#define MT_FAIL(name) \
  int name() { return 34; } /* CUDA_ERROR_STUB_LIBRARY */
#define MT_NOTHING(name) \
  int name() { return 0; }
#define MT_GIVE(name)      \
  int name(void** made) {  \
    static char something; \
    *made = &something;    \
    return 0;              \
  }
MT_FAILING(MT_FAIL)
MT_DOING_NOTHING(MT_NOTHING)
MT_GIVING(MT_GIVE)
}
