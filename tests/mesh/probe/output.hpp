#pragma once
/// What a rank of mesh_probe writes; tests/mesh/probe_run.hpp reads it.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

namespace llmtrain::test {

class Output {
 public:
  explicit Output(const std::filesystem::path& file) : out_(file) { out_.precision(17); }

  /// That all ranks have.
  void number(std::string_view name, double value) { out_ << name << ' ' << value << '\n'; }
  /// This rank's own.
  void own_number(std::string_view name, double value) {
    out_ << "own " << name << ' ' << value << '\n';
  }

  /// Part of a logical tensor: "name | global shape | offset | shape | values".
  template <class Values>
  void box(std::string_view name, std::span<const std::int64_t> global,
           std::span<const std::int64_t> offset, std::span<const std::int64_t> shape,
           const Values& values) {
    out_ << name;
    for (const auto& numbers : {global, offset, shape}) list(numbers);
    list(values);
    out_ << '\n';
  }

 private:
  template <class Numbers>
  void list(const Numbers& numbers) {
    out_ << " |";
    for (const auto n : numbers) out_ << ' ' << n;
  }

  std::ofstream out_;
};

}  // namespace llmtrain::test
