#include "lib/base/plugin.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "lib/base/mapped_file.hpp"
#include "lib/base/program_files.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> candidates(std::string_view name) {
  std::string variable = fmt::format("LLMTRAIN_{}_PLUGIN", name);
  for (char& c : variable) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  if (const char* named = std::getenv(variable.c_str()); named != nullptr && *named != '\0') {
    return {named};
  }
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string file = fmt::format("libllmtrain_{}.so", name);
  return {folder / file, folder / ".." / "lib" / "llmtrain" / file};
}

struct FileToHash {
  std::string name;
  fs::path path;
  std::optional<Hash128> hash;
};
std::mutex g_mutex;  // guards g_files
std::vector<FileToHash> g_files{{"executable", "/proc/self/exe", {}}};

}  // namespace

fs::path plugin_file(std::string_view name) {
  std::error_code unseen;
  for (const fs::path& file : candidates(name)) {
    if (fs::exists(file, unseen)) return file;
  }
  return {};
}

LoadedPlugin load_plugin(std::string_view name, std::string_view interface_hash) {
  LoadedPlugin loaded;
  for (const fs::path& file : candidates(name)) {
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
    if (entry->interface_hash != interface_hash) {
      loaded.problem = fmt::format(
          "{}: built from other sources than this executable; build both together", file.string());
      return loaded;
    }
    loaded.problem.clear();
    loaded.interface = entry->interface();
    const std::lock_guard lock(g_mutex);
    g_files.push_back({fmt::format("{} plugin", name), file, {}});
    return loaded;
  }
  return loaded;
}

std::vector<ProgramFile> program_files() {
  const std::lock_guard lock(g_mutex);
  std::vector<ProgramFile> files;
  for (FileToHash& file : g_files) {
    if (!file.hash) file.hash = hash128(MappedFile::open(file.path).bytes());
    files.push_back({file.name, *file.hash});
  }
  return files;
}

}  // namespace llmtrain
