#include "kernels/backend.hpp"

#include <interface_hash.h>  // generated: cmake/interface_hash.cmake

#include "lib/base/plugin.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

const LoadedBackend& load_backend(DeviceKind kind) {
  require(kind == DeviceKind::cuda, "the {} device has no plugin", to_string(kind));
  static const LoadedBackend cuda = [] {
    LoadedPlugin plugin = load_plugin(to_string(DeviceKind::cuda), LLMTRAIN_INTERFACE_HASH);
    return LoadedBackend{.backend = static_cast<const Backend*>(plugin.interface),
                         .file = std::move(plugin.file),
                         .problem = std::move(plugin.problem)};
  }();
  return cuda;
}

}  // namespace llmtrain::kernels
