#include "kernels/cuda/cudnn_api.hpp"

#include "kernels/cuda/optional_library.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// "libcudnn.so.9", but for tests.
constexpr const char* kLibrary = LLMTRAIN_CUDNN_LIBRARY;
/// Before it, backward passes over lengths that are no multiple of 128 need a padding mask, and
/// some versions have known errors (the support checks of NVIDIA/cudnn-frontend list them).
constexpr std::size_t kOldest = 91800;

bool find_all(const OptionalLibrary& library, CudnnApi& api) {
  return library.find("cudnnGetVersion", api.version) &&
         library.find("cudnnGetErrorString", api.error_string) &&
         library.find("cudnnGetLastErrorString", api.last_error_string) &&
         library.find("cudnnCreate", api.create) && library.find("cudnnDestroy", api.destroy) &&
         library.find("cudnnSetStream", api.set_stream) &&
         library.find("cudnnBackendCreateDescriptor", api.create_descriptor) &&
         library.find("cudnnBackendDestroyDescriptor", api.destroy_descriptor) &&
         library.find("cudnnBackendSetAttribute", api.set_attribute) &&
         library.find("cudnnBackendGetAttribute", api.get_attribute) &&
         library.find("cudnnBackendFinalize", api.finalize) &&
         library.find("cudnnBackendExecute", api.execute);
}

LoadedCudnn load() {
  LoadedCudnn result;
  const OptionalLibrary library("LLMTRAIN_CUDNN", kLibrary);
  if (!library.problem().empty()) {
    result.problem = library.problem();
    return result;
  }
  if (!find_all(library, result.api)) {
    result.problem = fmt::format("{} lacks functions of cuDNN 9", library.file());
    return result;
  }
  const std::size_t version = result.api.version();
  result.version = version_text(version);
  if (version < kOldest || version >= 100000) {
    result.problem = fmt::format("cuDNN {} is used from {} on, and below 10", result.version,
                                 version_text(kOldest));
  }
  return result;
}

}  // namespace

std::string CudnnApi::explain(cudnnStatus_t status) const {
  std::string text(1024, '\0');
  last_error_string(text.data(), text.size());
  text.resize(text.find('\0'));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? error_string(status) : fmt::format("{}: {}", error_string(status), text);
}

const LoadedCudnn& load_cudnn() {
  static const LoadedCudnn loaded = load();
  return loaded;
}

}  // namespace llmtrain::kernels::cuda
