#include "lib/data/best_fit.hpp"

#include <algorithm>
#include <bit>

namespace llmtrain::data {

namespace {

/// The samples with room, by how much they have.
class OpenSamples {
 public:
  explicit OpenSamples(std::uint32_t seq_len) : by_room_(seq_len + 1), any_(seq_len / 64 + 1) {}

  void add(std::uint32_t room, std::uint64_t sample) {
    by_room_[room].push_back(sample);
    any_[room / 64] |= std::uint64_t{1} << (room % 64);
  }

  /// Takes out the youngest sample with the least room of at least `rows`; false if there is none.
  bool take(std::uint32_t rows, std::uint32_t& room, std::uint64_t& sample) {
    std::size_t word = rows / 64;
    std::uint64_t bits = any_[word] & (~std::uint64_t{0} << (rows % 64));
    while (bits == 0) {
      if (++word == any_.size()) return false;
      bits = any_[word];
    }
    room =
        static_cast<std::uint32_t>(64 * word) + static_cast<std::uint32_t>(std::countr_zero(bits));
    std::vector<std::uint64_t>& samples = by_room_[room];
    sample = samples.back();
    samples.pop_back();
    if (samples.empty()) any_[room / 64] &= ~(std::uint64_t{1} << (room % 64));
    return true;
  }

 private:
  std::vector<std::vector<std::uint64_t>> by_room_;
  std::vector<std::uint64_t> any_;  // bit `room`: by_room_[room] is not empty
};

/// All chunks, longest first; equally long ones in the order of documents.
std::vector<PackedChunk> sorted_chunks(std::uint64_t documents, std::uint32_t seq_len,
                                       const std::function<std::uint64_t(std::uint64_t)>& rows_of) {
  std::vector<PackedChunk> chunks;
  for (std::uint64_t d = 0; d < documents; ++d) {
    std::uint64_t rows = rows_of(d);
    for (std::uint32_t chunk = 0; rows > 0; ++chunk) {
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(rows, seq_len));
      chunks.push_back({d, chunk, count});
      rows -= count;
    }
  }
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const PackedChunk& a, const PackedChunk& b) { return a.rows > b.rows; });
  return chunks;
}

}  // namespace

BestFitLayout pack_best_fit(std::uint64_t documents, std::uint32_t seq_len,
                            const std::function<std::uint64_t(std::uint64_t)>& rows_of) {
  const std::vector<PackedChunk> chunks = sorted_chunks(documents, seq_len, rows_of);
  std::vector<std::uint64_t> sample_of;  // each chunk's
  sample_of.reserve(chunks.size());
  OpenSamples open(seq_len);
  std::uint64_t samples = 0;
  for (const PackedChunk& chunk : chunks) {
    std::uint32_t room = seq_len;
    std::uint64_t sample = samples;
    if (!open.take(chunk.rows, room, sample)) ++samples;
    sample_of.push_back(sample);
    if (room > chunk.rows) open.add(room - chunk.rows, sample);
  }
  BestFitLayout layout{.chunks = std::vector<PackedChunk>(chunks.size()),
                       .starts = std::vector<std::uint64_t>(samples + 1, 0)};
  for (const std::uint64_t sample : sample_of) ++layout.starts[sample + 1];
  for (std::uint64_t s = 0; s < samples; ++s) layout.starts[s + 1] += layout.starts[s];
  std::vector<std::uint64_t> next(layout.starts.begin(), layout.starts.end() - 1);
  for (std::size_t i = 0; i < chunks.size(); ++i) layout.chunks[next[sample_of[i]]++] = chunks[i];
  return layout;
}

}  // namespace llmtrain::data
