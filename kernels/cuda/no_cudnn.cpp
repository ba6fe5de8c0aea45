// Builds without cuDNN: every attention is our own.
#include "kernels/cuda/library_attention.hpp"

namespace llmtrain::kernels::cuda {

std::unique_ptr<LibraryAttention> open_library_attention(std::string& why) {
  why = attention_library_version().problem;
  return nullptr;
}

LibraryVersion attention_library_version() {
  return {.version = {}, .problem = "this build has no cuDNN"};
}

}  // namespace llmtrain::kernels::cuda
