#pragma once
/// How a Hugging Face weight file names and lays out our parameters. Families make these lists,
/// lib/checkpoint reads and writes by them.

#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

/// One tensor of the file.
struct HfTensor {
  std::string name;
  /// Our parameters [out, in] or [out], stacked along `out`; of parameters [experts, out, in] the
  /// matrices of `expert`.
  std::vector<std::string> members;
  /// The file holds [in, out].
  bool transposed = false;
  std::int64_t expert = 0;
  /// In FP32 even in files of narrower types, as transformers keeps it.
  bool keeps_fp32 = false;
};

/// A second name of a tensor: never written; in a file it must be absent or equal.
struct HfCopy {
  std::string name;
  std::string of;
};

struct HfLayout {
  /// Together they have each parameter, or each of its experts, once.
  std::vector<HfTensor> tensors;
  std::vector<HfCopy> copies;
  /// Constants of the model's code that old files hold; passed over.
  std::vector<std::string> constants;
  /// Beginning of names that some files leave off.
  std::string prefix;
};

}  // namespace llmtrain
