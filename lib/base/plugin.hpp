#pragma once
/// Parts of the program in libraries of their own, which are loaded when a run asks for them: the
/// executable starts at once, and runs where what they link does not exist.

#include <filesystem>
#include <string>
#include <string_view>

namespace llmtrain {

/// What a plugin's entry point `llmtrain_plugin` returns; only C types, because they are read
/// before it is known that both sides were built together.
struct PluginEntry {
  const char* interface_hash;
  /// The object that the plugin is there for; its type is settled by the plugin's name.
  void* (*interface)();
};
using PluginFunction = const PluginEntry* (*)();

/// A plugin, or why there is none.
struct LoadedPlugin {
  void* interface = nullptr;
  std::filesystem::path file;
  std::string problem;
};

/// The file that load_plugin would load; empty when there is none.
std::filesystem::path plugin_file(std::string_view name);

/// Loads the plugin `name` ("cuda"): the file that the environment variable LLMTRAIN_CUDA_PLUGIN
/// names, or libllmtrain_cuda.so beside the executable or in ../lib/llmtrain of its folder. Never
/// throws for one that is missing or has another `interface_hash`. For good: plugins are not
/// unloaded.
LoadedPlugin load_plugin(std::string_view name, std::string_view interface_hash);

}  // namespace llmtrain
