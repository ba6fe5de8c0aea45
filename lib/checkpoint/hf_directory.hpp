#pragma once
/// Weights from and to a Hugging Face model directory: config.json and safetensors files.

#include <filesystem>
#include <map>
#include <string>

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
/// missing, unexpected or of another shape. Each rank reads its own boxes.
void import_hf(const std::filesystem::path& directory, ParameterStore& store,
               const HfLayout& layout);

/// Writes `model.safetensors` with the masters rounded to `dtype` (fp64, fp32, bf16 or fp16) and
/// `texts`, by file name, into a new or empty `directory`, which appears complete or not at all: a
/// temporary sibling is filled, made durable and renamed. This rank holds all parameters whole.
/// StorageError if the directory has content, or if writing fails.
void export_hf(const std::filesystem::path& directory, const ParameterStore& store,
               const HfLayout& layout, DType dtype,
               const std::map<std::string, std::string>& texts);

}  // namespace llmtrain::checkpoint
