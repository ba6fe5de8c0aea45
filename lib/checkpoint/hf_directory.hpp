#pragma once
/// Weights from and to a Hugging Face model directory: config.json and safetensors files.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "lib/checkpoint/loader.hpp"
#include "lib/checkpoint/model_export.hpp"
#include "lib/param/hf_layout.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::checkpoint {

/// Text of the directory's config.json, at most 1 MiB. DataError if it cannot be read.
std::string read_hf_config(const std::filesystem::path& directory);

/// Reads the headers of the weights' files, and the index that lists them if there is one:
/// CheckpointError if one is missing, damaged, or not as the index says.
void check_hf_files(const std::filesystem::path& directory);

/// Sets masters and compute copies of all parameters from `directory`, or from one .safetensors
/// file, whose tensors may be F64, F32, F16 or BF16. Nothing is written unless the files have
/// exactly the tensors of `layout` in the right shapes; else CheckpointError naming those that are
/// missing, unexpected or of another shape. Each rank reads its own boxes. Stopped when somebody
/// asks to.
void import_hf(const std::filesystem::path& directory, ParameterStore& store,
               const HfLayout& layout);

/// Masters of whole parameters, wherever they lie.
struct ParameterValues {
  /// Of what is read: FP32 or FP64.
  std::function<DType(const Parameter& parameter)> dtype;
  /// Elements [first, ...) in row-major order, as many as `to` has room for.
  std::function<void(const Parameter& parameter, std::int64_t first, std::span<std::byte> to)> read;
};

/// Those of a checkpoint, which outlives what is returned. What was saved without a master is bf16,
/// which FP32 holds exactly. CheckpointError where it has no such parameter, or of another shape.
ParameterValues values_of(Loader& saved);

/// What a directory has of a model. All of it outlives whoever has this.
struct HfContent {
  /// Declared on a mesh of one rank. Nothing of it need be in memory.
  const ParameterStore* parameters = nullptr;
  const HfLayout* layout = nullptr;
  DType dtype = DType::f32;  // fp64, fp32, bf16 or fp16
  /// By file name.
  std::map<std::string, std::string> texts;
};

/// Bytes of its files, but for the header of model.safetensors.
std::uint64_t hf_bytes(const HfContent& content);

/// Writes `model.safetensors`, with the masters rounded to the content's type, and the texts into
/// an empty `directory`; durable on return. Of the model some MiB are in memory at a time, and one
/// whole tensor where the file has it transposed. StorageError if writing fails, DataError for a
/// number that is beyond fp16.
void write_hf(const std::filesystem::path& directory, const HfContent& content,
              const ParameterValues& values, const WriteLimits& limits = {});

/// The same into a new or empty `directory`, which appears complete or not at all: a temporary
/// sibling is filled and renamed. StorageError, too, if the directory has content.
void export_hf(const std::filesystem::path& directory, const HfContent& content,
               const ParameterValues& values);

}  // namespace llmtrain::checkpoint
