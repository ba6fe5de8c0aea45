#pragma once
/// Libraries of NVIDIA's that the plugin loads when it first needs them, and does without where
/// they are not installed. Never closed: they have threads and handlers of their own.

#include <cstdlib>
#include <dlfcn.h>
#include <string>

#include <fmt/format.h>

namespace llmtrain::kernels::cuda {

class OptionalLibrary {
 public:
  /// The file that the environment variable names, or `usual` where the loader finds it.
  OptionalLibrary(const char* variable, const char* usual) {
    const char* const named = std::getenv(variable);
    file_ = named != nullptr && *named != '\0' ? named : usual;
    handle_ = ::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return;
    const char* const reason = ::dlerror();
    problem_ = fmt::format("{} is not there ({})", file_, reason != nullptr ? reason : "?");
  }

  const std::string& file() const { return file_; }
  /// Why it was not loaded; empty where it was.
  const std::string& problem() const { return problem_; }

  /// Whether the library has the function, which then is set.
  template <class F>
  bool find(const char* name, F& function) const {
    function = reinterpret_cast<F>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  std::string file_, problem_;
  void* handle_ = nullptr;
};

/// Major, minor and patch as decimal digits, as NCCL and cuDNN 9 count: 22809 is 2.28.9.
inline std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace llmtrain::kernels::cuda
