#pragma once
/// Reading of tensors of a checkpoint part by part. Of what is checked meanwhile most is taken from
/// the check, and not read again.

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/handover.hpp"
#include "lib/checkpoint/loader.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::train {

checkpoint::Dims dims_of(const Shape& shape);

/// A slice of a tensor's local box as boxes of the logical tensor, each with the place of its
/// elements in the local box.
struct PlacedBox {
  checkpoint::Box box;
  ParameterSlice place;
};
std::vector<PlacedBox> boxes_of(const TensorPlace& place);

/// Parts of tensors that several threads put in place. Memory that nobody has touched yet costs
/// more than the reading: the system clears it, as many pages at a time as threads write to it.
class CheckpointReading {
 public:
  /// Takes elements [first, ..) of the tensor's local box, on any thread.
  using Write = std::function<void(std::int64_t first, std::span<const std::byte> values)>;
  /// How values of one type become those of another.
  using Conversion = void (*)(std::span<const std::byte> from, std::span<std::byte> to);

  explicit CheckpointReading(checkpoint::Loader& loader) : loader_(loader) {}

  /// All that `place` has of the checkpoint's tensor `name`, in groups of rows. `write` is given it
  /// in type `wanted`, whatever floating type the checkpoint has it in. Where the host may write to
  /// `memory`, which has just these values, what needs no conversion is read to there, and `write`
  /// not asked.
  void add(const std::string& name, const TensorPlace& place, DType wanted, Write write,
           std::span<std::byte> memory);

  /// By `threads` threads. Parts that lie in one piece in files that this rank checks meanwhile are
  /// taken from `handover` (nullptr: there is none); the others are read beside that. Errors as
  /// those of Loader::read_box(), and Stopped.
  void run(int threads, checkpoint::Handover* handover) const;

 private:
  struct Part {
    checkpoint::Loader::Request request;
    std::int64_t first;
    std::uint64_t saved_bytes;
    DType wanted;
    Conversion conversion;  // nullptr: none
    const Write* write;
    std::span<std::byte> memory;  // where its bytes go as they are, if anywhere
  };

  /// Has `handover` bring what lies in one piece in files that it is about, and returns what else
  /// there is to read.
  std::vector<const Part*> divide(checkpoint::Handover& handover) const;
  void read(const Part& part) const;
  /// Whole elements, as the checkpoint has them, from byte `at` of the part on.
  static void store(const Part& part, std::uint64_t at, std::span<const std::byte> saved);

  checkpoint::Loader& loader_;
  std::deque<Write> writes_;  // which stay where they are
  std::vector<Part> parts_;
};

}  // namespace llmtrain::train
