#pragma once
/// cuDNN's backend API (cudnn_graph.h), loaded when a device is opened: the plugin works where the
/// library is not installed.
///
/// What is known of the library and used here: descriptors are made, filled attribute by attribute
/// and finalized in order of dependence; an operation graph that no engine computes is refused with
/// a status, not computed slowly; a plan needs the workspace that it names, no other memory.
/// (https://docs.nvidia.com/deeplearning/cudnn/backend/latest/)

#include <cudnn_graph.h>
#include <string>

namespace llmtrain::kernels::cuda {

/// The functions that are used.
struct CudnnApi {
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  /// The status and what the library says about it.
  std::string explain(cudnnStatus_t status) const;
};

/// The library, or why it is not used.
struct LoadedCudnn {
  CudnnApi api;
  std::string version;  // "9.19.0"; empty where there is none
  std::string problem;  // empty where it is used
};

/// Loads the file that the environment variable LLMTRAIN_CUDNN names, or libcudnn.so.9 where the
/// loader finds it. Loads once; never throws.
const LoadedCudnn& load_cudnn();

}  // namespace llmtrain::kernels::cuda
