#include "kernels/backend.hpp"

#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <interface_hash.h>  // generated: cmake/interface_hash.cmake

#include "lib/base/require.hpp"

namespace llmtrain::kernels {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> plugin_candidates(std::string_view kind) {
  std::string variable = fmt::format("LLMTRAIN_{}_PLUGIN", kind);
  for (char& c : variable) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (const char* named = std::getenv(variable.c_str()); named != nullptr && *named != '\0') {
    return {named};
  }
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string file = fmt::format("libllmtrain_{}.so", kind);
  return {folder / file, folder / ".." / "lib" / "llmtrain" / file};
}

LoadedBackend load(DeviceKind kind) {
  LoadedBackend loaded;
  for (const fs::path& file : plugin_candidates(to_string(kind))) {
    loaded.file = file;
    void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      loaded.problem = ::dlerror();
      std::error_code unseen;
      if (fs::exists(file, unseen)) return loaded;
      continue;
    }
    const auto function = reinterpret_cast<PluginFunction>(::dlsym(library, "llmtrain_plugin"));
    if (function == nullptr) {
      loaded.problem = fmt::format("{}: not a plugin of llmtrain", file.string());
      return loaded;
    }
    const PluginEntry* entry = function();
    if (std::string_view(entry->interface_hash) != LLMTRAIN_INTERFACE_HASH) {
      loaded.problem = fmt::format(
          "{}: built from other sources than this executable; build both together", file.string());
      return loaded;
    }
    loaded.problem.clear();
    loaded.backend = &entry->backend();
    return loaded;
  }
  return loaded;
}

}  // namespace

const LoadedBackend& load_backend(DeviceKind kind) {
  require(kind == DeviceKind::cuda, "the {} device has no plugin", to_string(kind));
  static const LoadedBackend cuda = load(DeviceKind::cuda);
  return cuda;
}

}  // namespace llmtrain::kernels
